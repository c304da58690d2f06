"""A Redis database: the checks of each connection, and running commands and scripts."""

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from postd.errors import StoreBusyError, StoreMissingError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.failure_reporter import FailureReporter
from postd.store.group_commit import QUEUE_MAX
from postd.store.interface import OperationObserver, ignore_operation
from postd.store.redis.change_watch import ChangeWatch
from postd.store.redis.connecting import connect
from postd.store.redis.connection import Info, RedisProtocol, RedisReplyError, decode_info
from postd.store.redis.reconnecting import DEADLINE_S, ReconnectingRedis
from postd.store.redis.scripts import KEYS, SCHEMA, Script, load_script
from postd.store.redis.sentinel import find_server
from postd.store.redis.url import RedisAddress
from postd.store.run_blocking import run_blocking

STEP = 100_000
"""How far ids, and at least how far revisions, skip where a server may have lost the last ones."""

_BATCH_SIZE = 1000
"""Arguments per script, an even number as some are pairs: a millisecond or two of the server's time."""

_OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
_OWN_VERSION = re.compile(r"(?!redis_|valkey_|gcc_)([a-z]+)_version")
_BEGIN = load_script("begin")
_RIGHTS = load_script("rights")
_FIND_RECORDS = load_script("find_records")


class RedisDatabase:
    """The database of a store, on the server that is the primary now (`postd.store.interface.Lifecycle`).

    Attributes:
        description: the store for the log and for messages.
        reactor: connects and waits.
        observer: is called with each read and write.
        service_keys: cache of the keys in this database; emptied with each new connection.
        cached_records: sessions and tokens by their keys (`postd.store.redis.cached_records`); replaced by an empty
            dictionary when one of them may have changed, and with each new connection.
    """

    _log = Logger()

    def __init__(self, address: RedisAddress, *, reactor: IReactor) -> None:
        self.observer: OperationObserver = ignore_operation
        self.description = address.description
        self._address = address
        self.reactor = reactor
        self._connection = self._make_connection(reactor)
        self.start = self._connection.start
        self._create = True
        self._is_new = False
        self._last_id = self._last_revision = 0
        self._changed: Callable[[], None] | None = None
        self._watch: ChangeWatch | None = None
        self._watch_refusal = ""  # the last one
        self._watched_revision = 0  # at the last look
        self.service_keys: dict[str, bytes] = {}
        self.cached_records: dict[str, object] = {}
        self._login_changes: str | None = None
        self._logged_problems: set[str] = set()
        self._reads, self._writes = (FailureReporter(self._log, what, reactor) for what in ("reading", "writing"))

    def prepare(self, *, create: bool = True) -> bool:
        self._create = create
        if self._address.password:
            self._log.warn(
                "store: {where}: the password is in the URL, where other users may read it; use a password_file",
                where=self.description,
            )
        run_blocking(lambda reactor: self._make_connection(reactor).try_once())
        return self._is_new

    async def stop(self) -> None:
        self.watch_changes(None)
        await self._connection.stop()

    def watch_changes(self, changed: Callable[[], None] | None) -> None:
        """Call a function after each change of posts, as `postd.store.interface.PostStore.watch_changes`."""
        self._changed = changed
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if changed is not None:
            self._watch = ChangeWatch(
                self._connect_beside, lambda: self._last_revision, changed, self._note_refusal, self.reactor
            )

    def _note_refusal(self, text: str) -> None:
        """Log that the server refuses to be watched, once: each first listener begins another watch."""
        if text and text != self._watch_refusal:
            self._log.warn(
                "store: {text}: changes of other nodes reach event streams up to a second late (required permissions: "
                "etc/redis.conf.example)",
                text=text,
            )
        self._watch_refusal = text

    async def _connect_beside(self) -> RedisProtocol:
        return await connect(
            self._address, await find_server(self._address, reactor=self.reactor), reactor=self.reactor
        )

    def note_change(self) -> None:
        """Called when a change of this process is acknowledged."""
        if self._changed is not None:
            self._changed()

    def _look(self, *, reconnected: bool = False) -> None:
        """Notice changes since the last look."""
        if reconnected and self._watch is not None:
            self._watch.reconnect()
        if self._watched_revision != self._last_revision:
            self._watched_revision = self._last_revision
            self.note_change()

    async def read_command(self, *command: object) -> Any:
        """Return the reply to a command that only reads.

        Raises:
            StoreUnavailableError: there is no connection, no reply in time, or the reply is an error.
        """
        deadline = self.reactor.seconds() + DEADLINE_S
        return await self._observe(
            "read", lambda: self._report(self._connection.connection().send(*command, deadline=deadline), self._reads)
        )

    async def read(self, script: Script, *arguments: object) -> Any:
        """Return the result of a script that only reads.

        Raises:
            StoreUnavailableError: as for `read_command`.
        """
        return await self._observe("read", lambda: self._report(self._run(script, arguments, DEADLINE_S), self._reads))

    async def read_records(self, prefix: str, fields: Sequence[str], keys: Sequence[str]) -> list[list[str | None]]:
        """Return some fields of many hashes, None for a field that is not there.

        Raises:
            StoreUnavailableError: as for `read_command`.
        """
        found = []
        for start in range(0, len(keys), _BATCH_SIZE):
            asked = (prefix, len(fields), *fields, *keys[start : start + _BATCH_SIZE])
            found += await self.read(_FIND_RECORDS, *asked)
        return found

    async def write(self, script: Script, *arguments: object, deadline_s: float = DEADLINE_S) -> Any:
        """Return the result of a script that writes; with sentinels, when a replica has the write too.

        Before its arguments the script gets its deadline, `deadline_s` from now, as first argument.

        Raises:
            StoreBusyError: too many replies are pending.
            StoreFullError: the server has no memory left, or there are no more ids.
            StoreUnavailableError: as for `read_command`; the write may or may not have happened.
        """

        async def write() -> Any:
            if self._connection.pending >= QUEUE_MAX:
                raise StoreBusyError(f"{QUEUE_MAX} commands are waiting")
            with_deadline = (self._connection.server_deadline_ms(deadline_s), *arguments)
            result = await self._report(self._run(script, with_deadline, deadline_s), self._writes)
            try:
                await self._connection.confirm()
            except StoreUnavailableError as error:
                self._writes.failed(error.why)
                raise
            return result

        return await self._observe("write", write)

    async def write_in_batches(self, script: Script, before: Sequence[str], arguments: Sequence[str]) -> int:
        """Run a script that returns a number with many arguments, some of them at a time; return the sum.

        Args:
            script: the script.
            before: its first arguments, each time.
            arguments: an even number of them go together.

        Raises:
            StoreUnavailableError: as for `write`; earlier batches are written.
        """
        total = 0
        for start in range(0, len(arguments), _BATCH_SIZE):
            total += await self.write(script, *before, *arguments[start : start + _BATCH_SIZE])
        return total

    def note_progress(self, *, post_id: int = 0, revision: int = 0) -> None:
        """Note an id or a revision in use: a server that has lost writes must not assign it again."""
        self._last_id = max(self._last_id, post_id)
        self._last_revision = max(self._last_revision, revision)

    def note_login_changes(self, count: str | None) -> None:
        """Note the counter of changes of sessions and tokens, None if there is none; another one clears the cache."""
        if count != self._login_changes:
            self._login_changes = count
            self.cached_records = {}

    def reconnect(self, why: str) -> None:
        """Drop the connection, for a reason, and connect again with all checks."""
        self._connection.reconnect(why)

    def _make_connection(self, reactor: IReactor) -> ReconnectingRedis:
        return ReconnectingRedis(
            self._address, on_connect=self._check_server, on_check=self._read_progress, reactor=reactor
        )

    async def _observe(self, operation: Literal["read", "write"], run: Callable[[], Awaitable[Any]]) -> Any:
        began = time.perf_counter()
        failed = False
        try:
            return await run()
        except StoreUnavailableError:
            failed = True
            raise
        finally:
            self.observer(operation, time.perf_counter() - began, failed=failed)

    async def _report(self, reply: Awaitable[Any], failures: FailureReporter) -> Any:
        """Return a reply; log when the server begins to reply with errors, and when it no longer does."""
        try:
            result = await reply
        except RedisReplyError as error:
            unavailable = self._unavailable(error)
            failures.failed(unavailable.why)
            raise unavailable from None
        failures.succeeded()
        return result

    def _run(self, script: Script, arguments: tuple[object, ...], deadline_s: float) -> Awaitable[Any]:
        connection = self._connection.connection()

        def send(*command: object) -> Deferred[Any]:
            return connection.send(*command, 0, *arguments, deadline=self.reactor.seconds() + deadline_s)

        return _evaluate(script, send)

    def _unavailable(self, error: RedisReplyError) -> StoreUnavailableError:
        """Return the error of a store for an error of the server. Once it has started, even a refusal is temporary."""
        if error.code in {"READONLY", "GONE"}:  # another role, or other data: to be checked anew
            self.reconnect(error.text)
        elif error.code == "LATE":
            self._connection.measure_clock()
        ours = error.as_store_error(self.description)
        return StoreUnavailableError(ours.why) if isinstance(ours, StoreRefusedError) else ours

    async def _read_progress(self, protocol: RedisProtocol) -> None:
        """Note the largest id and revision, which other nodes may have assigned."""
        self.note_progress(
            post_id=int(await protocol.call("GET", KEYS["LAST_ID"]) or 0),
            revision=int(await protocol.call("HGET", KEYS["VERSION"], "revision") or 0),
        )
        self._look()

    async def _check_server(self, protocol: RedisProtocol, info: Info) -> None:
        """Check that a server can be used, and that its database is ours; skip ids if it may have lost some."""
        where = protocol.where
        _check_version(where, info)
        _check_replication(where, info, decode_info(await protocol.call("INFO", "replication")))
        if info.get("cluster_enabled") == "1":
            raise StoreRefusedError(f"{where}: is part of a Redis Cluster, which postd cannot use")
        if info.get("loading") == "1":
            raise StoreUnavailableError(f"{where}: is loading its data")
        await self._check_rights(protocol)
        self.service_keys.clear()
        self.cached_records, self._login_changes = {}, None  # a server that lost writes may repeat counters
        server = (SCHEMA, info["master_replid"], secrets.token_hex(8))
        known = (self._last_id, self._last_revision, STEP, "1" if self._create else "", secrets.token_hex(16))
        found, detail, revision = await protocol.call("EVAL", _BEGIN.text, 0, *server, *known)
        if found == "missing":
            raise StoreMissingError(f"{where}: there is no postd store in this database")
        if found == "foreign":
            raise StoreRefusedError(f"{where}: has a key {detail} that is not postd's; choose another database")
        if found == "other":
            raise StoreRefusedError(f"{where}: it was written by a newer postd (schema {detail}; this one is {SCHEMA})")
        self.note_progress(post_id=int(detail), revision=int(revision))
        self._look(reconnected=True)
        self._is_new = found == "new"
        if self._is_new:
            await self._check_rights(protocol)  # to write the keys that did not exist at the first check
        if found == "diverged":
            self._log.warn(
                "store: {where}: the server was restarted or replaced, and may lack the last writes; new ids are "
                "larger than {last_id}",
                where=where,
                last_id=detail,
            )
        for problem in _problems(info):
            if problem not in self._logged_problems:
                self._log.warn("store: {where}: {problem}", where=where, problem=problem)
                self._logged_problems.add(problem)

    async def _check_rights(self, protocol: RedisProtocol) -> None:
        """Check that the server permits all commands and keys that postd uses.

        Raises:
            StoreRefusedError: it does not; the message names them.
            StoreUnavailableError, RedisReplyError: as for `RedisProtocol.call`.
        """
        if self._address.primary:
            await protocol.call("WAIT", 0, 0)
        met = await _evaluate(_RIGHTS, lambda *command: protocol.call(*command, 0, *KEYS.values()))
        errors = [(name, RedisReplyError(text)) for name, text in met]
        # A permitted SADD fails with WRONGTYPE.
        refused = [(name, error) for name, error in errors if error.is_refusal and error.code != "WRONGTYPE"]
        if refused:
            # A command may be refused for its key, which is then in the list itself.
            names = [name for name, error in refused if (name in KEYS.values()) == (" key" in error.text)]
            raise StoreRefusedError(
                f"{protocol.where}: refuses {', '.join(names)}: {refused[0][1].text} "
                "(required permissions: etc/redis.conf.example)"
            )


async def _evaluate(script: Script, send: Callable[..., Awaitable[Any]]) -> Any:
    """Run a script by its digest, or whole if the server does not know it."""
    if not script.in_order:
        try:
            return await send("EVALSHA", script.sha1)
        except RedisReplyError as error:
            if error.code != "NOSCRIPT":
                raise
    return await send("EVAL", script.text)


def _check_version(where: str, info: Info) -> None:
    """Raise StoreRefusedError if a server is too old."""
    # Valkey also claims to be Redis 7.2.4, for clients that know only Redis.
    name = "Valkey" if "valkey_version" in info else "Redis"
    version, oldest = info.get(f"{name.lower()}_version", "of an unknown version"), _OLDEST[name]
    parts = version.split(".")[:2]
    if not all(part.isdecimal() for part in parts) or tuple(map(int, parts)) < oldest:
        found = next(_own_versions(info), f"{name} {version}")
        raise StoreRefusedError(f"{where}: is {found}; postd needs {name} {oldest[0]}.{oldest[1]} or newer")


def _check_replication(where: str, *infos: Info) -> None:
    """Raise StoreRefusedError if a server does not say what tells its data from others' in each INFO that is used."""
    for field in ("role", "master_replid"):
        if any(field not in info for info in infos):
            found = next(_own_versions(infos[0]), "a server")
            raise StoreRefusedError(f"{where}: is {found} whose INFO has no {field}; postd needs Redis or Valkey")


def _own_versions(info: Info) -> Iterator[str]:
    """Yield names and versions of a server that is only compatible with Redis, such as `dragonfly df-v1.25`."""
    for field, value in info.items():
        match = _OWN_VERSION.fullmatch(field)
        if match:
            yield f"{match[1]} {value}"


def _problems(info: Info) -> Iterator[str]:
    """Yield the settings of a server that put acknowledged writes at risk."""
    if info.get("aof_enabled") == "0":
        yield "it keeps no append-only file: acknowledged writes are lost when it stops (etc/redis.conf.example)"
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        yield f"it removes keys when it is full (maxmemory-policy {policy}); noeviction would refuse writes instead"

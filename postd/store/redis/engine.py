"""The life of a store in a Redis database, and how its scripts are run; what they do is up to the derived classes."""

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Literal

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from postd.errors import StoreBusyError, StoreMissingError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.failure_reporter import FailureReporter
from postd.store.group_commit import QUEUE_MAX
from postd.store.interface import Timed, untimed
from postd.store.redis.connection import Info, RedisProtocol, RedisReplyError
from postd.store.redis.reconnecting import DEADLINE_S, ReconnectingRedis
from postd.store.redis.scripts import KEYS, SCHEMA, Script, load_script
from postd.store.redis.url import RedisAddress
from postd.store.run_blocking import run_blocking

STEP = 100_000
"""How much further ids and revisions go on where some of the last ones may have been lost."""

_OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
_BEGIN = load_script("begin")
_RIGHTS = load_script("rights")


class RedisEngine:
    """The life of a store in a Redis database.

    Args:
        address: where it is.
        reactor: connects, and has the clock.
    """

    _log = Logger()

    def __init__(self, address: RedisAddress, *, reactor: IReactor) -> None:
        self.timed: Timed = untimed
        self.description = address.description
        self._address = address
        self._reactor = reactor
        self._link = ReconnectingRedis(address, begin=self._begin, look=self._look, reactor=reactor)
        self._create = True
        self._seen_id = self._seen_revision = 0
        self._keys: dict[str, bytes] = {}  # of the history that we are connected to
        self._told: set[str] = set()
        self._reading, self._writing = (FailureReporter(self._log, what, reactor) for what in ("reading", "writing"))

    def prepare(self, *, create: bool = True) -> None:
        self._create = create
        if self._address.password:
            self._log.warn(
                "store: {where}: the password stands in the URL, where others may read it; a password_file is safer",
                where=self.description,
            )

        async def try_once(reactor: IReactor) -> None:
            await ReconnectingRedis(self._address, begin=self._begin, look=self._look, reactor=reactor).try_once()

        run_blocking(try_once)

    async def start(self) -> None:
        await self._link.start()

    async def stop(self) -> None:
        await self._link.stop()

    def _saw(self, *, post_id: int = 0, revision: int = 0) -> None:
        """Note how far ids and revisions have come, lest a server that has lost some gives them out again."""
        self._seen_id = max(self._seen_id, post_id)
        self._seen_revision = max(self._seen_revision, revision)

    async def _ask(self, *command: object) -> Any:
        """Return what a command answers that changes nothing."""
        return await self._time("read", lambda: self._tell(self._link.ask(*command), self._reading))

    async def _read(self, script: Script, *arguments: object) -> Any:
        """Return what a script answers that changes nothing."""
        asking = partial(self._run, script, arguments, DEADLINE_S)
        return await self._time("read", lambda: self._tell(asking(), self._reading))

    async def _time(self, operation: Literal["read", "write"], ask: Callable[[], Awaitable[Any]]) -> Any:
        began = time.perf_counter()
        failed = False
        try:
            return await ask()
        except StoreUnavailableError:
            failed = True
            raise
        finally:
            self.timed(operation, time.perf_counter() - began, failed=failed)

    async def _write(self, script: Script, *arguments: object, deadline_s: float = DEADLINE_S) -> Any:
        """Return what a script answers that changes something, once it has, and a replica knows, if one is to.

        Args:
            script: what is done. Its first argument, until when somebody waits, comes from here.
            arguments: the others.
            deadline_s: how long it may take.
        """

        async def write() -> Any:
            if self._link.waiting >= QUEUE_MAX:
                raise StoreBusyError(f"{QUEUE_MAX} commands are waiting")
            limited = (self._link.limit_ms(deadline_s), *arguments)
            answer = await self._tell(self._run(script, limited, deadline_s), self._writing)
            try:
                await self._link.confirm()
            except StoreUnavailableError as error:
                self._writing.began(error.why)
                raise
            return answer

        return await self._time("write", write)

    async def _tell(self, asking: Awaitable[Any], trouble: FailureReporter) -> Any:
        """Return an answer; tell the log where the server begins to refuse, and where it no longer does."""
        try:
            answer = await asking
        except RedisReplyError as error:
            unavailable = self._unavailable(error)
            trouble.began(unavailable.why)
            raise unavailable from None
        trouble.ended()
        return answer

    async def _run(self, script: Script, arguments: tuple[object, ...], deadline_s: float) -> Any:
        connection = self._link.connection()

        def ask(*command: object) -> Deferred[Any]:
            return connection.ask(*command, 0, *arguments, give_up_at=self._reactor.seconds() + deadline_s)

        if not script.in_order:
            try:
                return await ask("EVALSHA", script.sha1)
            except RedisReplyError as error:
                if error.code != "NOSCRIPT":
                    raise
        return await ask("EVAL", script.text)

    def _unavailable(self, error: RedisReplyError) -> StoreUnavailableError:
        """Tell what an error means for a request: once we have served, even a refusal may pass."""
        if error.code in {"READONLY", "GONE"}:
            self._link.give_up(error.text)  # it is not what it was: to be looked at anew
        ours = error.as_store_error(self.description)
        return StoreUnavailableError(ours.why) if isinstance(ours, StoreRefusedError) else ours

    async def _look(self, protocol: RedisProtocol) -> None:
        """See how far others have come."""
        self._saw(
            post_id=int(await protocol.ask_soon("GET", KEYS["LAST_ID"]) or 0),
            revision=int(await protocol.ask_soon("HGET", KEYS["VERSION"], "revision") or 0),
        )

    async def _begin(self, protocol: RedisProtocol, info: Info) -> None:
        """Look whether a server is fit, and whether its database is ours and goes on where we know it to have been."""
        where = protocol.where
        _check_version(where, info)
        if info.get("cluster_enabled") == "1":
            raise StoreRefusedError(f"{where}: is part of a Redis Cluster, which postd cannot use")
        if info.get("loading") == "1":
            raise StoreUnavailableError(f"{where}: is loading its data")
        await self._check_rights(protocol)
        self._keys.clear()
        answer = protocol.ask_soon(
            "EVAL",
            _BEGIN.text,
            0,
            SCHEMA,
            info["master_replid"],
            secrets.token_hex(8),
            self._seen_id,
            self._seen_revision,
            STEP,
            "1" if self._create else "",
        )
        found, detail, revision = await answer
        if found == "missing":
            raise StoreMissingError(f"{where}: there is no postd store in this database")
        if found == "foreign":
            raise StoreRefusedError(f"{where}: has a key {detail} that is not postd's; choose another database")
        if found == "other":
            raise StoreRefusedError(f"{where}: it was written by a newer postd (schema {detail}; this one is {SCHEMA})")
        self._saw(post_id=int(detail), revision=int(revision))
        if found == "new":
            await self._check_rights(protocol)  # to change what was not there before
        if found == "parted":
            self._log.warn(
                "store: {where}: the server was started anew, or is another one: it may lack the last writes; new ids "
                "are larger than {last_id}",
                where=where,
                last_id=detail,
            )
        for problem in _problems(info):
            if problem not in self._told:
                self._log.warn("store: {where}: {problem}", where=where, problem=problem)
                self._told.add(problem)

    async def _check_rights(self, protocol: RedisProtocol) -> None:
        """Find out whether the server lets us use the commands and the keys that we need.

        Raises:
            StoreRefusedError: it does not; the message names them.
            StoreUnavailableError, RedisReplyError: as for `RedisProtocol.ask_soon`.
        """
        if self._address.primary:
            await protocol.ask_soon("WAIT", 0, 0)
        arguments = (0, *KEYS.values())
        try:
            met = await protocol.ask_soon("EVALSHA", _RIGHTS.sha1, *arguments)
        except RedisReplyError as error:
            if error.code != "NOSCRIPT":
                raise
            met = await protocol.ask_soon("EVAL", _RIGHTS.text, *arguments)
        errors = [(name, RedisReplyError(text)) for name, text in met]
        # SADD meets a key of another type where it is allowed.
        refused = [(name, error) for name, error in errors if error.is_refusal and error.code != "WRONGTYPE"]
        if refused:
            # A command may be refused for the key that it was tried with, which stands there itself.
            names = [name for name, error in refused if (name in KEYS.values()) == (" key" in error.text)]
            raise StoreRefusedError(
                f"{protocol.where}: refuses {', '.join(names)}: {refused[0][1].text} "
                "(what postd needs: etc/redis.conf.example)"
            )


def _check_version(where: str, info: Info) -> None:
    """Raise StoreRefusedError if a server is too old."""
    # Valkey says that it is Redis 7.2.4, for clients that know only of Redis.
    name = "Valkey" if "valkey_version" in info else "Redis"
    version, oldest = info.get(f"{name.lower()}_version", ""), _OLDEST[name]
    parts = version.split(".")[:2]
    if not all(part.isdecimal() for part in parts) or tuple(map(int, parts)) < oldest:
        raise StoreRefusedError(f"{where}: is {name} {version}; it takes {oldest[0]}.{oldest[1]} or newer")


def _problems(info: Info) -> Iterator[str]:
    """Yield what makes a server less than a safe place."""
    if info.get("aof_enabled") == "0":
        yield "it keeps no append-only file: what it has acknowledged is lost when it ends (etc/redis.conf.example)"
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        yield f"it removes keys when it is full (maxmemory-policy {policy}); noeviction would refuse writes instead"

"""A connection to the primary that is replaced whenever it is lost, without a queue of commands.

1. Without a connection each command fails at once. Nothing is queued, so that memory stays flat, and no command is
   executed after it was reported as failed.
2. A command has its reply within `DEADLINE_S`, or the connection is dropped with all pending commands.
3. A write carries its deadline, in the server's time, and the server refuses a write after its deadline: a server that
   was suspended does not execute writes that have failed since. The clocks are compared each second, and after a
   refusal.
4. Each new connection is checked: the server must be a primary, with the data that postd knows.
5. Each second the server is asked for its role, to detect a demotion, and a server that hangs while there are no
   commands.
6. With sentinels, a second connection confirms that a replica has the writes (`replication`). Both connections are
   made and lost together.
"""

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor, Work
from postd.store.redis.connecting import connect
from postd.store.redis.connection import Info, RedisProtocol, RedisReplyError, decode_info
from postd.store.redis.replication import ReplicaConfirmation
from postd.store.redis.sentinel import find_server
from postd.store.redis.url import RedisAddress

DEADLINE_S = 1.5
"""Timeout of a reply. The later ones of many pending replies may take longer, as long as replies arrive."""

CONFIRM_MAX_S = 1.0
"""Timeout, after that, of the confirmation that a replica has a write."""

ATTEMPT_MAX_S = 1.5
"""Timeout of one attempt to connect, checks included."""

RECONNECT_AFTER_S = (0.05, 0.1, 0.2, 0.4)
"""Delays before the next attempts to connect; the last one repeats."""

_QUEUED_REPLY_S = 0.001
"""How much later the deadline of a write is for each reply that is pending before it."""

_CHECK_EVERY_S = 0.1
_CHECKS_PER_ROLE_CHECK = 10


class ReconnectingRedis:
    """Keeps a connection to the primary at an address.

    Args:
        on_connect: is awaited with each new connection and the INFO of its server; an error refuses the connection.
        on_check: is awaited with the connection each second, while the server is the primary.
    """

    _log = Logger()

    def __init__(
        self,
        address: RedisAddress,
        *,
        on_connect: Callable[[RedisProtocol, Info], Work[None]],
        on_check: Callable[[RedisProtocol], Work[None]],
        reactor: IReactor,
    ) -> None:
        self._address = address
        self._on_connect = on_connect
        self._on_check = on_check
        self._reactor = reactor
        self._protocol: RedisProtocol | None = None
        self._confirmation: ReplicaConfirmation | None = None
        self._replication_id = ""
        self._server_ahead_s = 0.0
        self._running: Deferred[None] | None = None
        self._started: Deferred[None] = Deferred()
        self._has_started = self._stopped = False
        self._not_connected = f"{address.description}: not connected yet"
        self._checking = LoopingCall.withCount(self._check)
        self._checking.clock = reactor
        self._checks = 0
        self._overdue: list[tuple[RedisProtocol, int]] = []  # at the last check, with the number of replies until then

    async def try_once(self) -> None:
        """Connect and disconnect.

        Raises:
            StoreRefusedError: the server cannot be used until it or the settings are changed.
            StoreUnavailableError: the server is not available now.
        """
        protocol, self._confirmation = await self._attempt()
        for connection in self._connections(protocol):
            await _close(connection)

    async def start(self) -> None:
        """Connect and stay connected; return with the first connection.

        Raises:
            StoreRefusedError: the first connection is refused, permanently.
        """
        self._checking.start(_CHECK_EVERY_S, now=False)
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._run_failed)
        await self._started

    async def stop(self) -> None:
        """Refuse new commands, wait for the pending ones, disconnect."""
        self._stopped = True
        protocol, self._protocol = self._protocol, None
        self._not_connected = f"{self._address.description}: closed"
        if self._checking.running:
            self._checking.stop()
        if protocol is not None:
            await self._drain(protocol)
        if self._running is not None:
            self._running.cancel()
        if protocol is not None:
            await _close(protocol)
            await self._close_confirmation()

    @property
    def pending(self) -> int:
        """How many replies are pending."""
        return len(self._protocol.deadlines) if self._protocol is not None else 0

    def connection(self) -> RedisProtocol:
        """Return the present connection. Several commands may be sent on it even while `stop` drains it.

        Raises:
            StoreUnavailableError: there is none.
        """
        if self._protocol is None:
            raise StoreUnavailableError(self._not_connected)
        return self._protocol

    async def confirm(self) -> None:
        """Return when a replica has all writes until now; at once without sentinels.

        Raises:
            StoreUnavailableError: no replica confirms it.
        """
        if self._address.primary:
            if self._confirmation is None:
                raise StoreUnavailableError(self._not_connected)
            await self._confirmation.confirm(deadline=self._reactor.seconds() + CONFIRM_MAX_S)

    def server_deadline_ms(self, deadline_s: float = DEADLINE_S) -> int:
        """Return the deadline of a write that is sent now, in milliseconds of the server's clock."""
        wait_s = deadline_s + self.pending * _QUEUED_REPLY_S
        return int((self._reactor.seconds() + self._server_ahead_s + wait_s) * 1000)

    def measure_clock(self) -> None:
        """Compare the clocks again: the server's may have been set."""
        if self._protocol is not None:
            Deferred.fromCoroutine(self._measure_clock(self._protocol)).addErrback(self._check_failed)

    def reconnect(self, why: str) -> None:
        """Drop the connection, for a reason, and connect again."""
        if self._protocol is not None:
            self._protocol.drop(why)

    async def _drain(self, protocol: RedisProtocol) -> None:
        """Wait for pending replies until their deadlines."""
        while protocol.deadlines or (self._confirmation is not None and self._confirmation.is_busy):
            self._drop_if_overdue(protocol)
            await deferLater(self._reactor, _CHECK_EVERY_S)

    async def _run(self) -> None:
        attempts, logged = 0, ""
        while True:
            try:
                protocol, self._confirmation = await self._attempt()
            except StoreRefusedError as error:
                if not self._has_started:
                    raise
                why = error.why
            except StoreUnavailableError as error:
                why = error.why
            else:
                attempts, logged = 0, ""
                why = await self._use(protocol)
            if self._stopped:  # a cancelled attempt may look like a failed one
                return
            self._not_connected = why
            if why != logged:
                self._log.error("store: {why}; trying again", why=why)
                logged = why
            await deferLater(self._reactor, RECONNECT_AFTER_S[min(attempts, len(RECONNECT_AFTER_S) - 1)])
            attempts += 1

    async def _use(self, protocol: RedisProtocol) -> str:
        """Serve commands on a connection until it is lost; return why."""
        self._protocol = protocol
        if self._has_started:
            self._log.info("store: connected to {where}", where=protocol.where)
        self._has_started = True
        if not self._started.called:
            self._started.callback(None)
        await protocol.whenDisconnected()
        self._protocol, self._not_connected = None, protocol.why_lost
        await self._close_confirmation()
        return protocol.why_lost

    async def _close_confirmation(self) -> None:
        confirmation, self._confirmation = self._confirmation, None
        if confirmation is not None:
            await _close(confirmation.protocol)

    def _run_failed(self, failure: Failure) -> None:
        if not self._started.called:
            self._started.errback(failure)
        elif not failure.check(CancelledError):
            self._log.failure("store: no longer reconnecting, after an unexpected error", failure=failure)

    async def _attempt(self) -> tuple[RedisProtocol, ReplicaConfirmation | None]:
        attempt = Deferred.fromCoroutine(self._connect())
        try:
            return await attempt.addTimeout(ATTEMPT_MAX_S, self._reactor)
        except TimeoutError:
            raise StoreUnavailableError(f"{self._address.description}: does not answer") from None
        except (LookupError, TypeError, ValueError):  # a reply lacks something
            raise StoreUnavailableError(f"{self._address.description}: replies are not in the Redis protocol") from None
        except (CancelledError, StoreRefusedError, StoreUnavailableError):
            raise
        except Exception as error:  # noqa: BLE001 - no error ends the attempts
            self._log.failure("store: unexpected error while connecting to {where}", where=self._address.description)
            raise StoreUnavailableError(f"{self._address.description}: {type(error).__name__}") from None

    async def _connect(self) -> tuple[RedisProtocol, ReplicaConfirmation | None]:
        host = await find_server(self._address, reactor=self._reactor)
        protocol = await connect(self._address, host, reactor=self._reactor)
        try:
            info = decode_info(await protocol.call("INFO"))
            await self._measure_clock(protocol)
            await self._on_connect(protocol, info)
            self._replication_id = info["master_replid"]
            if not self._address.primary:
                return protocol, None
            confirmation = ReplicaConfirmation(await connect(self._address, host, reactor=self._reactor))
        except RedisReplyError as error:
            protocol.close()
            raise error.as_store_error(protocol.where) from None
        except BaseException:
            protocol.close()
            raise
        lost = confirmation.protocol.whenDisconnected()
        lost.addCallback(lambda _: protocol.drop("the connection beside it was lost"))
        confirmation.note_replicas(info)
        return protocol, confirmation

    def _check(self, due: int) -> None:
        """Check for overdue replies, and each second the role of the server.

        Args:
            due: how many checks have become due since the last. More than one: this process was suspended or busy, and
                its commands were hardly sent. Their deadlines move by that time.
        """
        protocol = self._protocol
        if protocol is None:
            return
        if due > 1:
            for connection in self._connections(protocol):
                connection.extend_deadlines((due - 1) * _CHECK_EVERY_S, self._reactor.seconds())
        self._checks += 1
        if not self._drop_if_overdue(protocol) and self._checks % _CHECKS_PER_ROLE_CHECK == 0:
            checking = Deferred.fromCoroutine(self._check_role(protocol))
            checking.addErrback(self._check_failed)

    def _drop_if_overdue(self, protocol: RedisProtocol) -> bool:
        """Drop a connection if a reply is overdue at two checks in a row: at the first it may have arrived, unread."""
        now = self._reactor.seconds()
        busy = (connection for connection in self._connections(protocol) if connection.deadlines)
        overdue = [(connection, connection.replies) for connection in busy if connection.deadlines[0] <= now]
        drop = any(found in self._overdue for found in overdue)
        self._overdue = overdue
        if drop:
            protocol.drop("does not answer")
        return drop

    def _connections(self, protocol: RedisProtocol) -> list[RedisProtocol]:
        """Return a connection, and the connection that confirms its replication if there is one."""
        return [protocol, *([self._confirmation.protocol] if self._confirmation is not None else ())]

    async def _check_role(self, protocol: RedisProtocol) -> None:
        await self._measure_clock(protocol)
        info = decode_info(await protocol.call("INFO", "replication"))
        if info.get("role") != "master":
            protocol.drop("is no primary any more")
        elif info.get("master_replid") != self._replication_id:
            protocol.drop("has another history of its data than before")
        else:
            if self._confirmation is not None:
                self._confirmation.note_replicas(info)
            await self._on_check(protocol)

    def _check_failed(self, failure: Failure) -> None:
        # Expected: the connection was lost, or a long script of another client blocks the server.
        if not failure.check(StoreUnavailableError, RedisReplyError):
            self._log.failure("store: unexpected error while checking the role of the Redis server", failure=failure)

    async def _measure_clock(self, protocol: RedisProtocol) -> None:
        time = await protocol.call("TIME")
        self._server_ahead_s = int(time[0]) + int(time[1]) / 1_000_000 - self._reactor.seconds()


async def _close(protocol: RedisProtocol) -> None:
    """Close a connection, and wait until it is closed."""
    if protocol.connected:
        lost = protocol.whenDisconnected()
        protocol.close()
        await lost

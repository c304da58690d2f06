"""The connection to Redis, as far as there is one: no queue, no hang, and another one as soon as that can be had.

1. Without a connection everything fails at once. Nothing waits to be sent, so that memory stays flat, and nothing is
   executed later that a client was told has failed.
2. What is sent is answered within `DEADLINE_S`, or the connection is given up with all that waits for it.
3. A write carries its deadline with it, in the server's own time, and the server refuses one that is late: one that
   stood still for a while does not go on with what was given up meanwhile.
4. Each connection begins with a look whether it leads to a primary, and to the history of data that we know.
5. Each second the server is asked whether it still is what it was: nobody else would tell that it is no primary any
   more, or stands still while there is nothing to do.
6. Where sentinels are to put another server in the place of one that dies, a second connection asks whether a replica
   has what was written (`redis_confirm`). The two live and die together.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.redis.connection import Info, RedisProtocol, RedisReplyError, connect, decode_info, find_server
from postd.store.redis.replication import ReplicaConfirmation
from postd.store.redis.url import RedisAddress

DEADLINE_S = 1.5
"""How long an answer may take; many that wait may take longer, as long as answers come."""

CONFIRM_MAX_S = 1.0
"""How long it may take, after that, until it is known whether a replica has what was written."""

ATTEMPT_MAX_S = 1.5
"""How long one attempt to connect may take, with all that belongs to it."""

AGAIN_AFTER_S = (0.05, 0.1, 0.2, 0.4)
"""How long is waited before the next attempt, and the one after that; in the end always the last of these."""

_EACH_BEFORE_S = 0.001
"""How much longer an answer may take for each that has to come before it."""

_LOOK_EVERY_S = 0.1
_ASK_EACH_LOOK_OF = 10


class ReconnectingRedis:
    """Keeps a connection to the primary at an address.

    Args:
        address: where it is.
        begin: is awaited with each new connection and what the server says of itself; what it raises refuses it.
        look: is awaited each second, while all is well.
        reactor: connects, and has the clock.
    """

    _log = Logger()

    def __init__(
        self,
        address: RedisAddress,
        *,
        begin: Callable[[RedisProtocol, Info], Coroutine[Any, Any, None]],
        look: Callable[[RedisProtocol], Coroutine[Any, Any, None]],
        reactor: IReactor,
    ) -> None:
        self._address = address
        self._begin = begin
        self._look_further = look
        self._reactor = reactor
        self._protocol: RedisProtocol | None = None
        self._confirmer: ReplicaConfirmation | None = None
        self._history = ""  # of the data behind the connection
        self._server_ahead_s = 0.0
        self._keeping: Deferred[None] | None = None
        self._started: Deferred[None] = Deferred()
        self._has_served = self._stopped = False
        self._why_not = f"{address.description}: not connected yet"
        self._watch = LoopingCall.withCount(self._look)
        self._watch.clock = reactor
        self._looks = 0
        self._late: list[tuple[RedisProtocol, int]] = []  # at the last look, and how many answers had come by then

    async def try_once(self) -> None:
        """Connect, and hang up.

        Raises:
            StoreRefusedError: it will never serve us as it is.
            StoreUnavailableError: it cannot be had now.
        """
        protocol, confirmer = await self._attempt()
        for one in (protocol, confirmer.protocol if confirmer else None):
            if one is not None:
                await _end(one)

    async def start(self) -> None:
        """Connect and stay connected; returns with the first connection.

        Raises:
            StoreRefusedError: it will never serve us as it is, and never has.
        """
        self._watch.start(_LOOK_EVERY_S, now=False)
        self._keeping = Deferred.fromCoroutine(self._keep())
        self._keeping.addErrback(self._not_kept)
        await self._started

    async def stop(self) -> None:
        """Take on nothing more, wait for what was asked for, hang up."""
        self._stopped = True
        protocol, self._protocol = self._protocol, None
        self._why_not = f"{self._address.description}: closed"
        if self._watch.running:
            self._watch.stop()
        if protocol is not None:
            await self._finish(protocol)
        if self._keeping is not None:
            self._keeping.cancel()
        if protocol is not None:
            await _end(protocol)
            await self._end_confirmer()

    @property
    def waiting(self) -> int:
        """How many answers are waited for."""
        return len(self._protocol.give_up_at) if self._protocol is not None else 0

    def ask(self, *command: object, deadline_s: float = DEADLINE_S) -> Deferred[Any]:
        """Send a command; the Deferred fires with the answer.

        Raises:
            StoreUnavailableError: there is no connection, or it is lost meanwhile.
            RedisReplyError: the answer is an error.
        """
        return self.connection().ask(*command, give_up_at=self._reactor.seconds() + deadline_s)

    def connection(self) -> RedisProtocol:
        """Return the connection that there is now; what was begun on it may be finished on it while it is closed.

        Raises:
            StoreUnavailableError: there is none.
        """
        if self._protocol is None:
            raise StoreUnavailableError(self._why_not)
        return self._protocol

    async def confirm(self) -> None:
        """Return when a replica has all that was written until now, if there is to be one that has it.

        Raises:
            StoreUnavailableError: none says so.
        """
        if self._address.primary:
            if self._confirmer is None:
                raise StoreUnavailableError(self._why_not)
            await self._confirmer.confirm(give_up_at=self._reactor.seconds() + CONFIRM_MAX_S)

    def limit_ms(self, deadline_s: float = DEADLINE_S) -> int:
        """Return the time of the server, in milliseconds, after which what is sent now is given up."""
        patience_s = deadline_s + self.waiting * _EACH_BEFORE_S
        return int((self._reactor.seconds() + self._server_ahead_s + patience_s) * 1000)

    def give_up(self, why: str) -> None:
        """Leave this connection for another one."""
        if self._protocol is not None:
            self._protocol.give_up(why)

    async def _finish(self, protocol: RedisProtocol) -> None:
        """Wait for what was asked for, as long as somebody waits for it."""
        while protocol.give_up_at or (self._confirmer is not None and self._confirmer.is_busy):
            self._give_up_if_late(protocol)
            await deferLater(self._reactor, _LOOK_EVERY_S)

    async def _keep(self) -> None:
        attempts, told = 0, ""
        while True:
            try:
                protocol, self._confirmer = await self._attempt()
            except StoreRefusedError as error:
                if not self._has_served:
                    raise
                why = error.why
            except StoreUnavailableError as error:
                why = error.why
            else:
                attempts, told = 0, ""
                why = await self._use(protocol)
            if self._stopped:  # to be told to stop while it connects looks like any failure to
                return
            self._why_not = why
            if why != told:
                self._log.error("store: {why}; trying again", why=why)
                told = why
            await deferLater(self._reactor, AGAIN_AFTER_S[min(attempts, len(AGAIN_AFTER_S) - 1)])
            attempts += 1

    async def _use(self, protocol: RedisProtocol) -> str:
        """Use a connection; return why it was lost, when it is."""
        self._protocol = protocol
        if self._has_served:
            self._log.info("store: connected to {where}", where=protocol.where)
        self._has_served = True
        if not self._started.called:
            self._started.callback(None)
        await protocol.whenDisconnected()
        self._protocol, self._why_not = None, protocol.why_lost
        await self._end_confirmer()
        return protocol.why_lost

    async def _end_confirmer(self) -> None:
        confirmer, self._confirmer = self._confirmer, None
        if confirmer is not None:
            await _end(confirmer.protocol)

    def _not_kept(self, failure: Failure) -> None:
        if not self._started.called:
            self._started.errback(failure)
        elif not failure.check(CancelledError):
            self._log.failure("the connection to Redis is not kept any more", failure=failure)

    async def _attempt(self) -> tuple[RedisProtocol, ReplicaConfirmation | None]:
        attempt = Deferred.fromCoroutine(self._connect())
        try:
            return await attempt.addTimeout(ATTEMPT_MAX_S, self._reactor)
        except TimeoutError:
            raise StoreUnavailableError(f"{self._address.description}: does not answer") from None
        except (LookupError, TypeError, ValueError):  # of what an answer should have in it
            raise StoreUnavailableError(f"{self._address.description}: does not answer as Redis does") from None
        except (CancelledError, StoreRefusedError, StoreUnavailableError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, connecting goes on
            self._log.failure("unexpected, while connecting to {where}", where=self._address.description)
            raise StoreUnavailableError(f"{self._address.description}: {type(error).__name__}") from None

    async def _connect(self) -> tuple[RedisProtocol, ReplicaConfirmation | None]:
        host = await find_server(self._address, reactor=self._reactor)
        protocol = await connect(self._address, host, reactor=self._reactor)
        try:
            info = decode_info(await protocol.ask_soon("INFO"))
            self._set_clock(await protocol.ask_soon("TIME"))
            await self._begin(protocol, info)
            self._history = info["master_replid"]
            if not self._address.primary:
                return protocol, None
            confirmer = ReplicaConfirmation(await connect(self._address, host, reactor=self._reactor))
        except RedisReplyError as error:
            protocol.hang_up()
            raise error.as_store_error(protocol.where) from None
        except BaseException:
            protocol.hang_up()
            raise
        gone = confirmer.protocol.whenDisconnected()
        gone.addCallback(lambda _: protocol.give_up("the connection beside it was lost"))
        confirmer.note(info)
        return protocol, confirmer

    def _look(self, due: int) -> None:
        """Look after the connection.

        Args:
            due: how many looks have become due since the last. More than one: this process stood still, or had a long
                turn, and what was asked in that has hardly been sent. It is no fault of the server's.
        """
        protocol = self._protocol
        if protocol is None:
            return
        if due > 1:
            for one in self._connections(protocol):
                one.extend_deadlines((due - 1) * _LOOK_EVERY_S, self._reactor.seconds())
        self._looks += 1
        if not self._give_up_if_late(protocol) and self._looks % _ASK_EACH_LOOK_OF == 0:
            asking = Deferred.fromCoroutine(self._ask_who_it_is(protocol))
            asking.addErrback(self._not_told)

    def _give_up_if_late(self, protocol: RedisProtocol) -> bool:
        """Give a connection up if an answer is late, and was at the last look: it may lie here unread."""
        now = self._reactor.seconds()
        late = [(one, one.answered) for one in self._connections(protocol) if one.is_late(now)]
        give_up = any(one in self._late for one in late)
        self._late = late
        if give_up:
            protocol.give_up("does not answer")
        return give_up

    def _connections(self, protocol: RedisProtocol) -> list[RedisProtocol]:
        """Return a connection, and the one beside it if there is one."""
        return [protocol, *([self._confirmer.protocol] if self._confirmer is not None else ())]

    async def _ask_who_it_is(self, protocol: RedisProtocol) -> None:
        self._set_clock(await protocol.ask_soon("TIME"))
        info = decode_info(await protocol.ask_soon("INFO", "replication"))
        if info["role"] != "master":
            protocol.give_up("is no primary any more")
        elif info["master_replid"] != self._history:
            protocol.give_up("has another history of its data than before")
        else:
            if self._confirmer is not None:
                self._confirmer.note(info)
            await self._look_further(protocol)

    def _not_told(self, failure: Failure) -> None:
        # The connection was lost, or a long script of somebody's keeps the server from answering.
        if not failure.check(StoreUnavailableError, RedisReplyError):
            self._log.failure("Redis could not be asked who it is", failure=failure)

    def _set_clock(self, time: list[str]) -> None:
        self._server_ahead_s = int(time[0]) + int(time[1]) / 1_000_000 - self._reactor.seconds()


async def _end(protocol: RedisProtocol) -> None:
    """Hang up, and wait until that is done."""
    if protocol.connected:
        gone = protocol.whenDisconnected()
        protocol.hang_up()
        await gone

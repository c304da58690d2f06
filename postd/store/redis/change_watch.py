"""Notice the changes of posts that other nodes make, by a connection that waits for the next entry of the change log.

`XREAD BLOCK` waits at the server: nothing is sent while nothing changes, and an entry that was added while there was no
connection is reported at once by the next one. So no change is missed, as with pub/sub. The connection lasts as long as
the main one beside it, which notices a server that hangs or is demoted; the main one also reads the revision each
second, for when this one cannot be made.
"""

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - Twisted's
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor, Work
from postd.store.redis.connection import RedisProtocol, RedisReplyError
from postd.store.redis.scripts import KEYS

BLOCK_S = 20
"""How long a command waits: a connection without traffic may be cut off by a firewall, unnoticed."""

ANSWER_MAX_S = 5
"""How much later its reply may come."""

NEXT_AFTER_S = 0.01
"""The delay after a change before the next one is waited for: many changes take few commands."""

RETRY_AFTER_S = 0.5

REFUSED_RETRY_AFTER_S = 30
"""The delay after a refusal: the permission may be given while the server runs."""

_log = Logger()


class ChangeWatch:
    """Calls a function when there may be changes, until `stop`.

    Args:
        connect: makes a connection to the primary.
        latest: returns the latest revision that this process knows.
        changed: the function.
        note_refusal: is called with the server's error if it refuses the command, with "" when it has answered.
    """

    def __init__(
        self,
        connect: Callable[[], Work[RedisProtocol]],
        latest: Callable[[], int],
        changed: Callable[[], None],
        note_refusal: Callable[[str], None],
        reactor: IReactor,
    ) -> None:
        self._connect = connect
        self._latest = latest
        self._changed = changed
        self._note_refusal = note_refusal
        self._reactor = reactor
        self._protocol: RedisProtocol | None = None
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._failed)

    def reconnect(self) -> None:
        """Drop the connection, and make another one: the primary may be another server."""
        if self._protocol is not None:
            self._protocol.drop("is replaced")

    def stop(self) -> None:
        self._running.cancel()

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            _log.failure("store: changes of other nodes are noticed late, after an unexpected error", failure=failure)

    async def _run(self) -> None:
        while True:
            retry_after_s: float = RETRY_AFTER_S
            try:
                self._protocol = await self._connect()
                try:
                    await self._watch(self._protocol)
                finally:
                    self._protocol.close()
            except RedisReplyError as error:
                if error.is_refusal:
                    self._note_refusal(error.text)
                    retry_after_s = REFUSED_RETRY_AFTER_S
            except (StoreRefusedError, StoreUnavailableError, TimeoutError):
                pass  # logged for the main connection
            await deferLater(self._reactor, retry_after_s)

    async def _watch(self, protocol: RedisProtocol) -> None:
        last = 0
        while True:
            last = max(last, self._latest())
            command = ("XREAD", "BLOCK", BLOCK_S * 1000, "COUNT", 1, "STREAMS", KEYS["CHANGES"], f"{last}-0")
            reply = protocol.send(*command, deadline=self._reactor.seconds() + BLOCK_S)
            found = await reply.addTimeout(BLOCK_S + ANSWER_MAX_S, self._reactor)
            self._note_refusal("")
            if found:
                last = int(found[0][1][0][0].partition("-")[0])
                self._changed()
                await deferLater(self._reactor, NEXT_AFTER_S)

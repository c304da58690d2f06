"""Has a replica what was written? Asked beside what goes on, for many writes together.

A primary acknowledges what it has itself; its replicas have it a little later. If it dies in between, sentinels put a
replica in its place that lacks what was acknowledged. WAIT tells how many replicas have all that one connection has
written (https://redis.io/docs/latest/commands/wait/), and keeps everything else on that connection waiting. So it has
one of its own, and writes there, after what is to be confirmed and therefore behind it in the one order in which
replicas receive all writes.
"""

import re

from twisted.internet.defer import Deferred, FirstError, gatherResults

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.store.redis.connection import Info, RedisProtocol, RedisReplyError
from postd.store.redis.scripts import load_script

WAIT_MAX_MS = 500
"""How long a replica may take."""

LAG_MAX_S = 2
"""For how long a replica may have told nothing and still count as one, where the server does not decide that
(`min-replicas-to-write`, see etc/redis.conf.example)."""

_CONFIRM = load_script("confirm")

_REPLICA = re.compile(r"slave[0-9]+")
_GOOD_LAGS = {str(lag) for lag in range(LAG_MAX_S + 1)}


class ReplicaConfirmation:
    """Asks one question at a time; who comes meanwhile has part in the next.

    Args:
        protocol: a connection of its own.
    """

    def __init__(self, protocol: RedisProtocol) -> None:
        self.protocol = protocol
        self._has_replicas = False
        self.is_busy = False
        self._give_up_at = 0.0
        self._waiting: list[Deferred[None]] = []

    def note(self, info: Info) -> None:
        """Note whether there are replicas, or must be: a server that refuses writes without any tells of them."""
        enforced = "min_slaves_good_slaves" in info
        self._has_replicas = enforced or any(
            _REPLICA.fullmatch(name) and _is_good(value) for name, value in info.items()
        )

    async def confirm(self, *, give_up_at: float) -> None:
        """Return when a replica has all that was written until now; at once, if there is none.

        Raises:
            StoreUnavailableError: none says that it has.
        """
        if self._has_replicas:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            self._give_up_at = give_up_at
            if not self.is_busy:
                self.is_busy = True
                Deferred.fromCoroutine(self._ask_while_some_wait())
            await waiting

    async def _ask_while_some_wait(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            why = await self._ask()
            for one in waiting:
                if why:
                    one.errback(StoreUnavailableError(why))
                else:
                    one.callback(None)
        self.is_busy = False

    async def _ask(self) -> str:
        """Return why nothing is confirmed, empty if it is."""
        try:
            written = self.protocol.ask("EVAL", _CONFIRM.text, 0, give_up_at=self._give_up_at)
            answer = self.protocol.ask("WAIT", 1, WAIT_MAX_MS, give_up_at=self._give_up_at)
            _, confirmed = await gatherResults([written, answer], consumeErrors=True)
        except FirstError as first:
            error = first.subFailure.value
            return str(error.as_store_error(self.protocol.where) if isinstance(error, RedisReplyError) else error)
        except (StoreRefusedError, StoreUnavailableError) as error:
            return error.why
        return "" if confirmed else f"{self.protocol.where}: no replica has the last writes yet"


def _is_good(replica: str) -> bool:
    """Decode what INFO says of a replica: `ip=…,port=…,state=online,offset=…,lag=1`."""
    told = dict(part.partition("=")[::2] for part in replica.split(","))
    return told.get("state") == "online" and told.get("lag") in _GOOD_LAGS

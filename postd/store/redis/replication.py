"""Confirm that a replica has the writes, on a connection beside the main one, for many writes together.

A primary acknowledges a write before its replicas have it. If the primary dies in between, sentinels promote a replica
that lacks an acknowledged write. WAIT returns how many replicas have all writes of one connection
(https://redis.io/docs/latest/commands/wait/), and blocks that connection until then. So WAIT has a connection of its
own. A small write on this connection follows the writes to be confirmed: replicas receive all writes in one order.
"""

import re

from twisted.internet.defer import Deferred, FirstError, gatherResults

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.store.redis.connection import Info, RedisProtocol, RedisReplyError
from postd.store.redis.scripts import load_script

WAIT_MAX_MS = 500
"""How long a replica may take."""

LAG_MAX_S = 2
"""A replica counts as one if its last acknowledgement is no older, unless the server checks that itself
(`min-replicas-to-write`, see etc/redis.conf.example)."""

_CONFIRM = load_script("confirm")

_REPLICA = re.compile(r"slave[0-9]+")
_GOOD_LAGS = {str(lag) for lag in range(LAG_MAX_S + 1)}


class ReplicaConfirmation:
    """Sends one WAIT at a time; requests that arrive during it share the next.

    Attributes:
        is_busy: whether a WAIT is pending.
    """

    def __init__(self, protocol: RedisProtocol) -> None:
        self.protocol = protocol
        self._has_replicas = False
        self.is_busy = False
        self._deadline = 0.0
        self._waiting: list[Deferred[None]] = []

    def note_replicas(self, info: Info) -> None:
        """Note whether there are replicas, or must be, because the server refuses writes without any."""
        enforced = "min_slaves_good_slaves" in info
        self._has_replicas = enforced or any(
            _REPLICA.fullmatch(name) and _is_good(value) for name, value in info.items()
        )

    async def confirm(self, *, deadline: float) -> None:
        """Return when a replica has all writes until now; at once, if there are no replicas.

        Raises:
            StoreUnavailableError: no replica confirms it before the deadline, which is by the reactor's clock.
        """
        if self._has_replicas:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            self._deadline = deadline
            if not self.is_busy:
                self.is_busy = True
                Deferred.fromCoroutine(self._run())
            await waiting

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            why = await self._wait()
            for waiter in waiting:
                if why:
                    waiter.errback(StoreUnavailableError(why))
                else:
                    waiter.callback(None)
        self.is_busy = False

    async def _wait(self) -> str:
        """Return why the writes are not confirmed, empty if they are."""
        try:
            written = self.protocol.send("EVAL", _CONFIRM.text, 0, deadline=self._deadline)
            replicas = self.protocol.send("WAIT", 1, WAIT_MAX_MS, deadline=self._deadline)
            _, confirmed = await gatherResults([written, replicas], consumeErrors=True)
        except FirstError as first:
            error = first.subFailure.value
            return str(error.as_store_error(self.protocol.where) if isinstance(error, RedisReplyError) else error)
        except (StoreRefusedError, StoreUnavailableError) as error:
            return error.why
        return "" if confirmed else f"{self.protocol.where}: no replica has the last writes yet"


def _is_good(replica: str) -> bool:
    """Return whether a replica keeps up, by its entry in INFO: `ip=…,port=…,state=online,offset=…,lag=1`."""
    fields = dict(part.partition("=")[::2] for part in replica.split(","))
    return fields.get("state") == "online" and fields.get("lag") in _GOOD_LAGS

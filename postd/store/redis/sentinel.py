"""Find the primary through its sentinels (https://redis.io/docs/latest/develop/reference/sentinel-clients/)."""

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.redis.connecting import authenticate, open_connection, read_password
from postd.store.redis.connection import RedisProtocol, RedisReplyError
from postd.store.redis.url import Host, RedisAddress

OTHERS_MAX_S = 0.1
"""How long the other sentinels may take once one has answered."""

_POLL_EVERY_S = 0.005


async def find_server(address: RedisAddress, *, reactor: IReactor) -> Host | None:
    """Return the server at an address, which sentinels may have to name; None for a UNIX socket.

    All sentinels are asked at the same time, so that unavailable ones cause hardly any delay. If two disagree, one does
    not know the last failover yet: the one with the largest number of failovers is right.

    Raises:
        StoreRefusedError: all sentinels refuse us.
        StoreUnavailableError: no sentinel knows a primary.
    """
    if not address.primary:
        return address.hosts[0] if address.hosts else None
    outcomes: list[tuple[int, Host] | StoreRefusedError | StoreUnavailableError] = []
    asking = [
        Deferred.fromCoroutine(_ask_sentinel(address, sentinel, reactor))
        .addErrback(_as_outcome)
        .addCallback(outcomes.append)
        for sentinel in address.hosts
    ]
    try:
        deadline = float("inf")
        while len(outcomes) < len(asking) and reactor.seconds() < deadline:
            await deferLater(reactor, _POLL_EVERY_S)
            if deadline == float("inf") and any(isinstance(outcome, tuple) for outcome in outcomes):
                deadline = reactor.seconds() + OTHERS_MAX_S
    finally:
        for attempt in asking:
            attempt.cancel()
    found = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
    if found:
        return max(found, key=lambda outcome: outcome[0])[1]
    errors = [outcome for outcome in outcomes if not isinstance(outcome, tuple)]
    kind = StoreRefusedError if all(isinstance(error, StoreRefusedError) for error in errors) else StoreUnavailableError
    raise kind("; ".join(error.why for error in errors))


def _as_outcome(failure: Failure) -> StoreRefusedError | StoreUnavailableError:
    if failure.check(CancelledError):  # its outcome is not used
        return StoreUnavailableError("cancelled")
    failure.trap(StoreRefusedError, StoreUnavailableError)
    error: StoreRefusedError | StoreUnavailableError = failure.value  # type: ignore[assignment]
    return error


async def _ask_sentinel(address: RedisAddress, sentinel: Host, reactor: IReactor) -> tuple[int, Host]:
    """Return how many failovers a sentinel knows of, and the primary that it names."""
    password = read_password(address)
    protocol = await open_connection(address, sentinel, f"sentinel {sentinel}", reactor)
    query = ("SENTINEL", "get-master-addr-by-name", address.primary)
    try:
        try:
            found = await protocol.call(*query)
        except RedisReplyError as error:
            # A sentinel without a password refuses one: only a sentinel that demands one gets ours.
            if error.code != "NOAUTH" or not password:
                raise
            await authenticate(protocol, address, password)
            found = await protocol.call(*query)
        if not found:
            raise StoreUnavailableError(f"{protocol.where}: does not monitor a primary {address.primary!r}")
        epoch = await _ask_epoch(protocol, address.primary)
    except RedisReplyError as error:
        if "unknown command" in error.text:
            raise StoreRefusedError(f"{protocol.where}: is no sentinel") from None
        raise error.as_store_error(protocol.where) from None
    finally:
        protocol.close()
    return epoch, Host(str(found[0]), int(found[1]))


async def _ask_epoch(protocol: RedisProtocol, primary: str) -> int:
    """Return how many failovers a sentinel knows of, 0 if we have no permission to ask."""
    try:
        state = await protocol.call("SENTINEL", "MASTER", primary)
    except RedisReplyError:
        return 0
    return int(dict(zip(state[::2], state[1::2], strict=True))["config-epoch"])

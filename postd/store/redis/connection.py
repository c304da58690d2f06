"""One connection to a Redis server, by txredisapi's protocol; finding the server by its sentinels.

Of txredisapi this is the protocol alone. Its connection handlers queue what is asked for while there is no connection,
without a bound and without a deadline, and execute it when there is one again, long after the client was told of an
error; a handshake that fails stops them for good; their TLS accepts any certificate. So connecting and connecting
again is our own business (`redis_link`).
"""

import os
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hiredis
import txredisapi
from OpenSSL import SSL, crypto
from service_identity import VerificationError
from twisted.internet.defer import (
    CancelledError,
    Deferred,
    TimeoutError,  # noqa: A004 - Twisted's
    succeed,
)
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.ssl import Certificate, optionsForClientTLS, platformTrust, trustRootFromCertificates
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from postd.errors import StoreFullError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor
from postd.store.redis.url import Host, RedisAddress

CONNECT_MAX_S = 0.5
"""How long a server or a sentinel may take to be connected to, and to give each answer until we are ready."""

EXTENSION_MAX_S = 1.5
"""How much longer an answer is waited for in all, and after the last stall, where this process has stood still."""

OTHERS_MAX_S = 0.1
"""How long the other sentinels may take when one has answered."""

_HEARD_LOOK_EVERY_S = 0.005

_BEGIN = b"-----BEGIN CERTIFICATE-----"

_ERRORS: Mapping[str, type[StoreRefusedError | StoreUnavailableError]] = {
    # These stay until the settings of the server or of postd are changed.
    "NOPERM": StoreRefusedError,
    "ACL failure in script": StoreRefusedError,  # its NOPERM: Redis 7.2 and newer, Valkey
    "The user executing the script can't": StoreRefusedError,  # the same, Redis 6.2 and 7.0
    "NOAUTH": StoreRefusedError,
    "WRONGPASS": StoreRefusedError,
    "WRONGTYPE": StoreRefusedError,
    "unknown command": StoreRefusedError,  # it was renamed, or there is no such command
    "Unknown command": StoreRefusedError,  # the same in a script, Valkey
    "Unknown Redis command": StoreRefusedError,  # Redis
    # No room.
    "OOM": StoreFullError,
    "FULL": StoreFullError,
    # What passes.
    "NOSCRIPT": StoreUnavailableError,
    "LOADING": StoreUnavailableError,
    "BUSY": StoreUnavailableError,
    "MASTERDOWN": StoreUnavailableError,
    "READONLY": StoreUnavailableError,
    "NOREPLICAS": StoreUnavailableError,
    "MISCONF": StoreUnavailableError,
    "max number of clients reached": StoreUnavailableError,
    # Those of our own scripts.
    "LATE": StoreUnavailableError,
    "GONE": StoreUnavailableError,
}
"""What errors of Redis 6.2 to 8 and Valkey 7.2 to 9 mean, by the words that tell their kind.

All but the last two are raised alike by a command and by a command in a script, unless two spellings are given.
"""

_CODE = re.compile(rf"\b(?:{'|'.join(map(re.escape, _ERRORS))})\b")
_WHERE_IN_SCRIPT = re.compile(r"\.? script: (?:[0-9a-f]{40}, )?on @user_script:\d+")
"""What errors in scripts end with, from Redis 7 on, without the digest from Valkey 9 on: one trouble would be another
in each script that meets it."""
_ARGUMENTS = re.compile(r", with args beginning with: .*", re.DOTALL)


Info = Mapping[str, str]
"""What a server says of itself (https://redis.io/docs/latest/commands/info/)."""


def decode_info(text: str) -> Info:
    """Decode the answer to INFO: lines of a name, a colon and a value, and comments."""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))


class RedisReplyError(Exception):
    """The server answered with an error.

    Attributes:
        code: the words that tell its kind, a key of `_ERRORS`; empty for one that we don't know.
        text: what it says, from these words on, without what differs from script to script.
        is_refusal: whether it stays until settings are changed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        text = _ARGUMENTS.sub("", _WHERE_IN_SCRIPT.sub("", text))
        # Redis 6 wraps what a script has met into an error of its own: the word stands somewhere in it.
        found = _CODE.search(text)
        self.code = found[0] if found else ""
        self.text = " ".join(text[found.start() if found else 0 :].split()).removesuffix(".")
        self._kind = _ERRORS.get(self.code, StoreUnavailableError)  # one that we don't know may pass
        self.is_refusal = self._kind is StoreRefusedError

    def as_store_error(self, where: str) -> StoreRefusedError | StoreUnavailableError:
        """Put the error into our words."""
        return self._kind(f"{where}: {self.text}")


class RedisProtocol(txredisapi.HiredisProtocol):  # type: ignore[misc] # has no types
    """A connection that knows until when each of its answers is waited for, and how many have come.

    Args:
        where: names the server in messages.
        reactor: has the clock.
    """

    def __init__(self, where: str, reactor: IReactor) -> None:
        super().__init__(charset="utf-8", convertNumbers=False)
        # Decoded where it is parsed; nothing that we store is anything but UTF-8.
        self._reader = hiredis.Reader(
            protocolError=txredisapi.InvalidData,
            replyError=txredisapi.ResponseError,
            encoding="utf-8",
            errors="replace",
        )
        self.where = where
        self._reactor = reactor
        self.give_up_at: deque[float] = deque()
        self._extended_below: deque[float] = deque()  # for each of them: when it has been extended enough
        self.answered = 0
        self._lost: type[StoreRefusedError | StoreUnavailableError] | None = None
        self.why_lost = ""

    def ask(self, *command: object, give_up_at: float) -> Deferred[Any]:
        """Send a command; the Deferred fires with the answer.

        Args:
            command: its name and its arguments, which are text, bytes or whole numbers.
            give_up_at: until when somebody waits for the answer; for whoever looks at `give_up_at`.

        Raises:
            StoreUnavailableError: the connection is lost, before or meanwhile.
            StoreRefusedError: it is, because their certificate is not one that we trust.
            RedisReplyError: the answer is an error.
        """
        if self._lost is not None:
            raise self._lost(self.why_lost)
        self.give_up_at.append(give_up_at)
        self._extended_below.append(give_up_at + EXTENSION_MAX_S)
        answer: Deferred[Any] = self.execute_command(*command)
        return answer.addErrback(self._translate)

    async def ask_soon(self, *command: object) -> Any:
        """Return the answer to a question that belongs to getting ready.

        Raises:
            StoreUnavailableError: it does not come soon. The connection is of no use any more.
            StoreRefusedError, RedisReplyError: as for `ask`.
        """
        answer = self.ask(*command, give_up_at=self._reactor.seconds() + CONNECT_MAX_S)
        return await _within(answer, self.where, self._reactor)

    def whenDisconnected(self) -> Deferred[Any]:
        """Return what fires when the connection is lost; at once, if it is already. txredisapi's would never fire."""
        return super().whenDisconnected() if self.connected else succeed(self)

    def is_late(self, now: float) -> bool:
        """Tell whether the next answer should have come by now."""
        return bool(self.give_up_at) and self.give_up_at[0] <= now

    def extend_deadlines(self, seconds: float, now: float) -> None:
        """Wait that much longer for each answer that is waited for, within bounds.

        None is waited for longer than `EXTENSION_MAX_S` from now. A deadline that was moved by `EXTENSION_MAX_S` or
        more stays: else a process whose turns are all long would never give up a server that is silent.
        """
        latest = now + EXTENSION_MAX_S
        self.give_up_at = deque(
            max(give_up_at, min(give_up_at + seconds, latest)) if give_up_at < below else give_up_at
            for give_up_at, below in zip(self.give_up_at, self._extended_below, strict=True)
        )

    def give_up(self, why: str) -> None:
        """Fail all that waits, and what is asked from now on, for a reason."""
        self._note_loss(StoreUnavailableError, why)
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection at once."""
        self.transport.abortConnection()

    def tryConvertData(self, data: object) -> object:
        """Called with each value that was received."""
        return data

    def replyReceived(self, reply: object) -> None:
        """Called with each answer; they come in the order of the questions."""
        self.answered += 1
        if self.give_up_at:
            self.give_up_at.popleft()
            self._extended_below.popleft()
        super().replyReceived(reply)

    def dataReceived(self, data: bytes, unpause: bool = False) -> None:  # noqa: FBT001, FBT002 - txredisapi's
        try:
            super().dataReceived(data, unpause)
        except txredisapi.InvalidData:
            self.give_up("does not answer as Redis does")

    def connectionLost(self, why: Failure = connectionDone) -> None:
        if why.check(VerificationError) or (why.check(SSL.Error) and "certificate verify failed" in str(why.value)):
            self._note_loss(StoreRefusedError, "its certificate is not to be trusted, or is another host's")
        elif why.check(SSL.Error):
            self._note_loss(StoreUnavailableError, "does not speak TLS as it should")
        else:
            self._note_loss(StoreUnavailableError, "the connection was lost")
        super().connectionLost(why)

    def _note_loss(self, kind: type[StoreRefusedError | StoreUnavailableError], why: str) -> None:
        """Keep the first reason; the others follow from it."""
        if self._lost is None:
            self._lost, self.why_lost = kind, f"{self.where}: {why}"

    def _translate(self, failure: Failure) -> Failure:
        if failure.check(txredisapi.ResponseError):
            raise RedisReplyError(str(failure.value)) from None
        if failure.check(txredisapi.ConnectionError):
            assert self._lost is not None
            raise self._lost(self.why_lost) from None
        return failure


async def find_server(address: RedisAddress, *, reactor: IReactor) -> Host | None:
    """Return which server is the primary at an address, by what sentinels say of it now; None for a UNIX socket.

    All are asked together. Those that say nothing cost next to no time, and where two do not agree one has not heard of
    the last failover yet: the latest is believed.

    Raises:
        StoreRefusedError: no sentinel takes us.
        StoreUnavailableError: no sentinel knows.
    """
    if not address.primary:
        return address.hosts[0] if address.hosts else None
    told: list[tuple[int, Host] | StoreRefusedError | StoreUnavailableError] = []
    asking = [
        Deferred.fromCoroutine(_ask_sentinel(address, sentinel, reactor))
        .addErrback(_as_outcome)
        .addCallback(told.append)
        for sentinel in address.hosts
    ]
    try:
        enough_at = float("inf")
        while len(told) < len(asking) and reactor.seconds() < enough_at:
            await deferLater(reactor, _HEARD_LOOK_EVERY_S)
            if enough_at == float("inf") and any(isinstance(one, tuple) for one in told):
                enough_at = reactor.seconds() + OTHERS_MAX_S
    finally:
        for one in asking:
            one.cancel()
    found = [one for one in told if isinstance(one, tuple)]
    if found:
        return max(found, key=lambda one: one[0])[1]
    errors = [one for one in told if not isinstance(one, tuple)]
    kind = StoreRefusedError if all(isinstance(one, StoreRefusedError) for one in errors) else StoreUnavailableError
    raise kind("; ".join(one.why for one in errors))


def _as_outcome(failure: Failure) -> StoreRefusedError | StoreUnavailableError:
    if failure.check(CancelledError):  # nobody wants to know any more
        return StoreUnavailableError("not asked to the end")
    failure.trap(StoreRefusedError, StoreUnavailableError)
    error: StoreRefusedError | StoreUnavailableError = failure.value  # type: ignore[assignment]
    return error


async def connect(address: RedisAddress, host: Host | None, *, reactor: IReactor) -> RedisProtocol:
    """Connect to the server that was found at an address, and say who we are.

    Raises:
        StoreRefusedError: it does not take us: our password is wrong, say, or it is a replica.
        StoreUnavailableError: it cannot be had now.
    """
    password = _read_password(address)
    where = f"{host}, the primary {address.primary!r}" if address.primary else address.description
    protocol = await _open(_make_endpoint(address, host, reactor), where, reactor)
    try:
        if password or address.user:  # who may have none
            await _introduce(protocol, address, password)
        if address.db:
            await _or_refuse(protocol, "SELECT", address.db)
        await _check_role(protocol, by_sentinel=bool(address.primary))
    except RedisReplyError as error:
        protocol.hang_up()
        raise error.as_store_error(where) from None
    except BaseException:
        protocol.hang_up()
        raise
    return protocol


def _read_password(address: RedisAddress) -> str:
    """Return the password; the file is read for each connection, so that a new password is taken up."""
    if not address.password_file:
        return address.password
    try:
        lines = Path(address.password_file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StoreRefusedError(f"{address.password_file}: the password cannot be read: {why}") from None
    password = lines[0].strip() if lines else ""
    if not password:
        raise StoreRefusedError(f"{address.password_file}: has no password in its first line")
    return password


async def _introduce(protocol: RedisProtocol, address: RedisAddress, password: str) -> None:
    await _or_refuse(protocol, "AUTH", *((address.user,) if address.user else ()), password)


async def _or_refuse(protocol: RedisProtocol, *command: object) -> None:
    """Take an error for a refusal: there is no code for a password where none is set, nor for a wrong database."""
    try:
        await protocol.ask_soon(*command)
    except RedisReplyError as error:
        raise error if error.code else StoreRefusedError(f"{protocol.where}: {error.text}") from None


async def _check_role(protocol: RedisProtocol, *, by_sentinel: bool) -> None:
    role = (await protocol.ask_soon("ROLE"))[0]
    if role == "master":
        return
    if by_sentinel:  # they are a little behind, or it is
        raise StoreUnavailableError(f"{protocol.where}: is no primary")
    if role == "sentinel":
        raise StoreRefusedError(f"{protocol.where}: is a sentinel; write redis+sentinel://HOST:PORT/PRIMARY")
    raise StoreRefusedError(f"{protocol.where}: is a replica, which cannot be written to; name the primary")


async def _ask_sentinel(address: RedisAddress, sentinel: Host, reactor: IReactor) -> tuple[int, Host]:
    """Return the primary, and how many failovers the sentinel knows of."""
    password = _read_password(address)
    protocol = await _open(_make_endpoint(address, sentinel, reactor), f"sentinel {sentinel}", reactor)
    question = ("SENTINEL", "get-master-addr-by-name", address.primary)
    try:
        try:
            found = await protocol.ask_soon(*question)
        except RedisReplyError as error:
            # A sentinel may have no password, and refuses one then: only one that asks for it is told ours.
            if error.code != "NOAUTH" or not password:
                raise
            await _introduce(protocol, address, password)
            found = await protocol.ask_soon(*question)
        if not found:
            raise StoreUnavailableError(f"{protocol.where}: knows no primary {address.primary!r}")
        epoch = await _ask_epoch(protocol, address.primary)
    except RedisReplyError as error:
        if "unknown command" in error.text:
            raise StoreRefusedError(f"{protocol.where}: is no sentinel") from None
        raise error.as_store_error(protocol.where) from None
    finally:
        protocol.hang_up()
    return epoch, Host(str(found[0]), int(found[1]))


async def _ask_epoch(protocol: RedisProtocol, primary: str) -> int:
    """Return how many failovers a sentinel knows of, 0 if we may not know."""
    try:
        state = await protocol.ask_soon("SENTINEL", "MASTER", primary)
    except RedisReplyError:
        return 0
    return int(dict(zip(state[::2], state[1::2], strict=True))["config-epoch"])


def _make_endpoint(address: RedisAddress, host: Host | None, reactor: IReactor) -> IStreamClientEndpoint:
    if host is None:
        return UNIXClientEndpoint(reactor, address.path, timeout=CONNECT_MAX_S)
    endpoint = HostnameEndpoint(reactor, host.name, host.port, timeout=CONNECT_MAX_S, attemptDelay=0.1)
    if not address.tls:
        return endpoint
    trust = _read_roots(address.ca_file) if address.ca_file else platformTrust()
    # Without the clock small writes would wait for the process's own reactor, which may not run yet
    # (postd.store.run_blocking).
    return wrapClientTLS(optionsForClientTLS(host.name, trustRoot=trust), endpoint, clock=reactor)


def _read_roots(ca_file: str) -> Any:
    """Return whom alone to trust; read for each connection, as the password is."""
    try:
        parts = Path(ca_file).read_bytes().split(_BEGIN)[1:]
        certificates = [Certificate.loadPEM(_BEGIN + part) for part in parts]
    except OSError as error:
        raise StoreRefusedError(f"{ca_file}: cannot be read: {error.strerror}") from None
    except crypto.Error:
        certificates = []
    if not certificates:
        raise StoreRefusedError(f"{ca_file}: has no certificates in PEM form")
    return trustRootFromCertificates(certificates)


async def _open(endpoint: IStreamClientEndpoint, where: str, reactor: IReactor) -> RedisProtocol:
    factory = Factory.forProtocol(lambda: RedisProtocol(where, reactor))
    factory.noisy = False
    connecting = endpoint.connect(factory)
    try:
        protocol: RedisProtocol = await _within(connecting, where, reactor)
    except (CancelledError, StoreUnavailableError):
        raise
    except ConnectingCancelledError:
        raise StoreUnavailableError(f"{where}: does not answer") from None
    except Exception as error:  # noqa: BLE001 - whatever connecting, or looking up a name, may meet
        raise StoreUnavailableError(f"{where}: {_words(error)}") from None
    return protocol


def _words(error: Exception) -> str:
    number = getattr(error, "osError", None)
    return os.strerror(number) if isinstance(number, int) else " ".join(str(error).split()) or type(error).__name__


async def _within(waiting: Deferred[Any], where: str, reactor: IReactor) -> Any:
    try:
        return await waiting.addTimeout(CONNECT_MAX_S, reactor)
    except TimeoutError:
        raise StoreUnavailableError(f"{where}: does not answer") from None

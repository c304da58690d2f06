"""One connection to a Redis server, with a deadline for each reply, and the meaning of the server's errors.

Only the protocol of txredisapi is used. Its connection handlers queue commands while there is no connection, without a
limit or a deadline, and execute them after a reconnect, long after they were reported as failed; a failed handshake
stops them for good; their TLS accepts any certificate. `connecting` and `reconnecting` replace them.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import hiredis
import txredisapi
from OpenSSL import SSL
from service_identity import VerificationError
from twisted.internet.defer import (
    Deferred,
    TimeoutError,  # noqa: A004 - Twisted's
    succeed,
)
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from postd.errors import StoreFullError, StoreRefusedError, StoreUnavailableError
from postd.reactor import IReactor

CONNECT_MAX_S = 0.5
"""Timeout of connecting to a server or a sentinel, and of each command that `call` sends."""

EXTENSION_MAX_S = 1.5
"""How far stalls of this process may move a deadline in all, and how far after the last stall it may be."""

_ERRORS: Mapping[str, type[StoreRefusedError | StoreUnavailableError]] = {
    # Permanent, until the settings of the server or of postd are changed.
    "NOPERM": StoreRefusedError,
    "ACL failure in script": StoreRefusedError,  # its NOPERM: Redis 7.2 and newer, Valkey
    "The user executing the script can't": StoreRefusedError,  # the same, Redis 6.2 and 7.0
    "NOAUTH": StoreRefusedError,
    "WRONGPASS": StoreRefusedError,
    "WRONGTYPE": StoreRefusedError,
    "unknown command": StoreRefusedError,  # renamed, or there is no such command
    "Unknown command": StoreRefusedError,  # the same in a script, Valkey
    "Unknown Redis command": StoreRefusedError,  # Redis
    # No memory left, or no id.
    "OOM": StoreFullError,
    "FULL": StoreFullError,
    # Temporary.
    "NOSCRIPT": StoreUnavailableError,
    "LOADING": StoreUnavailableError,
    "BUSY": StoreUnavailableError,
    "MASTERDOWN": StoreUnavailableError,
    "READONLY": StoreUnavailableError,
    "NOREPLICAS": StoreUnavailableError,
    "MISCONF": StoreUnavailableError,
    "max number of clients reached": StoreUnavailableError,
    # Raised by the scripts of postd.
    "LATE": StoreUnavailableError,
    "GONE": StoreUnavailableError,
}
"""The meaning of the errors of Redis 6.2 to 8 and Valkey 7.2 to 9, by the words that identify them.

Except for the last two, a command and the same command in a script have the same words, unless two spellings are given.
"""

_CODE = re.compile(rf"\b(?:{'|'.join(map(re.escape, _ERRORS))})\b")
_PLACE_IN_SCRIPT = re.compile(r"\.? script: (?:[0-9a-f]{40}, )?on @user_script:\d+")
"""The end of errors in scripts, since Redis 7, without the digest since Valkey 9. With it, the log would repeat one
problem for each script."""
_ARGUMENTS = re.compile(r", with args beginning with: .*", re.DOTALL)


Info = Mapping[str, str]
"""The properties of a server (https://redis.io/docs/latest/commands/info/)."""


def decode_info(text: str) -> Info:
    """Decode the reply to INFO: lines of a name, a colon and a value, and comments."""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))


class RedisReplyError(Exception):
    """The reply of a server is an error.

    Attributes:
        code: the words that identify the error, a key of `_ERRORS`; empty for an unknown error.
        text: the message from the words of `code` on, without the parts that differ from script to script.
        is_refusal: whether the error is permanent until settings are changed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        text = _ARGUMENTS.sub("", _PLACE_IN_SCRIPT.sub("", text))
        # Redis 6 wraps an error in a script into another one: the code is somewhere in it.
        found = _CODE.search(text)
        self.code = found[0] if found else ""
        self.text = " ".join(text[found.start() if found else 0 :].split()).removesuffix(".")
        self._kind = _ERRORS.get(self.code, StoreUnavailableError)  # an unknown error may be temporary
        self.is_refusal = self._kind is StoreRefusedError

    def as_store_error(self, where: str) -> StoreRefusedError | StoreUnavailableError:
        """Return the error of a store for this error."""
        return self._kind(f"{where}: {self.text}")


class RedisProtocol(txredisapi.BaseRedisProtocol):  # type: ignore[misc] # has no types
    """A connection that keeps the deadline of each pending reply, and counts the replies.

    Args:
        where: names the server in messages.

    Attributes:
        deadlines: of the pending replies, in their order, by the reactor's clock.
        replies: how many have arrived.
        why_lost: why the connection was lost, after `where`; empty while it is not.
    """

    def __init__(self, where: str, reactor: IReactor) -> None:
        super().__init__(charset="utf-8", convertNumbers=False)
        # Decodes where it parses; all values that the store keeps are UTF-8.
        self._replies = hiredis.Reader(
            protocolError=txredisapi.InvalidData,
            replyError=txredisapi.ResponseError,
            encoding="utf-8",
            errors="replace",
        )
        self.where = where
        self._reactor = reactor
        self.deadlines: deque[float] = deque()
        self._extended_below: deque[float] = deque()  # for each deadline: a later one is not extended any more
        self.replies = 0
        self._lost: type[StoreRefusedError | StoreUnavailableError] | None = None
        self.why_lost = ""

    def send(self, *command: object, deadline: float) -> Deferred[Any]:
        """Send a command; the Deferred fires with the reply.

        Args:
            command: its name and its arguments, which are text, bytes or whole numbers.
            deadline: of the reply, by the reactor's clock. It is only noted in `deadlines`.

        Raises:
            StoreUnavailableError: the connection is lost before the reply.
            StoreRefusedError: it is lost because the certificate of the server is not trusted.
            RedisReplyError: the reply is an error.
        """
        if self._lost is not None:
            raise self._lost(self.why_lost)
        self.deadlines.append(deadline)
        self._extended_below.append(deadline + EXTENSION_MAX_S)
        reply = self.execute_command(*command)
        return reply.addErrback(self._translate)

    async def call(self, *command: object) -> Any:
        """Return the reply to a command of a handshake or a check.

        Raises:
            StoreUnavailableError: also if there is no reply within `CONNECT_MAX_S`; then the connection is unusable.
            StoreRefusedError, RedisReplyError: as for `send`.
        """
        reply = self.send(*command, deadline=self._reactor.seconds() + CONNECT_MAX_S)
        return await wait_for(reply, self.where, self._reactor)

    def whenDisconnected(self) -> Deferred[Any]:
        """Return a Deferred that fires when the connection is lost, or at once if it is; txredisapi's never would."""
        return super().whenDisconnected() if self.connected else succeed(self)

    def extend_deadlines(self, seconds: float, now: float) -> None:
        """Move the deadlines of all pending replies, within bounds.

        None is moved further than `EXTENSION_MAX_S` from now. A deadline that was moved by `EXTENSION_MAX_S` or more
        stays: else a process whose iterations are all long would never drop a server that does not answer.
        """
        latest = now + EXTENSION_MAX_S
        self.deadlines = deque(
            max(deadline, min(deadline + seconds, latest)) if deadline < below else deadline
            for deadline, below in zip(self.deadlines, self._extended_below, strict=True)
        )

    def drop(self, why: str) -> None:
        """Close the connection, and fail all pending and later commands for a reason."""
        self._set_loss(StoreUnavailableError, why)
        self.close()

    def close(self) -> None:
        """Close the connection at once."""
        self.transport.abortConnection()

    def execute_command(self, *command: object) -> Deferred[object]:
        """Send a command as txredisapi does, but encode it in half the time: much of the time of a read."""
        values = [value if isinstance(value, bytes) else str(value).encode() for value in command]
        encoded = [b"*%d\r\n" % len(values), *[b"$%d\r\n%b\r\n" % (len(value), value) for value in values]]
        self.transport.write(b"".join(encoded))
        result: Deferred[object] = Deferred()

        def pass_on(reply: object) -> None:
            if not result.called:
                result.callback(Failure(reply) if isinstance(reply, Exception) else reply)

        # Not this Deferred itself: if it were cancelled, its reply would be taken for that to the next command.
        self.replyQueue.get().addBoth(pass_on)
        return result

    def replyReceived(self, reply: object) -> None:
        """Called with each reply; they have the order of the commands."""
        self.replies += 1
        if self.deadlines:
            self.deadlines.popleft()
            self._extended_below.popleft()
        super().replyReceived(reply)

    def dataReceived(self, data: bytes) -> None:
        # As `txredisapi.HiredisProtocol`, but for transactions, which are not used, and with our own reader.
        try:
            self._replies.feed(data)
            while (reply := self._replies.gets()) is not False:
                self.replyReceived(reply)
        except txredisapi.InvalidData:
            self.drop("replies are not in the Redis protocol")

    def connectionLost(self, why: Failure = connectionDone) -> None:
        if why.check(VerificationError) or (why.check(SSL.Error) and "certificate verify failed" in str(why.value)):
            self._set_loss(StoreRefusedError, "its certificate is not trusted, or is for another host")
        elif why.check(SSL.Error):
            self._set_loss(StoreUnavailableError, "TLS error")
        else:
            self._set_loss(StoreUnavailableError, "the connection was lost")
        super().connectionLost(why)

    def _set_loss(self, kind: type[StoreRefusedError | StoreUnavailableError], why: str) -> None:
        """Keep the first reason; later ones follow from it."""
        if self._lost is None:
            self._lost, self.why_lost = kind, f"{self.where}: {why}"

    def _translate(self, failure: Failure) -> Failure:
        if failure.check(txredisapi.ResponseError):
            raise RedisReplyError(str(failure.value)) from None
        if failure.check(txredisapi.ConnectionError):
            assert self._lost is not None
            raise self._lost(self.why_lost) from None
        return failure


async def wait_for(result: Deferred[Any], where: str, reactor: IReactor) -> Any:
    """Return the result of a Deferred that must fire within `CONNECT_MAX_S`.

    Raises:
        StoreUnavailableError: it did not.
    """
    try:
        return await result.addTimeout(CONNECT_MAX_S, reactor)
    except TimeoutError:
        raise StoreUnavailableError(f"{where}: does not answer") from None

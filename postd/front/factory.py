"""The factory of connections: limits on their number, their timeouts, and shutdown.

Stock `HTTPFactory` has no limits, and changes to a channel for HTTP/2 after ALPN. docs/explanation/front.md lists the
departures; `tests/front/test_connections.py` and `tests/front/test_shutdown.py` test them.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from operator import not_
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.web.http import datetimeToString
from twisted.web.resource import IResource
from twisted.web.server import Site

from postd.errors import ServerBusyError
from postd.front.access_log import AccessLog
from postd.front.allowed_hosts import Hosts
from postd.front.connection import HttpConnection
from postd.front.interface import AnsweredRequest, Limits
from postd.front.request_turns import RequestTurns
from postd.front.response_memory import ResponseMemory
from postd.http.interface import Request
from postd.http.views import refusal_by, view_of
from postd.monitoring.tally import Tally

SWEEP_MIN_S, SWEEP_MAX_S = 0.05, 1.0
"""Bounds on the interval at which timeouts of connections are checked: a quarter of the shortest timeout."""

IDLE_GRACE_S = 0.5
"""How long idle connections may still send a request when the server stops. If they were closed at once, a client that
is sending a request could not know whether it was executed."""

FULL_NOTE_S = 60
"""The interval of warnings of too many connections, in all and of one address."""

_log = Logger()


class _RefusedConnection(Protocol):
    """Aborts a connection over the limit: a factory that wraps this one needs a protocol, not None."""

    transport: Any

    def connectionMade(self) -> None:
        self.transport.abortConnection()


class HttpFactory(Site):
    """The factory of connections. Without `hosts` requests for any host are answered.

    `is_api` returns whether errors at a path are problem details; by default they are at the empty path of a request
    that cannot be decoded.

    Attributes:
        site_name: the name above the heading of error pages, "" for none.
        local_addresses: host and port of the listeners that only this machine can reach.
        bodiless_paths: the paths of resources that ignore the body of a request.
        draining: whether each response is the last of its connection.
        connections_max: the limit on connections, lower than that of the settings if descriptors are short.
    """

    reactor: IReactorTime
    noisy = False

    def __init__(  # noqa: PLR0913 - all but three have their defaults
        self,
        root: IResource,
        *,
        limits: Limits,
        hosts: Hosts | None = None,
        access_log: AccessLog | None = None,
        tally: Tally | None = None,
        is_api: Callable[[bytes], bool] = not_,
        reactor: IReactorTime,
    ) -> None:
        super().__init__(root, timeout=None, reactor=reactor)
        self.view, self.refuse = view_of(root), refusal_by(root)
        self.limits = limits
        self.hosts: Hosts | None = hosts
        self.is_api = is_api
        self.site_name = ""
        self.local_addresses: Collection[tuple[str, int]] = ()
        self.bodiless_paths: Collection[bytes] = ()
        self.connections_max = limits.connections
        self.turns = RequestTurns(reactor)
        self.memory = ResponseMemory(limits.response_memory_bytes)
        self.secure_fields: Callable[[Request], bytes] | None = None
        self.client_of: Callable[[Request], str] = lambda _: ""
        self._group_of: Callable[[IAddress | None], str | None] = lambda _: None
        self._groups: dict[str, int] = {}  # connections by group
        self._streams: Counter[str] = Counter()  # open event streams by client
        self._stream_count = 0
        self.channels: set[HttpConnection] = set()
        self._timed: set[HttpConnection] = set()  # whose deadlines are checked
        self.draining = False
        self._access_log = access_log
        self._tally = tally
        self._all_closed: Deferred[None] | None = None
        self._refusal_noted_s = {"all": -math.inf, "one": -math.inf}
        self._sweeping = LoopingCall(self._sweep)
        self._sweeping.clock = reactor
        self._second = 0
        self._date_line = b""
        # Unique for each run of each process: one log may have the lines of all of them.
        self._id_start = os.urandom(5).hex()
        self._ids = 0

    def reconfigure(  # noqa: PLR0913 - all that a reload changes
        self,
        root: IResource,
        *,
        limits: Limits,
        hosts: Hosts | None,
        access_log: AccessLog | None,
        secure_fields: Callable[[Request], bytes] | None,
        group_of: Callable[[IAddress | None], str | None],
        client_of: Callable[[Request], str],
        site_name: str,
        bodiless_paths: Collection[bytes] = (),
    ) -> None:
        """Replace the root and the limits; requests in progress keep the old ones, and connections their group.

        `secure_fields` returns the header lines of responses over TLS, such as HSTS. `group_of` returns the group in
        which a peer's connections are counted, such as its address; None if they have no limit of their own.
        `client_of` returns the network by which the client of a request is counted, behind a trusted proxy, too.
        `bodiless_paths` are as the attribute.
        """
        self.resource, self.view, self.refuse = root, view_of(root), refusal_by(root)
        self.limits, self.hosts, self.secure_fields = limits, hosts, secure_fields
        self.site_name, self._group_of, self.client_of = site_name, group_of, client_of
        self.bodiless_paths = bodiless_paths
        self.memory.max_bytes = limits.response_memory_bytes
        self.connections_max = limits.connections
        if self._access_log is not None and access_log is not self._access_log:
            self._access_log.close()
        self._access_log = access_log
        if self._sweeping.running:
            self._sweeping.stop()
            self._sweep_on()

    def startFactory(self) -> None:
        """Do nothing: stock Twisted opens an access log of its own, and renews the date for it each second."""

    def stopFactory(self) -> None:
        if self._access_log is not None:
            self._access_log.close()
        super().stopFactory()

    def log(self, request: AnsweredRequest) -> None:  # type: ignore[override]
        """Log and count a request that was answered, or whose client disconnected."""
        took_s = self.reactor.seconds() - request.started_s
        if self._access_log is not None:
            self._access_log.add(request, took_s, time.time())
        if self._tally is not None:
            authentication = request.authentication
            scheme = outcome = None
            if authentication is not None:
                scheme, outcome = authentication.scheme, authentication.outcome
            asked = request.route, request.method, request.code, scheme, outcome
            self._tally.record_request(asked, took_s)

    def next_request_id(self) -> str:
        self._ids += 1
        return f"{self._id_start}-{self._ids:x}"

    def date_line(self) -> bytes:
        """Return the field `Date` of a response sent now."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date_line = b"Date: %b\r\n" % datetimeToString(second)
        return self._date_line

    def buildProtocol(self, addr: IAddress | None) -> Protocol:  # type: ignore[override]
        # Without the wrapper that stock Twisted puts around each channel, for h2.
        if len(self.channels) >= self.connections_max:
            self._note_refused()
            return _RefusedConnection()
        group = self._group_of(addr)
        if self._is_full(group):
            self._note_refused(group)
            return _RefusedConnection()
        channel = HttpConnection(self)
        channel.group = group
        return channel

    def _is_full(self, group: str | None) -> bool:
        return group is not None and self._groups.get(group, 0) >= max(1, self.connections_max // 2)

    def add(self, channel: HttpConnection) -> None:
        """Called when a connection is made."""
        self.channels.add(channel)
        self._enter(channel.group)
        self.watch(channel)

    def watch(self, channel: HttpConnection) -> None:
        """Check the deadline of a connection from now on."""
        self._timed.add(channel)
        if not self._sweeping.running:
            self._sweep_on()

    def unwatch(self, channel: HttpConnection) -> None:
        """Check the deadline of a connection no longer; it has none."""
        self._timed.discard(channel)

    def regroup(self, channel: HttpConnection, peer: IAddress) -> bool:
        """Count a connection for the peer that its PROXY header names; return whether the peer is within its limit."""
        self._leave(channel.group)
        group = self._group_of(peer)
        is_full = self._is_full(group)
        channel.group = None if is_full else group
        self._enter(channel.group)
        if is_full:
            self._note_refused(group)
        return not is_full

    def _enter(self, group: str | None) -> None:
        if group is not None:
            self._groups[group] = self._groups.get(group, 0) + 1

    def _leave(self, group: str | None) -> None:
        if group is not None:
            self._groups[group] -= 1
            if not self._groups[group]:
                del self._groups[group]

    def begin_stream(self, client: str) -> None:
        """Count an event stream (`postd.front.interface.Site`).

        A client has at most half of the connections for its streams, also behind a proxy. A tenth of all connections
        stays free for requests that end.
        """
        of_all, of_one = self.connections_max * 9 // 10, self.connections_max // 2
        if self._stream_count >= max(1, of_all) or self._streams[client] >= max(1, of_one):
            raise ServerBusyError
        self._stream_count += 1
        self._streams[client] += 1

    def end_stream(self, client: str) -> None:
        self._stream_count -= 1
        self._streams[client] -= 1
        if not self._streams[client]:
            del self._streams[client]

    def _sweep_on(self) -> None:
        limits = self.limits
        shortest_s = min(limits.header_s, limits.body_s, limits.idle_s)
        self._sweeping.start(min(SWEEP_MAX_S, max(SWEEP_MIN_S, shortest_s / 4)), now=False)

    def forget(self, channel: HttpConnection) -> None:
        """Called when a connection is lost."""
        self._timed.discard(channel)
        if channel in self.channels:
            self.channels.remove(channel)
            self._leave(channel.group)
        if self.channels:
            return
        if self._sweeping.running:
            self._sweeping.stop()
        if self._all_closed is not None:
            closed, self._all_closed = self._all_closed, None
            closed.callback(None)

    async def drain(self, *, within_s: float) -> None:
        """Return when all requests are answered and all connections closed; abort them after `within_s`."""
        if not self.channels:
            return
        self._all_closed = Deferred()
        closing_idle = LoopingCall(self.close_idle)  # repeated: clients may read their last responses until later
        closing_idle.clock = self.reactor
        closing_idle.start(min(IDLE_GRACE_S, within_s / 2), now=False)
        try:
            await self._all_closed.addTimeout(within_s, self.reactor)
        except DeferredTimeoutError:
            self._all_closed = None
            left = list(self.channels)
            _log.warn("shutdown: {count} connections aborted after {s} s", count=len(left), s=within_s)
            for channel in left:
                channel.abort()
        finally:
            if closing_idle.running:
                closing_idle.stop()

    def close_idle(self) -> None:
        """Close the connections that have no request in progress."""
        for channel in list(self.channels):
            channel.close_if_idle()

    def acceptableProtocols(self) -> list[bytes]:
        return [b"http/1.1"]

    def _sweep(self) -> None:
        if not self._timed:
            self._sweeping.stop()
            return
        now = self.reactor.seconds()
        overdue = [channel for channel in self._timed if channel.deadline_s <= now]
        for channel in overdue:
            try:
                channel.pass_deadline()
            except Exception:  # noqa: BLE001 - the timeouts of other connections must still be checked
                _log.failure("a connection could not be closed at its timeout")

    def _note_refused(self, group: str | None = None) -> None:
        """Count a refused connection, and warn, at intervals, that a group or the server is at its limit."""
        if self._tally is not None:
            self._tally.connections_refused += 1
        now, kind = self.reactor.seconds(), "one" if group else "all"
        if now - self._refusal_noted_s[kind] < FULL_NOTE_S:
            return
        self._refusal_noted_s[kind] = now
        if group is None:
            count = self.connections_max
            _log.warn(
                "connection limit reached: {count} connections, further ones are refused ([limits] connections)",
                count=count,
            )
        else:
            _log.warn(
                "{group} has {count} connections, half of [limits] connections: further ones from it are refused",
                group=group,
                count=self._groups[group],
            )

"""The factory of connections and their limit per address (reference: Safe by default), over in-memory transports."""

import sys
from collections.abc import Sequence
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from postd.front.factory import FULL_NOTE_S, HttpFactory
from postd.http.peer import PeerResolver
from postd.monitoring.tally import Tally
from postd.net.proxy_protocol import ProxyProtocolEndpoint
from postd.settings.schema import Limits
from tests.cases import each
from tests.front.connections import Recorder
from tests.helpers import MemoryTransport

CLIENT, OTHER, PROXY = "203.0.113.9", "203.0.113.10", "10.0.0.1"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def address(host: str) -> IAddress:
    if host == "unix":
        made: IAddress = UNIXAddress(None)
        return made
    return (IPv6Address if ":" in host else IPv4Address)("TCP", host, 4711)


class Server:
    """A server that trusts `PROXY`, and connections to it."""

    def __init__(self, connections: int) -> None:
        self.clock, self.tally = Clock(), Tally()
        self.clients = PeerResolver((PROXY,))
        self.site: Any = HttpFactory(
            Recorder(),
            limits=Limits(connections=connections),
            tally=self.tally,
            reactor=self.clock,
        )
        self.site.turns.left = sys.maxsize  # no request waits for the clock
        self.reconfigure(self.site.limits, self.clients)
        endpoint: Any = self
        ProxyProtocolEndpoint(endpoint).listen(self.site)

    def reconfigure(self, limits: Any, clients: PeerResolver) -> None:
        """Reload with these limits, and these trusted proxies."""
        self.site.reconfigure(
            self.site.resource,
            limits=limits,
            hosts=None,
            access_log=None,
            secure_fields=None,
            group_of=clients.connection_group,
            client_of=clients.network,
            site_name="",
        )

    def listen(self, factory: Any) -> None:
        self.proxied = factory

    def open(self, host: str, *, factory: Any = None) -> MemoryTransport:
        transport = MemoryTransport(peerAddress=address(host))
        transport.protocol = (factory or self.site).buildProtocol(address(host))
        transport.protocol.makeConnection(transport)
        return transport

    def open_through_haproxy(self, host: str, header: bytes) -> MemoryTransport:
        transport = self.open(host, factory=self.proxied)
        if transport.connected:
            transport.protocol.dataReceived(header + GET)
        return transport

    def accepted(self, *hosts: str) -> list[bool]:
        return [not self.open(host).aborted for host in hosts]


def v1(host: str) -> bytes:
    return b"PROXY TCP4 %b 192.0.2.1 5000 80\r\n" % host.encode()


def test_site_without_connections_has_no_timer() -> None:
    server = Server(1)
    server.site.doStart()
    assert server.clock.getDelayedCalls() == []
    server.site.doStop()


@each("connections, most", [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_one_address_has_at_most_half_of_the_connections(connections: int, most: int) -> None:
    server = Server(connections)
    assert server.accepted(*[CLIENT] * (most + 2)) == [True] * most + [False] * 2
    assert server.tally.connections_refused == 2
    assert server.accepted(OTHER) == [connections > most]


@each(
    "hosts, accepted",
    [
        (("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"), [True, False, True]),
        (("::ffff:203.0.113.9", CLIENT), [True, False]),
        (("fe80::1%eth0", "fe80::2%eth1"), [True, False]),
        ((PROXY,) * 3, [True] * 3),
        (("::ffff:10.0.0.1",) * 3, [True] * 3),
        (("unix",) * 3, [True] * 3),
    ],
    ids=["IPv6 by /64", "mapped IPv4", "link-local", "trusted proxy", "mapped trusted proxy", "unix"],
)
def test_connections_are_counted_by_address(hosts: Sequence[str], accepted: list[bool]) -> None:
    assert Server(3).accepted(*hosts) == accepted


def test_trusted_proxy_has_only_the_limit_for_all_connections() -> None:
    assert Server(4).accepted(*[PROXY] * 6) == [True] * 4 + [False] * 2


def test_ended_connection_no_longer_counts() -> None:
    server = Server(4)
    for sent, waited_s in ((b"", 0), (b"no HTTP\r\n\r\n", 0), (GET, 0), (GET[:-2], 1000), (b"", 1000)):
        for _ in range(3):
            transports = [server.open(CLIENT), server.open(CLIENT)]
            assert server.open(CLIENT).aborted
            assert not any(transport.aborted for transport in transports)
            for transport in transports:
                transport.protocol.dataReceived(sent)
            server.clock.advance(waited_s)
            for transport in transports:
                if transport.connected:
                    transport.loseConnection()
    assert server.site._groups == {}  # noqa: SLF001 - a leak would show after days


def test_proxy_header_makes_a_connection_count_for_its_client() -> None:
    server = Server(4)
    first = [server.open_through_haproxy(OTHER, v1(CLIENT)) for _ in range(2)]
    assert [transport.aborted for transport in first] == [False] * 2
    assert all(b"200 OK" in transport.value() for transport in first)
    refused = server.open_through_haproxy(OTHER, v1(CLIENT))
    assert refused.aborted
    assert refused.value() == b""
    assert len(server.site.resource.seen) == 2
    assert not server.open_through_haproxy(OTHER, v1("203.0.113.11")).aborted
    first[0].loseConnection()
    assert not server.open_through_haproxy(OTHER, v1(CLIENT)).aborted


def test_connection_with_a_proxy_header_without_an_address_counts_for_the_peer() -> None:
    server = Server(4)
    opened = [server.open_through_haproxy(OTHER, b"PROXY UNKNOWN\r\n") for _ in range(3)]
    assert [transport.aborted for transport in opened] == [False, False, True]


def test_connection_before_its_proxy_header_counts_for_the_peer() -> None:
    server = Server(4)
    assert [server.open(OTHER, factory=server.proxied).aborted for _ in range(3)] == [False, False, True]


def test_ended_connections_through_haproxy_leave_no_counts() -> None:
    server = Server(4)
    for _ in range(3):
        for host in (CLIENT, OTHER, PROXY):
            server.open_through_haproxy(OTHER, v1(host)).loseConnection()
        server.open(OTHER, factory=server.proxied).loseConnection()
        server.open_through_haproxy(OTHER, b"no header\r\n")
        opened = [server.open_through_haproxy(OTHER, v1(CLIENT)) for _ in range(3)]
        for transport in opened[:2]:
            transport.loseConnection()
    assert server.site._groups == {}  # noqa: SLF001 - as above


def test_reload_changes_the_trusted_proxies_for_new_connections() -> None:
    server = Server(4)
    proxies = [server.open(PROXY), server.open(PROXY)]
    clients = [server.open(CLIENT), server.open(CLIENT)]
    server.reconfigure(Limits(connections=6), PeerResolver((CLIENT,)))
    assert server.accepted(CLIENT, PROXY) == [True] * 2
    for transport in (*proxies, *clients):
        transport.loseConnection()
    assert server.site._groups == {PROXY: 1}  # noqa: SLF001 - as above


def test_refused_address_is_logged_at_most_once_a_minute() -> None:
    server = Server(6)
    with capturedLogs() as events:
        server.accepted(*[CLIENT] * 5)
        server.clock.advance(FULL_NOTE_S - 1)
        server.accepted(CLIENT)
        (event,) = events
        server.clock.advance(1)
        server.accepted(*[CLIENT] * 5)  # the connections of a minute ago have been closed as idle
    assert len(events) == 2
    line = event["log_format"].format(**event)
    assert line.startswith(f"{CLIENT} has 3 connections, half of [limits] connections")

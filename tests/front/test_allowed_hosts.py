"""The 421 for hosts that the settings do not allow (reference: Hosts)."""

import json
from collections.abc import Sequence

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, eventAsText

from postd.front.allowed_hosts import Hosts
from postd.http.peer import PeerResolver
from postd.monitoring.tally import Tally
from tests.cases import each
from tests.front.connections import Recorder, Transport, decode_responses
from tests.helpers import connect, make_site

LOOPBACK = IPv4Address("TCP", "127.0.0.1", 8080)
LOOPBACK_V6 = IPv6Address("TCP", "::1", 8080)
LOCAL = frozenset({("127.0.0.1", 8080), ("::1", 8080)})
PUBLIC = IPv4Address("TCP", "192.0.2.1", 8080)
ON_ALL = IPv4Address("TCP", "127.0.0.1", 8081)
"""A connection over loopback to a listener on all addresses."""
SOCKET = UNIXAddress("/run/postd.sock")
PROXY = IPv4Address("TCP", "127.0.0.9", 1)
BROWSER = IPv4Address("TCP", "127.0.0.1", 1)

LOCAL_HOSTS = [
    *(b"localhost", b"LocalHost:8080", b"localhost.", b"posts.localhost", b"127.0.0.1:8080", b"127.8.9.10", b"[::1]"),
    *(b"[::1]:8080", b"[::ffff:127.0.0.1]:8080", b"[0::1]"),
]
FOREIGN_HOSTS = [
    *(b"evil.example", b"evil.example:8080", b"localhost.evil.example", b"127.0.0.1.evil.example", b"", b":8080"),
    *(b"127.1", b"0x7f.1", b"0.0.0.0:8080", b"192.0.2.1", b"[::]", b"[2001:db8::1]:8080", b"%6cocalhost", b"a" * 9_000),
]


class Server:
    def __init__(
        self, names: Sequence[str] = (), public_url: str = "", proxies: Sequence[str] = (), *, exclusive: bool = True
    ) -> None:
        self.clock = Clock()
        self.recorder = Recorder()
        self.site = make_site(self.recorder, clock=self.clock)
        self.site.hosts = Hosts(names, PeerResolver(proxies, public_url), exclusive=exclusive)
        self.site.local_addresses = LOCAL

    def send(self, *requests: bytes, to: IAddress = LOOPBACK, peer: IAddress = BROWSER) -> Transport:
        transport = Transport(hostAddress=to, peerAddress=peer)
        channel = connect(transport, self.site)
        for request in requests:
            channel.dataReceived(request)
            self.clock.advance(0)
        return transport

    def allows(self, host: bytes, *, to: IAddress = LOOPBACK, peer: IAddress = BROWSER) -> bool:
        """Return whether a request for a host is accepted; otherwise it is refused with 421."""
        self.recorder.reset()
        sent = self.send(b"GET /post HTTP/1.1\r\nHost: %b\r\n\r\n" % host, to=to, peer=peer).value()
        assert sent.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 421 "))
        assert sent.startswith(b"HTTP/1.1 200 ") is bool(self.recorder.seen)
        return bool(self.recorder.seen)


@each("to", [LOOPBACK, LOOPBACK_V6])
def test_loopback_listener_answers_local_hosts_only(to: IAddress) -> None:
    server = Server()
    assert [host for host in LOCAL_HOSTS if not server.allows(host, to=to)] == []
    assert [host for host in FOREIGN_HOSTS if server.allows(host, to=to)] == []


@each("to", [PUBLIC, ON_ALL, SOCKET])
def test_other_listener_answers_any_host(to: IAddress) -> None:
    server = Server()
    assert [host for host in [*LOCAL_HOSTS, *FOREIGN_HOSTS] if not server.allows(host, to=to)] == []


def test_trusted_proxy_reaches_a_loopback_listener_by_any_host() -> None:
    server = Server(proxies=["127.0.0.9"])
    assert server.allows(b"posts.example", peer=PROXY)
    assert not server.allows(b"posts.example", peer=BROWSER)
    assert server.allows(b"posts.example", peer=IPv6Address("TCP", "::ffff:127.0.0.9", 1))


def test_forwarded_address_is_not_the_peer() -> None:
    server = Server(proxies=["127.0.0.9"])
    request = (
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-For: 127.0.0.9\r\nX-Forwarded-Host: localhost\r\n\r\n"
    )
    assert server.send(request).value().startswith(b"HTTP/1.1 421 ")


def test_public_url_is_allowed_beside_local_hosts() -> None:
    server = Server(public_url="https://posts.example")
    assert server.allows(b"posts.example")
    assert server.allows(b"POSTS.example.:8443")
    assert server.allows(b"127.0.0.1:8080")
    assert not server.allows(b"www.posts.example")
    assert Server(public_url="https://[2001:db8::1]:8443").allows(b"[2001:DB8:0::1]")


@each("to", [LOOPBACK, PUBLIC, ON_ALL, SOCKET])
@each("peer", [BROWSER, PROXY])
def test_only_listed_hosts_are_allowed(to: IAddress, peer: IAddress) -> None:
    server = Server(["posts.example", "2001:db8::1", "192.0.2.1"], "https://public.example:8443", ["127.0.0.9", "unix"])
    for host in (b"posts.example", b"Posts.Example.:1", b"[2001:db8:0::1]:80", b"192.0.2.1:80", b"public.example"):
        assert server.allows(host, to=to, peer=peer)
    for host in (*LOCAL_HOSTS, b"x.posts.example", b"posts.example.evil.example", b"", b"192.0.2.10"):
        assert not server.allows(host, to=to, peer=peer)


def test_listed_host_is_allowed_up_to_260_bytes() -> None:
    """The longest DNS name, its final dot and a port; settings allow no longer name."""
    longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    longer = f"{longest}d"
    server = Server([longest, longer])
    assert server.allows(f"{longest}.:65535".encode())
    assert not server.allows(f"{longer}.:65535".encode())


def test_listed_hosts_of_an_admin_listener_are_allowed_beside_local_hosts() -> None:
    server = Server(["node1"], exclusive=False)
    assert server.allows(b"node1:9180")
    assert server.allows(b"127.0.0.1:9180")
    assert not server.allows(b"evil.example")
    assert server.allows(b"evil.example", to=PUBLIC)


def test_http_1_0_request_without_host_is_allowed() -> None:
    for server in (Server(), Server(["posts.example"])):
        assert server.send(b"GET /post HTTP/1.0\r\n\r\n").value().startswith(b"HTTP/1.1 200 ")
        assert server.send(b"GET /post HTTP/1.0\r\nHost: evil\r\n\r\n").value().startswith(b"HTTP/1.1 421 ")


def test_authority_of_an_absolute_target_is_checked_instead_of_host() -> None:
    server = Server()
    for target, host, status in ((b"localhost", b"evil.example", b"200"), (b"evil.example", b"localhost", b"421")):
        sent = server.send(b"GET http://%b/post HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host)).value()
        assert sent.startswith(b"HTTP/1.1 %b " % status)


@each(
    "request_line",
    [b"GET /", b"GET /nothing", b"PATCH /post", b"OPTIONS *", b"OPTIONS /post", b"HEAD /post", b"GET /basic"],
)
def test_refusal_has_problem_details_at_every_url(request_line: bytes) -> None:
    server = Server()
    preflight = b"Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n"
    transport = server.send(b"%b HTTP/1.1\r\nHost: evil.example\r\n%b\r\n" % (request_line, preflight))
    method = request_line.partition(b" ")[0]
    (answer,), _ = decode_responses(transport.value(), [])
    assert answer.status == 421
    assert answer.fields["content-type"] == ["application/problem+json"]
    assert answer.fields["cache-control"] == ["no-store"]
    assert "access-control-allow-origin" not in answer.fields
    assert "www-authenticate" not in answer.fields
    if method == b"HEAD":
        assert answer.body == b""
    else:
        problem = json.loads(answer.body)
        assert (problem["status"], problem["title"]) == (421, "Misdirected Request")
        assert "hosts" in problem["detail"]
        assert "evil" not in problem["detail"]
    assert transport.ended
    assert not server.recorder.seen


def test_refusal_comes_before_the_body_and_ends_the_connection() -> None:
    server = Server()
    head = b"POST /post HTTP/1.1\r\nHost: evil.example\r\nExpect: 100-continue\r\n"
    for length in (b"Content-Length: 5", b"Content-Length: 99999999", b"Transfer-Encoding: chunked"):
        transport = server.send(head + length + b"\r\n\r\n", b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n")
        (answer,), interim = decode_responses(transport.value(), [])
        assert interim == 0
        assert (answer.status, answer.fields["connection"], transport.ended) == (421, ["close"], True)
    assert not server.recorder.seen


def test_each_request_of_a_connection_is_checked() -> None:
    server = Server()
    good, bad = (b"GET /post HTTP/1.1\r\nHost: %b\r\n\r\n" % host for host in (b"localhost", b"evil.example"))
    transport = server.send(good, good, bad, good)
    assert [answer.status for answer in decode_responses(transport.value(), server.recorder.seen)[0]] == [200, 200, 421]
    assert len(server.recorder.seen) == 2


def test_new_rule_applies_from_the_next_request_on() -> None:
    server = Server()
    request = b"GET /post HTTP/1.1\r\nHost: posts.example\r\n\r\n"
    server.site.hosts = None
    transport = server.send(request)
    server.site.hosts = Hosts(["posts.example"], PeerResolver())
    transport.protocol.dataReceived(request)
    server.site.hosts = Hosts([], PeerResolver())
    transport.protocol.dataReceived(request)
    assert [answer.status for answer in decode_responses(transport.value(), server.recorder.seen)[0]] == [200, 200, 421]


def test_warning_names_trusted_proxies_only_where_they_may_use_any_host() -> None:
    for hosts, named in (((), True), (("posts.example",), False)):
        server = Server(hosts)
        with capturedLogs() as events:
            server.send(b"GET /post HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        (warning,) = [eventAsText(event) for event in events if event["log_namespace"].endswith(".allowed_hosts")]
        assert "add it to hosts or set public_url" in warning
        assert ("trusted_proxies" in warning) is named
        assert warning.endswith(". Further refusals are in the access log only")


def test_refusals_are_counted_and_logged_with_one_warning() -> None:
    server = Server()
    server.site._tally = tally = Tally()  # noqa: SLF001 - make_site has none
    with capturedLogs() as events:
        for _ in range(3):
            server.send(b"GET /secret HTTP/1.1\r\nHost: s3cret.evil.example\r\n\r\n")
        server.clock.advance(1)
    assert tally.metrics(full=False).counters["requests", "none", "GET", "421", "none"] == 3
    warnings = [eventAsText(event) for event in events if event["log_namespace"] == "postd.front.allowed_hosts"]
    assert len(warnings) == 1
    for words in ("127.0.0.1", "19 bytes", "hosts", "public_url", "trusted_proxies"):
        assert words in warnings[0]
    assert not any("s3cret" in eventAsText(event) for event in events)
    lines = [
        line for event in events if event["log_namespace"] == "postd.access" for line in event["lines"].split("\n")
    ]
    assert len(lines) == 3
    assert all(" 421 " in line and "route=- " in line for line in lines)


def test_cache_of_hosts_is_bounded() -> None:
    server = Server()
    assert server.site.hosts is not None
    for number in range(1000):
        server.allows(b"n%d.localhost" % number)
    cache = server.site.hosts._is_known  # noqa: SLF001 - a client could fill the memory
    remembered = cache.cache_info()
    assert remembered.currsize == remembered.maxsize == 256
    server.allows(b"a" * 9_000)
    assert cache.cache_info().misses == remembered.misses

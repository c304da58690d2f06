"""The address, scheme and certificate of a client, with and without proxies, and detection of cross-site requests."""

import base64
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.x509 import load_der_x509_certificate
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL.crypto import X509
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress, ISSLTransport
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.web.resource import Resource
from zope.interface import directlyProvides

from postd.http.errors import Problem
from postd.http.peer import PeerResolver
from postd.protocol.host import check_proxy
from tests.cases import each
from tests.helpers import FIELD_TEXT, MemoryTransport, connect, make_certificate, make_site

PROXY = IPv4Address("TCP", "10.0.0.1", 4711)
UNTRUSTED = IPv4Address("TCP", "203.0.113.9", 4711)
UNIX = UNIXAddress(None)


def _make_certificate() -> bytes:
    with TemporaryDirectory() as folder:
        return ssl.PEM_cert_to_DER_cert(make_certificate(Path(folder))[1].read_text())


CONNECTION, FORWARDED = _make_certificate(), _make_certificate()
"""The certificates of a connection's client, and of the client that a proxy speaks for, in DER."""


def v6(host: str) -> IPv6Address:
    return IPv6Address("TCP", host, 4711)


class TlsTransport(MemoryTransport):
    """A connection whose client has shown `CONNECTION`, if it is TLS."""

    def getPeerCertificate(self) -> X509:
        return X509.from_cryptography(load_der_x509_certificate(CONNECTION))


class Probe(Resource):
    """Records what a `PeerResolver` says of the last request."""

    isLeaf = True

    def __init__(self, clients: PeerResolver) -> None:
        super().__init__()
        self.clients = clients
        self.address = ""
        self.secure: bool | None = None
        self.hsts = b""
        self.certificate: bytes | None = None
        self.refused: bool | None = None
        self.write_refused: bool | None = None

    def render(self, request: Any) -> bytes:
        self.address = self.clients.address(request)
        self.secure = self.clients.is_secure(request)
        self.hsts = self.clients.strict_transport("60")(request)
        self.certificate = self.clients.client_certificate(request)
        self.refused = self._refused(self.clients.refuse_cross_site, request)
        self.write_refused = self._refused(self.clients.refuse_cross_site_write, request)
        return b""

    def _refused(self, check: Any, request: Any) -> bool:
        try:
            check(request)
        except Problem as problem:
            assert problem.status == 403
            return True
        return False


def ask(  # noqa: PLR0913 - a request has as many sides
    clients: PeerResolver,
    *fields: str | bytes,
    peer: IAddress = PROXY,
    tls: bool = False,
    method: bytes = b"POST",
    version: bytes = b"1.1",
    host: bytes | None = b"posts.example",
) -> Probe:
    """Make a request with these header fields; return the probe that recorded it."""
    probe = Probe(clients)
    transport = TlsTransport(peerAddress=peer)
    if tls:
        directlyProvides(transport, ISSLTransport)
    channel = connect(transport, make_site(probe, clock=Clock()))
    lines = [b"%b / HTTP/%b" % (method, version), *([] if host is None else [b"Host: " + host])]
    lines += [field if isinstance(field, bytes) else field.encode() for field in fields]
    channel.dataReceived(b"\r\n".join(lines) + b"\r\n\r\n")
    assert b" 200 OK" in transport.value()
    return probe


def address(forwarded: Sequence[str | bytes], *trusted: str, peer: IAddress = PROXY) -> str:
    fields = [b"X-Forwarded-For: " + (line if isinstance(line, bytes) else line.encode()) for line in forwarded]
    return ask(PeerResolver(trusted), *fields, peer=peer).address


class AddressTests:
    @each(
        "peer, expected",
        [
            (UNTRUSTED, "203.0.113.9"),
            (v6("2001:db8::1"), "2001:db8::1"),
            (v6("2001:0DB8:0:0:0:0:0:1"), "2001:db8::1"),  # as the PROXY protocol of Twisted spells it
            (v6("fe80::1%eth0"), "fe80::1"),
            (v6("::ffff:203.0.113.9"), "203.0.113.9"),  # on a dual-stack socket
            (v6("0:0:0:0:0:ffff:cb00:7109"), "203.0.113.9"),
            (UNIX, "unix"),
        ],
    )
    def test_address_without_forwarding_is_that_of_the_peer(self, peer: IAddress, expected: str) -> None:
        for trusted in ((), ("10.0.0.0/8",), ("::/0", "0.0.0.0/0", "unix")):
            assert address([], *trusted, peer=peer) == expected

    @each(
        "forwarded, expected",
        [
            (["198.51.100.7"], "198.51.100.7"),
            (["  198.51.100.7\t"], "198.51.100.7"),
            (["1.2.3.4, 198.51.100.7"], "198.51.100.7"),  # the first one may be forged
            (["1.2.3.4,198.51.100.7,10.9.9.9 , 10.0.0.2"], "198.51.100.7"),
            (["1.2.3.4", "198.51.100.7"], "198.51.100.7"),
            (["198.51.100.7", "10.0.0.3"], "198.51.100.7"),
            (["198.51.100.7, 10.0.0.3", "10.0.0.2, 10.0.0.4"], "198.51.100.7"),
            (["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # all are trusted: the farthest
            (["198.51.100.7, ::ffff:10.0.0.2"], "198.51.100.7"),
            (["::ffff:198.51.100.7"], "198.51.100.7"),
            (["[::FFFF:c633:6407]:443"], "198.51.100.7"),
            (["0:0:0:0:0:ffff:c633:6407"], "198.51.100.7"),
            (["fe80:0::7%eth0"], "fe80::7"),
            (["198.51.100.7:65535"], "198.51.100.7"),
            (["2001:db8::7"], "2001:db8::7"),
            (["2001:0DB8:0::7"], "2001:db8::7"),
            (["[2001:db8::7]"], "2001:db8::7"),
            (["[2001:db8::7]:443"], "2001:db8::7"),
            (["1.2.3.4, [fd00::1]:1, 10.0.0.2:80"], "fd00::1"),
        ],
    )
    def test_address_is_the_last_untrusted_hop(self, forwarded: list[str], expected: str) -> None:
        assert address(forwarded, "10.0.0.0/8") == expected

    @each(
        "garbage",
        [
            *(
                "",
                " ",
                "unknown",
                "_hidden",
                "unix",
                "localhost",
                "10.0.0",
                "10.0.0.256",
                "010.0.0.1",
                "1",
                "[::g]",
            ),
            *(
                b"\xff",
                "\u0661.2.3.4".encode(),
                "10.0.0.2 10.0.0.3",
                "10.0.0.2;10.0.0.3",
                '"10.0.0.2"',
                "for=1.2.3.4",
                "-",
            ),
            *("a" * 8000, ":" * 8000, "[" * 8000),
        ],
    )
    def test_hops_before_an_invalid_one_are_ignored(self, garbage: str | bytes) -> None:
        line = garbage if isinstance(garbage, bytes) else garbage.encode()
        assert address([line], "10.0.0.0/8") == "10.0.0.1"
        assert address([b"198.51.100.7, " + line], "10.0.0.0/8") == "10.0.0.1"
        assert address([b"198.51.100.7, " + line + b", 10.0.0.2"], "10.0.0.0/8") == "10.0.0.2"

    def test_long_chain_of_hops_takes_linear_time(self) -> None:
        assert address([",".join(["198.51.100.7", *["10.0.0.2"] * 1500])], "10.0.0.0/8") == "198.51.100.7"

    @each(
        "peer, trusted, believed",
        [
            (PROXY, ["10.0.0.1/32"], True),
            (PROXY, ["10.0.0.0/8"], True),
            (PROXY, ["192.0.2.0/24", "10.0.0.1/32"], True),
            (PROXY, [], False),
            (PROXY, ["10.0.0.2/32"], False),
            (PROXY, ["unix"], False),
            (PROXY, ["::/0"], False),
            (v6("::ffff:10.0.0.1"), ["10.0.0.0/8"], True),  # 10.0.0.1 on a dual-stack socket
            (v6("::ffff:10.0.0.1"), ["192.0.2.0/24"], False),
            (PROXY, [check_proxy("::ffff:10.0.0.1")], True),  # as a dual-stack server names it
            (PROXY, [check_proxy("::ffff:10.0.0.0/104")], True),
            (v6("fd00::1"), ["fd00::/8"], True),
            (v6("fe80::1%eth0"), ["fe80::/10"], True),
            (v6("fd00::1"), ["0.0.0.0/0"], False),
            (UNIX, ["unix"], True),
            (UNIX, ["0.0.0.0/0", "::/0"], False),
        ],
    )
    def test_only_trusted_proxies_may_forward(self, peer: IAddress, trusted: list[str], believed: bool) -> None:  # noqa: FBT001
        own = getattr(peer, "host", "unix").removeprefix("::ffff:").removesuffix("%eth0")
        with capturedLogs() as events:
            probe = ask(PeerResolver(trusted), "X-Forwarded-For: 198.51.100.7", "X-Forwarded-Proto: https", peer=peer)
        assert (probe.address, probe.secure) == (("198.51.100.7", True) if believed else (own, False))
        warned = [event["peer"] for event in events if event["log_level"] == LogLevel.warn]
        assert warned == ([] if believed else [own])

    def test_untrusted_forwarder_is_logged_once(self) -> None:
        for field in ("X-Forwarded-For: 198.51.100.7", "X-Forwarded-Proto: https"):
            clients = PeerResolver(["192.0.2.0/24"])
            with capturedLogs() as events:
                ask(clients, peer=UNTRUSTED)
                for _ in range(3):
                    ask(clients, field, peer=UNTRUSTED)
                    ask(clients, "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Proto: http", peer=PROXY)
            assert [event["peer"] for event in events if event["log_level"] == LogLevel.warn] == ["203.0.113.9"]

    def test_other_forwarding_fields_are_ignored(self) -> None:
        fields = ("Forwarded: for=1.2.3.4", "X-Real-IP: 1.2.3.4", "Client-IP: 1.2.3.4", "X-Forwarded-Host: evil")
        assert ask(PeerResolver(["10.0.0.0/8"]), *fields).address == "10.0.0.1"

    @given(
        st.lists(
            st.binary(max_size=40).map(lambda line: bytes(byte for byte in line if byte in FIELD_TEXT))
            | st.lists(st.sampled_from([b"10.0.0.2", b"198.51.100.7", b"[::1]:80", b"x", b":", b"[", b""])).map(
                b", ".join
            ),
            max_size=3,
        )
    )
    def test_any_forwarded_field_gives_an_address(self, lines: list[bytes]) -> None:
        assert ipaddress.ip_address(address(lines, "10.0.0.0/8"))


def client_cert(der: bytes) -> bytes:
    return b"Client-Cert: :%b:" % base64.b64encode(der)


class CertificateTests:
    def test_certificate_without_the_field_is_that_of_the_connection(self) -> None:
        for trusted in ([], ["10.0.0.0/8"]):
            assert ask(PeerResolver(trusted), tls=True).certificate == CONNECTION
            assert ask(PeerResolver(trusted)).certificate is None

    @each("tls", [True, False])
    def test_field_of_a_trusted_proxy_replaces_that_of_the_connection(self, *, tls: bool) -> None:
        clients = PeerResolver(["10.0.0.0/8", "unix"])
        for peer in (PROXY, UNIX):
            assert ask(clients, client_cert(FORWARDED), tls=tls, peer=peer).certificate == FORWARDED

    @each(
        "lines",
        [
            *([b"Client-Cert: "], [b"Client-Cert: ::"], [b"Client-Cert: " + base64.b64encode(FORWARDED)]),
            *([client_cert(FORWARDED)] * 2, [client_cert(FORWARDED), b"client-cert: ::"]),
            *([client_cert(FORWARDED) + b", :AAAA:"], [client_cert(FORWARDED) + b";a"], [client_cert(FORWARDED[:-1])]),
            [b"Client-Cert: :" + b"A" * 9000 + b":"],
        ],
    )
    def test_invalid_field_of_a_trusted_proxy_is_no_certificate(self, lines: list[bytes]) -> None:
        """Nor is that of the connection one then, which is the proxy's."""
        for tls in (True, False):
            assert ask(PeerResolver(["10.0.0.0/8"]), *lines, tls=tls).certificate is None

    def test_field_of_an_untrusted_peer_is_ignored_and_logged_once(self) -> None:
        clients = PeerResolver(["10.0.0.0/8"])
        with capturedLogs() as events:
            for _ in range(2):
                assert ask(clients, client_cert(FORWARDED), peer=UNTRUSTED).certificate is None
                assert ask(clients, client_cert(FORWARDED), peer=UNTRUSTED, tls=True).certificate == CONNECTION
        assert [event["peer"] for event in events if event["log_level"] == LogLevel.warn] == ["203.0.113.9"]

    def test_fields_with_similar_names_are_ignored(self) -> None:
        value = client_cert(FORWARDED).partition(b" ")[2]
        fields = [name + b": " + value for name in (b"Client_Cert", b"Client-Cert-Chain", b"X-Client-Cert")]
        assert ask(PeerResolver(["10.0.0.0/8"]), *fields).certificate is None


class SecureTests:
    @each(
        "values, secure",
        [
            ([], False),
            (["https"], True),
            (["HTTPS"], True),
            ([" https "], True),
            (["http"], False),
            (["https, http"], False),  # the value of the nearest proxy
            (["http, https"], True),
            (["https", "http"], False),
            (["http", "https"], True),
            ([""], False),
            (["https,"], False),
            (["wss"], False),
            (["https x"], False),
        ],
    )
    def test_forwarded_proto_of_a_trusted_proxy_is_used(self, values: list[str], secure: bool) -> None:  # noqa: FBT001
        fields = [f"X-Forwarded-Proto: {value}" for value in values]
        assert ask(PeerResolver(["10.0.0.0/8"]), *fields).secure is secure
        assert ask(PeerResolver(["unix"]), *fields, peer=UNIX).secure is secure
        assert ask(PeerResolver(["10.0.0.0/8"]), *fields, peer=UNTRUSTED).secure is False

    @each(
        "hops, schemes, secure",
        [
            ("198.51.100.7, 10.0.0.2", "https, http", True),  # the client used TLS, the proxies do not
            ("198.51.100.7, 10.0.0.2", "http, https", False),
            ("198.51.100.7, 10.0.0.2", "https", True),  # the last proxy passes on what it got
            ("198.51.100.7, 10.0.0.2", "http", False),
            ("198.51.100.7, 10.0.0.2, 10.0.0.3", "https, http, http", True),
            ("198.51.100.7, 10.0.0.2, 10.0.0.3", "https, http", True),  # one proxy adds none
            ("10.0.0.9, 198.51.100.7", "https, http", False),  # the first entries are the client's own
            ("198.51.100.7, 10.0.0.2", "https, http, http", False),
            ("198.51.100.7", "https, http", False),
            ("garbage", "https, http", False),
            ("10.0.0.3, 10.0.0.2", "https, http", True),
        ],
    )
    def test_forwarded_proto_is_that_of_the_hop_from_the_client(self, hops: str, schemes: str, *, secure: bool) -> None:
        fields = (f"X-Forwarded-For: {hops}", f"X-Forwarded-Proto: {schemes}")
        assert ask(PeerResolver(["10.0.0.0/8"]), *fields).secure is secure

    @given(st.integers(1, 5), st.integers(0, 3), st.booleans())
    def test_proto_of_a_client_behind_any_number_of_proxies_is_found(
        self,
        proxies: int,
        forged: int,
        secure: bool,  # noqa: FBT001
    ) -> None:
        """The client may send both fields itself; each proxy adds an entry to both."""
        claimed = ["http" if secure else "https"] * forged
        seen = [*claimed, "https" if secure else "http", *(["http" if secure else "https"] * (proxies - 1))]
        hops = [*["10.9.9.9"] * forged, "198.51.100.7", *[f"10.0.0.{number}" for number in range(2, proxies + 1)]]
        fields = (f"X-Forwarded-For: {', '.join(hops)}", f"X-Forwarded-Proto: {', '.join(seen)}")
        assert ask(PeerResolver(["10.0.0.0/8"]), *fields).secure is secure

    def test_direct_tls_is_secure(self) -> None:
        for trusted in ((), ("10.0.0.0/8",)):
            assert ask(PeerResolver(trusted), tls=True).secure is True
            assert ask(PeerResolver(trusted), "X-Forwarded-Proto: http", tls=True, peer=UNTRUSTED).secure is True

    def test_hsts_is_sent_over_tls_only(self) -> None:
        """RFC 6797 §7.2: whatever `public_url` is."""
        line = b"Strict-Transport-Security: max-age=60\r\n"
        assert ask(PeerResolver(), tls=True).hsts == line
        assert ask(PeerResolver(["10.0.0.0/8"]), "X-Forwarded-Proto: https").hsts == line
        for clients in (
            PeerResolver((), "https://posts.example"),
            PeerResolver(["10.0.0.0/8"], "https://posts.example"),
        ):
            assert ask(clients).hsts == b""
            assert ask(clients, "X-Forwarded-Proto: http").hsts == b""

    def test_public_url_decides_whether_secure(self) -> None:
        assert ask(PeerResolver((), "https://posts.example")).secure is True
        assert ask(PeerResolver((), "http://posts.example")).secure is False
        assert ask(PeerResolver((), "http://posts.example"), "X-Forwarded-Proto: https").secure is False


class CrossSiteTests:
    """Current browsers send `Sec-Fetch-Site`, older ones `Origin`, curl neither (reference: Form login)."""

    @each("public_url", ["", "https://posts.example"])
    @each(
        "fields, refused",
        [
            ([], False),
            (["Sec-Fetch-Site: same-origin"], False),
            (["Sec-Fetch-Site: none"], False),
            (["Sec-Fetch-Site: cross-site"], True),
            (["Sec-Fetch-Site: same-site"], True),
            (["Sec-Fetch-Site: "], True),
            (["Sec-Fetch-Site: x"], True),
            (["Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"], True),
            (["Sec-Fetch-Site: same-origin, cross-site"], True),
            (["Sec-Fetch-Site: cross-site", "Origin: https://posts.example"], True),
            (["Sec-Fetch-Site: same-site", "Origin: https://posts.example"], True),
            (["Sec-Fetch-Site: same-origin", "Origin: https://posts.example"], False),
            (["Origin: https://posts.example"], False),
            (["Origin: null"], True),
            (["Origin: "], True),
            (["Origin: posts.example"], True),
            (["Origin: https://evil.example"], True),
            (["Origin: https://posts.example.evil.example"], True),
            (["Origin: https://evil.posts.example"], True),
            (["Origin: https://posts.example:8443"], True),
            (["Origin: https://posts.example", "Origin: https://evil.example"], True),
            (["Origin: https://evil.example", "Origin: https://posts.example"], True),
            (["Origin: https://posts.example, https://evil.example"], True),
            (["Origin: https://posts.example https://evil.example"], True),
            (["Origin: https://posts.example/"], True),
            (["Origin: https://alice@posts.example"], True),
            (["Referer: https://evil.example/"], False),
        ],
    )
    def test_cross_site_request_is_refused(
        self,
        fields: list[str],
        public_url: str,
        refused: bool,  # noqa: FBT001
    ) -> None:
        assert ask(PeerResolver((), public_url), *fields).refused is refused

    def test_scheme_is_ignored_without_a_public_url(self) -> None:
        assert ask(PeerResolver(), "Origin: http://posts.example").refused is False
        assert ask(PeerResolver(), "Origin: http://posts.example", tls=True).refused is False
        assert ask(PeerResolver((), "https://posts.example"), "Origin: http://posts.example").refused is True

    def test_port_is_part_of_the_origin(self) -> None:
        assert ask(PeerResolver(), "Origin: http://127.0.0.1:8080", host=b"127.0.0.1:8080").refused is False
        assert ask(PeerResolver(), "Origin: http://127.0.0.1:8081", host=b"127.0.0.1:8080").refused is True
        assert ask(PeerResolver(), "Origin: http://[::1]:8080", host=b"[::1]:8080").refused is False
        assert ask(PeerResolver(), "Origin: http://posts.example", host=b"POSTS.example").refused is False

    def test_default_port_in_the_host_is_that_of_an_origin_without_port(self) -> None:
        """Proxies add it (nginx: `$host:$server_port`); browsers leave it out of both."""
        assert ask(PeerResolver(), "Origin: http://posts.example", host=b"posts.example:80").refused is False
        assert ask(PeerResolver(), "Origin: https://posts.example", host=b"posts.example:443").refused is False
        assert ask(PeerResolver(), "Origin: http://posts.example", host=b"posts.example:443").refused is True
        assert ask(PeerResolver(), "Origin: http://posts.example", host=b"posts.example:8080").refused is True

    def test_public_url_is_same_origin_whatever_the_host(self) -> None:
        clients = PeerResolver((), "https://posts.example")
        assert ask(clients, "Origin: https://posts.example", host=b"127.0.0.1:8080").refused is False
        assert ask(clients, "Origin: http://127.0.0.1:8080", host=b"127.0.0.1:8080").refused is True

    @each("origin", ["null", "", "https://", "https://evil.example", "//"])
    def test_origin_without_a_host_is_cross_site(self, origin: str) -> None:
        assert ask(PeerResolver(), f"Origin: {origin}", version=b"1.0", host=None).refused is True
        assert ask(PeerResolver(), f"Origin: {origin}", host=b"").refused is True

    @each("method", [b"POST", b"PUT", b"DELETE", b"PATCH", b"FOO", b"get"])
    def test_cross_site_write_is_refused(self, method: bytes) -> None:
        assert ask(PeerResolver(), "Sec-Fetch-Site: cross-site", method=method).write_refused is True
        assert ask(PeerResolver(), "Sec-Fetch-Site: same-origin", method=method).write_refused is False

    @each("method", [b"GET", b"HEAD", b"OPTIONS"])
    def test_cross_site_read_is_allowed(self, method: bytes) -> None:
        """Links from other sites work; the other site cannot read the response."""
        assert ask(PeerResolver(), "Sec-Fetch-Site: cross-site", "Origin: null", method=method).write_refused is False

    @each(
        "fields, is_handshake",
        [
            (["Upgrade: websocket"], True),
            (["Upgrade: WebSocket"], True),
            (["Upgrade: h2c, websocket/13"], True),
            (["Upgrade: h2c", "Upgrade: websocket"], True),
            (["Sec-WebSocket-Version: 13"], True),
            (["sec-websocket-version: 13"], True),
            (["Upgrade: h2c"], False),
            (["Upgrade:"], False),
            (["Connection: websocket"], False),
        ],
    )
    def test_websocket_handshake_counts_as_a_write(self, fields: list[str], *, is_handshake: bool) -> None:
        assert ask(PeerResolver(), "Origin: null", *fields, method=b"GET").write_refused is is_handshake
        assert ask(PeerResolver(), "Origin: https://posts.example", *fields, method=b"GET").write_refused is False
        assert ask(PeerResolver(), *fields, method=b"GET").write_refused is False

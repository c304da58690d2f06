"""The HTTP client for issuers, over real connections."""

import gzip
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from zope.interface import directlyProvides, providedBy

from postd.errors import ConfigError
from postd.net import fetching
from postd.net.fetching import (
    CONTENT_MAX_BYTES,
    REDIRECTS_MAX,
    RETRY_AFTER_DEFAULT_S,
    RETRY_AFTER_MAX_S,
    Fetched,
    Fetcher,
    FetchError,
    RepeatFilter,
    UnusableError,
)
from postd.reactor import IReactor
from tests.held_reactor import HeldReactor
from tests.helpers import PATIENCE_S, wait_until
from tests.issuer import Issuer, Reply
from tests.redis_server import free_port

AUDIENCE = "https://api.example"
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GZIP = gzip.compress(b"{}" * 99, mtime=0)  # workers of xdist collect the same parameters
SECRET = "s3cret-of-ours"
TOKEN = "token-of-alice"

GONE_MAX_S = PATIENCE_S


class Peer:
    """A server for one connection that sends given bytes, and waits for the client to close the connection.

    `gone` fires with the number of bytes it could send, when the client has closed.

    Args:
        pieces: what it sends after the head of a request.
        certificate: the files of a key and a certificate, for TLS.
        closes: whether it closes the connection when all is sent.
    """

    def __init__(
        self,
        *pieces: bytes,
        certificate: tuple[Path, Path] | None = None,
        closes: bool = False,
    ) -> None:
        self._pieces = pieces
        self._certificate = certificate
        self._closes = closes
        self._asked = threading.Event()
        self.is_connected = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(GONE_MAX_S)
        self.origin = f"{'https' if certificate else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.gone: Deferred[int] = deferToThread(self._serve)

    async def wait_until_asked(self) -> None:
        """Wait until a request has arrived and all pieces were sent."""
        assert await deferToThread(self._asked.wait, GONE_MAX_S)

    def _serve(self) -> int:
        with self._listener, self._listener.accept()[0] as connection, connection.dup() as watched:
            self.is_connected = True
            connection.settimeout(GONE_MAX_S)
            watched.settimeout(GONE_MAX_S)
            sent = self._talk(connection)
            # Below TLS, where closing by the client would only be a request to close.
            while not self._closes and _read(watched):
                pass
            return sent

    def _talk(self, connection: socket.socket) -> int:
        sent = 0
        try:
            with self._encrypt(connection) as stream:
                head = b""
                while b"\r\n\r\n" not in head and (more := stream.recv(65536)):
                    head += more
                for piece in self._pieces:
                    stream.sendall(piece)
                    sent += len(piece)
                self._asked.set()
        except TimeoutError:
            raise
        except OSError:
            pass  # the client has closed the connection
        return sent

    def _encrypt(self, connection: socket.socket) -> socket.socket:
        if self._certificate is None:
            return connection.dup()
        key, certificate = self._certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context.wrap_socket(connection.dup(), server_side=True)


def _read(watched: socket.socket) -> bytes:
    try:
        return watched.recv(65536)
    except ConnectionError:
        return b""


@pytest.fixture(scope="module")
def up(certificate: tuple[Path, Path]) -> Iterator[list[Issuer]]:
    """Two issuers for all tests, and one with TLS."""
    with Issuer(AUDIENCE) as one, Issuer(AUDIENCE) as other, Issuer(AUDIENCE, certificate=certificate) as encrypted:
        yield [one, other, encrypted]


def reset(issuer: Issuer) -> Issuer:
    issuer.replies = {}
    issuer.asked = []
    return issuer


@pytest.fixture
def issuer(up: list[Issuer]) -> Issuer:
    return reset(up[0])


@pytest.fixture
def elsewhere(up: list[Issuer]) -> Issuer:
    return reset(up[1])


@pytest.fixture
def encrypted(up: list[Issuer]) -> Issuer:
    encrypted = reset(up[2])
    encrypted.replies["/a"] = Reply(b"over TLS")
    return encrypted


def make_fetcher(ca_file: Path | str = "", reactor: Any = global_reactor) -> Fetcher:
    return Fetcher(cast(IReactor, reactor), ca_file=str(ca_file))


def get(url: str) -> Deferred[Fetched]:
    return make_fetcher().get(url)


def post(url: str, *, secret: str = SECRET, reactor: Any = global_reactor) -> Deferred[Fetched]:
    return make_fetcher(reactor=reactor).post(url, {"token": TOKEN, "hint": "a b&c"}, auth=("us", secret))


async def failure_of(asking: Deferred[Fetched]) -> FetchError:
    """Return the error of a fetch; check that it is one line, without what was sent."""
    with pytest.raises(FetchError) as caught:
        await asking
    text = str(caught.value)
    assert text.strip()
    assert "\n" not in text
    assert not {word for word in (SECRET, TOKEN, "Basic ") if word in text}
    return caught.value


# Requests and responses


@ensureDeferred
async def test_get_returns_the_document_with_its_freshness(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b'{"a": 1}', headers={"Cache-Control": "public, max-age=60", "Age": "7"})
    assert await get(f"{issuer.origin}/a?b=c") == Fetched(b'{"a": 1}', ("public, max-age=60",), "7")
    (asked,) = issuer.asked
    assert (asked.method, asked.path, asked.body) == ("GET", "/a", b"")
    sent = {name: asked.headers.get(name) for name in ("accept", "accept-encoding", "user-agent", "authorization")}
    assert sent == {
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": "postd",
        "authorization": None,
    }


@ensureDeferred
async def test_document_without_freshness_fields_has_age_0(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b"")
    assert await get(f"{issuer.origin}/a") == Fetched(b"", (), "0")


@ensureDeferred
async def test_all_cache_control_fields_are_returned() -> None:
    peer = Peer(HEAD + b"Cache-Control: public\r\nCache-Control: max-age=9\r\nContent-Length: 1\r\n\r\na")
    assert await get(peer.origin) == Fetched(b"a", ("public", "max-age=9"), "0")
    await peer.gone


@ensureDeferred
@pytest.mark.parametrize("name", [b"Cache-Control", b"Age", b"Location", b"X-Any"])
async def test_response_with_a_non_utf8_field_is_accepted(name: bytes) -> None:
    peer = Peer(HEAD + name + b": \xff\xfe\r\nContent-Length: 1\r\n\r\na")
    fetched = await get(peer.origin)
    assert fetched.content == b"a"
    await peer.gone


@ensureDeferred
async def test_post_sends_the_form_with_basic_credentials(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b"{}")
    assert (await post(f"{issuer.origin}/a")).content == b"{}"
    (asked,) = issuer.asked
    assert asked.method == "POST"
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert asked.headers["authorization"] == "Basic " + b64encode(f"us:{SECRET}".encode()).decode()
    assert asked.form == {"token": TOKEN, "hint": "a b&c"}


@ensureDeferred
async def test_post_without_auth_sends_no_credentials(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b"{}")
    await make_fetcher().post(f"{issuer.origin}/a", {"token": TOKEN}, auth=None)
    assert "authorization" not in issuer.asked[0].headers


@ensureDeferred
@pytest.mark.parametrize("status", [201, 204, 206, 401, 403, 404, 500, 503])
async def test_other_status_is_an_unusable_response(issuer: Issuer, status: int) -> None:
    issuer.replies["/a"] = Reply(b"" if status == 204 else b"{}", status)
    for asking in (get(f"{issuer.origin}/a"), post(f"{issuer.origin}/a")):
        error = await failure_of(asking)
        assert isinstance(error, UnusableError)  # the host is there
        assert str(status) in str(error)


@ensureDeferred
async def test_400_is_a_response_to_post_but_not_to_get(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b'{"error": "x"}', 400)
    assert str(await failure_of(get(f"{issuer.origin}/a"))) == "unexpected HTTP status 400"
    assert await post(f"{issuer.origin}/a") == Fetched(b'{"error": "x"}', status=400)


@ensureDeferred
async def test_response_with_a_non_utf8_cookie_is_accepted(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b"{}", headers={"Set-Cookie": "a=\xe4; Path=/"})
    assert (await get(f"{issuer.origin}/a")).content == b"{}"


@ensureDeferred
async def test_cookies_are_not_sent_back(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply.redirect("/b")
    issuer.replies["/a"].headers["Set-Cookie"] = "session=1; Path=/"
    issuer.replies["/b"] = Reply(b"", headers={"Set-Cookie": "session=2; Path=/"})
    fetcher = make_fetcher()
    await fetcher.get(f"{issuer.origin}/b")
    await fetcher.get(f"{issuer.origin}/b")
    await fetcher.post(f"{issuer.origin}/b", {}, auth=None)
    assert [asked.headers.get("cookie") for asked in issuer.asked] == [None] * 3


@ensureDeferred
async def test_proxies_of_the_environment_are_not_used(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for spelling in (name, name.upper()):
            monkeypatch.setenv(spelling, f"http://127.0.0.1:{free_port()}")
    issuer.replies["/a"] = Reply(b"a")
    assert (await get(f"{issuer.origin}/a")).content == b"a"


@ensureDeferred
@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1/",
        "http://idp.example/",
        "ftp://127.0.0.1/",
        "file:///etc/hostname",
        "//127.0.0.1/",
        "https://",
        "https://us:s3cret-of-ours@127.0.0.1/",
        "https://127.0.0.1:99999/",
        "https://127.0.0.1/a b",
        "https://127.0.0.1/\r\nX: y",
        "",
    ],
)
async def test_url_that_is_not_https_or_loopback_is_not_requested(url: str) -> None:
    """Settings refuse such URLs earlier; metadata of an issuer and programs may have them."""
    for asking in (get(url), post(url)):
        assert str(await failure_of(asking)) == "the URL is not https (http is allowed for loopback only)"


# Sizes


@ensureDeferred
async def test_content_of_256_kib_is_accepted(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b"x" * CONTENT_MAX_BYTES)
    assert len((await get(f"{issuer.origin}/a")).content) == CONTENT_MAX_BYTES == 256 * 1024


@ensureDeferred
async def test_content_of_more_than_256_kib_is_refused(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply(b"x" * (CONTENT_MAX_BYTES + 1))
    assert "more than 256 KiB" in str(await failure_of(get(f"{issuer.origin}/a")))
    assert "more than 256 KiB" in str(await failure_of(post(f"{issuer.origin}/a")))


def chunks(size: int, total: int) -> bytes:
    return b"%x\r\n%s\r\n" % (size, b"x" * size) * (total // size)


@ensureDeferred
@pytest.mark.parametrize(
    ("pieces", "size"),
    [
        ((CHUNKED, chunks(4096, CONTENT_MAX_BYTES), b"0\r\n\r\n"), CONTENT_MAX_BYTES),
        ((CHUNKED, chunks(16, CONTENT_MAX_BYTES), b"0\r\n\r\n"), CONTENT_MAX_BYTES),
        ((CHUNKED, chunks(1, CONTENT_MAX_BYTES // 4), b"0\r\n\r\n"), CONTENT_MAX_BYTES // 4),
        ((HEAD + b"\r\n", b"a" * 1000), 1000),
        ((b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", HEAD + b"Content-Length: 1\r\n\r\na"), 1),
    ],
    ids=["chunks", "small chunks", "chunks of 1 byte", "until the connection closes", "after 103"],
)
async def test_content_is_accepted_however_it_is_framed(pieces: tuple[bytes, ...], size: int) -> None:
    peer = Peer(*pieces, closes=pieces[0] == HEAD + b"\r\n")
    assert len((await get(peer.origin)).content) == size
    await peer.gone


@ensureDeferred
async def test_chunked_content_of_more_than_256_kib_is_refused() -> None:
    peer = Peer(CHUNKED, chunks(4096, CONTENT_MAX_BYTES), chunks(1, 1))
    assert "more than 256 KiB" in str(await failure_of(get(peer.origin)))
    await peer.gone


@ensureDeferred
@pytest.mark.parametrize("tls", [False, True])
async def test_connection_is_aborted_when_the_content_is_too_large(
    *, tls: bool, certificate: tuple[Path, Path]
) -> None:
    """Also over TLS, where Twisted would only ask the server to close."""
    more = b"x" * 1024**2
    peer = Peer(HEAD + b"\r\n", *[more] * 64, certificate=certificate if tls else None)
    error = await failure_of(make_fetcher(certificate[1]).get(peer.origin))
    assert "more than 256 KiB" in str(error)
    assert await peer.gone < 32 * len(more)


@ensureDeferred
async def test_connection_is_aborted_when_the_head_is_too_large() -> None:
    more = (b"X: " + b"x" * 8187 + b"\r\n") * 128
    peer = Peer(HEAD, *[more] * 64)
    await failure_of(get(peer.origin))
    assert await peer.gone < 32 * len(more)


@ensureDeferred
@pytest.mark.parametrize(
    "encoding", ["", "identity", "Identity", ", identity", "gzip", "GZIP", "x-gzip", "identity, gzip"]
)
async def test_content_with_an_empty_coding_or_gzip_is_read(issuer: Issuer, encoding: str) -> None:
    """Some servers and proxies compress although `identity` is asked for."""
    content = gzip.compress(b'{"a": 1}') if "gzip" in encoding.lower() else b'{"a": 1}'
    issuer.replies["/a"] = Reply(content, headers={"Content-Encoding": encoding})
    assert (await get(f"{issuer.origin}/a")).content == b'{"a": 1}'
    assert (await post(f"{issuer.origin}/a")).content == b'{"a": 1}'
    assert {asked.headers["accept-encoding"] for asked in issuer.asked} == {"identity"}


@ensureDeferred
@pytest.mark.parametrize("size", [CONTENT_MAX_BYTES, CONTENT_MAX_BYTES + 1, 16 * 1024**2])
async def test_expanded_content_is_limited(issuer: Issuer, size: int) -> None:
    issuer.replies["/a"] = Reply(gzip.compress(bytes(size)), headers={"Content-Encoding": "gzip"})
    if size == CONTENT_MAX_BYTES:
        assert len((await get(f"{issuer.origin}/a")).content) == size
    else:
        assert "more than 256 KiB" in str(await failure_of(get(f"{issuer.origin}/a")))


@ensureDeferred
@pytest.mark.parametrize("content", [b"", b"{}", GZIP[:-1], GZIP[:20] + b"x" * 20])
async def test_malformed_gzip_is_refused(issuer: Issuer, content: bytes) -> None:
    issuer.replies["/a"] = Reply(content, headers={"Content-Encoding": "gzip"})
    assert "malformed gzip" in str(await failure_of(get(f"{issuer.origin}/a")))


@ensureDeferred
@pytest.mark.parametrize("encoding", ["deflate", "br", "gzip, gzip", "zstd", "unheard-of"])
async def test_other_coding_is_refused(issuer: Issuer, encoding: str) -> None:
    issuer.replies["/a"] = Reply(gzip.compress(b"{}"), headers={"Content-Encoding": encoding})
    assert "compressed" in str(await failure_of(get(f"{issuer.origin}/a")))
    assert "compressed" in str(await failure_of(post(f"{issuer.origin}/a")))


# Waiting as the host has asked


class Busy:
    """A fetcher with a clock of its own, and an issuer that answers with one response."""

    def __init__(self, issuer: Issuer, status: int, retry_after: str | None) -> None:
        self.issuer = issuer
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        issuer.replies["/a"] = Reply(b"", status, headers)
        self.reactor = MovableReactor()
        self.fetcher = Fetcher(cast("IReactor", self.reactor))

    async def check(self, wait_s: float, requests: int, path: str = "/a") -> None:
        """Check the wait that the failure has, and the number of requests so far."""
        error = await failure_of(self.fetcher.get(f"{self.issuer.origin}{path}"))
        assert error.retry_after_s == pytest.approx(wait_s, abs=60 if wait_s > 60 else 0)
        assert len(self.issuer.asked) == requests


class MovableReactor:
    """The reactor, with a clock that is ahead by `ahead_s`."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        directlyProvides(self, providedBy(global_reactor))

    def seconds(self) -> float:
        return cast("IReactor", global_reactor).seconds() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(global_reactor, name)


@ensureDeferred
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("dated", [False, True])
async def test_host_that_asks_to_wait_gets_no_request_before(issuer: Issuer, status: int, *, dated: bool) -> None:
    """`Retry-After` has seconds or a date; other URLs, as those of other issuers, are not affected."""
    value = format_datetime(datetime.now(UTC) + timedelta(seconds=500), usegmt=True) if dated else "500"
    busy = Busy(issuer, status, value)
    await busy.check(500, 1)
    for _ in range(3):
        await busy.check(500, 1)
    await busy.check(0, 2, "/none")
    busy.reactor.ahead_s = 400
    await busy.check(100, 2)
    busy.reactor.ahead_s = 501
    issuer.replies["/a"] = Reply(b"a")
    assert (await busy.fetcher.get(f"{issuer.origin}/a")).content == b"a"
    assert (await busy.fetcher.get(f"{issuer.origin}/a")).content == b"a"


@ensureDeferred
@pytest.mark.parametrize(
    ("status", "value", "wait_s"),
    [
        (429, "99999999999999999999", RETRY_AFTER_MAX_S),
        (503, "Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_MAX_S),
        (429, None, RETRY_AFTER_DEFAULT_S),
        (429, "soon", RETRY_AFTER_DEFAULT_S),
        (429, "-5", RETRY_AFTER_DEFAULT_S),
        (429, "0", RETRY_AFTER_DEFAULT_S),
        (429, "Sun, 06 Nov 1994 08:49:37 GMT", RETRY_AFTER_DEFAULT_S),
        (503, None, 0),
        (503, "soon", 0),
        (503, "0", 0),
        (500, "60", 0),
        (404, "60", 0),
    ],
)
async def test_wait_is_bounded(issuer: Issuer, status: int, value: str | None, wait_s: float) -> None:
    busy = Busy(issuer, status, value)
    await busy.check(wait_s, 1)


# Redirects


@ensureDeferred
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_within_the_origin_are_followed(issuer: Issuer, status: int) -> None:
    issuer.replies["/a"] = Reply(b"", status, {"Location": f"{issuer.origin}/b/c"})
    issuer.replies["/b/c"] = Reply(b"", status, {"Location": "../d"})
    issuer.replies["/d"] = Reply(b"", status, {"Location": f"//127.0.0.1:{issuer.origin.rpartition(':')[2]}/e"})
    issuer.replies["/e"] = Reply(b"e")
    assert (await get(f"{issuer.origin}/a")).content == b"e"
    assert [asked.path for asked in issuer.asked] == ["/a", "/b/c", "/d", "/e"]


@ensureDeferred
async def test_more_than_3_redirects_are_refused(issuer: Issuer) -> None:
    for number in range(REDIRECTS_MAX + 1):
        issuer.replies[f"/{number}"] = Reply.redirect(f"/{number + 1}")
    issuer.replies[f"/{REDIRECTS_MAX + 1}"] = Reply(b"a")
    assert "more than 3 redirects" in str(await failure_of(get(f"{issuer.origin}/0")))
    assert issuer.count(f"/{REDIRECTS_MAX + 1}") == 0


@ensureDeferred
async def test_redirect_loop_is_refused(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply.redirect("/a")
    assert "more than 3 redirects" in str(await failure_of(get(f"{issuer.origin}/a")))
    assert issuer.count("/a") == REDIRECTS_MAX + 1


@ensureDeferred
async def test_redirect_to_another_port_is_refused(issuer: Issuer, elsewhere: Issuer) -> None:
    issuer.replies["/a"] = Reply.redirect(f"{elsewhere.origin}/a")
    assert "redirect to another" in str(await failure_of(get(f"{issuer.origin}/a")))
    assert elsewhere.asked == []


@ensureDeferred
async def test_redirect_to_another_name_of_the_host_is_refused(issuer: Issuer) -> None:
    issuer.replies["/a"] = Reply.redirect(issuer.origin.replace("127.0.0.1", "localhost") + "/b")
    issuer.replies["/b"] = Reply(b"b")
    assert "redirect to another" in str(await failure_of(get(f"{issuer.origin}/a")))
    assert issuer.count("/b") == 0


@ensureDeferred
async def test_redirect_from_https_to_http_is_refused(
    encrypted: Issuer, issuer: Issuer, certificate: tuple[Path, Path]
) -> None:
    """To another server, and to the same one."""
    fetcher = make_fetcher(certificate[1])
    for url in (f"{issuer.origin}/a", encrypted.origin.replace("https:", "http:") + "/a"):
        encrypted.replies["/b"] = Reply.redirect(url)
        assert "redirect to another" in str(await failure_of(fetcher.get(f"{encrypted.origin}/b")))
    assert (issuer.asked, encrypted.count("/a")) == ([], 0)


@ensureDeferred
@pytest.mark.parametrize(
    "headers",
    [
        *({"Location": url} for url in ("", "https://", "http://[", "//us:pw@x/")),
        *({"Location": url} for url in ("file:///etc/hostname", "javascript:0")),
        {},
    ],
    ids=str,
)
async def test_redirect_without_a_usable_location_is_refused(issuer: Issuer, headers: dict[str, str]) -> None:
    issuer.replies["/a"] = Reply(b"", 302, headers)
    assert "redirect to another origin, or without" in str(await failure_of(get(f"{issuer.origin}/a")))


@ensureDeferred
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_of_post_is_not_followed(issuer: Issuer, status: int) -> None:
    issuer.replies["/a"] = Reply(b"", status, {"Location": "/b"})
    assert str(status) in str(await failure_of(post(f"{issuer.origin}/a")))
    assert issuer.count("/b") == 0


# Time


async def wait_for(is_so: Callable[[], object]) -> None:
    await deferToThread(wait_until, is_so)


async def check_timeout(asking: Deferred[Fetched], reactor: HeldReactor, max_s: float) -> None:
    """Check that a fetch is given up after a time, and not before."""
    reactor.advance(max_s - 0.1)
    assert not asking.called
    reactor.advance(0.2)
    assert "no response within" in str(await failure_of(asking))


@ensureDeferred
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    "pieces",
    [(), (b"HTTP/1.1 200 OK\r\nX:",), (HEAD + b"Content-Length: 9\r\n\r\n", b"half"), (CHUNKED, b"1\r\na\r\n")],
)
async def test_host_that_hangs_is_given_up_and_its_connection_aborted(
    *, tls: bool, pieces: tuple[bytes, ...], certificate: tuple[Path, Path]
) -> None:
    peer, reactor = Peer(*pieces, certificate=certificate if tls else None), HeldReactor()
    asking = make_fetcher(certificate[1], reactor).get(peer.origin)
    await peer.wait_until_asked()
    await check_timeout(asking, reactor, fetching.FETCH_MAX_S)
    await peer.gone


@ensureDeferred
async def test_host_that_hangs_in_the_tls_handshake_is_given_up() -> None:
    peer, reactor = Peer(), HeldReactor()
    asking = make_fetcher(reactor=reactor).get(peer.origin.replace("http:", "https:"))
    await wait_for(lambda: peer.is_connected)
    await check_timeout(asking, reactor, fetching.FETCH_MAX_S)
    await peer.gone


@ensureDeferred
async def test_host_that_hangs_after_post_is_given_up() -> None:
    peer, reactor = Peer(), HeldReactor()
    asking = post(peer.origin, reactor=reactor)
    await peer.wait_until_asked()
    await check_timeout(asking, reactor, fetching.URGENT_FETCH_MAX_S)
    reactor.advance(fetching.FETCH_MAX_S)
    await peer.gone


@ensureDeferred
@pytest.mark.parametrize("status", [b"302 Found\r\nLocation: https://elsewhere.example/", b"404 Not Found"])
async def test_connection_of_a_refused_response_is_closed(status: bytes) -> None:
    peer = Peer(b"HTTP/1.1 " + status + b"\r\nContent-Length: 9\r\n\r\nhalf")
    await failure_of(get(peer.origin))
    await peer.gone


@ensureDeferred
async def test_timeout_includes_redirects(issuer: Issuer) -> None:
    before, then, reactor = threading.Event(), threading.Event(), HeldReactor()
    issuer.replies["/a"] = Reply(b"", 302, {"Location": "/b"}, before=before)
    issuer.replies["/b"] = Reply(b"b", before=then)
    asking = make_fetcher(reactor=reactor).get(f"{issuer.origin}/a")
    await wait_for(lambda: issuer.count("/a"))
    reactor.advance(2)
    before.set()
    await wait_for(lambda: issuer.count("/b"))
    await check_timeout(asking, reactor, fetching.FETCH_MAX_S - 2)
    then.set()


@ensureDeferred
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/\r\n",
        b"HTTP/1.1 404 Not Found\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n",
    ],
)
async def test_connection_of_a_refused_response_is_closed_before_its_timeout(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each request to a host that sends a body with its refusals would keep a descriptor."""
    monkeypatch.setattr(fetching, "FETCH_MAX_S", 3600.0)
    peer = Peer(head + b"Content-Length: 9\r\n\r\n", b"half")
    await failure_of(get(peer.origin))
    await peer.gone


@ensureDeferred
async def test_cancelled_fetch_closes_its_connection() -> None:
    peer = Peer(HEAD + b"Content-Length: 9\r\n\r\n", b"half")
    asking = get(peer.origin)
    await peer.wait_until_asked()
    asking.cancel()
    with pytest.raises(CancelledError):
        await asking
    await peer.gone


# Unreachable hosts and malformed responses


@ensureDeferred
async def test_refused_connection_is_a_fetch_error() -> None:
    error = await failure_of(get(f"http://127.0.0.1:{free_port()}/"))
    assert not isinstance(error, UnusableError)
    assert "refused" in str(error)


@ensureDeferred
@pytest.mark.parametrize("host", ["idp.invalid", "x" * 64 + ".example", "a..example", "-.example"])
async def test_unknown_host_is_a_fetch_error(host: str) -> None:
    error = await failure_of(get(f"https://{host}/"))
    assert not isinstance(error, UnusableError)
    assert "redirect" not in str(error)


@ensureDeferred
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno field\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        HEAD + b"Content-Length: 9\r\n\r\nhalf",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"9\r\nhalf",
        b"\0" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_broken_response_is_a_fetch_error(sent: bytes) -> None:
    peer = Peer(sent, closes=True)
    await failure_of(get(peer.origin))
    await peer.gone


@ensureDeferred
async def test_error_of_post_does_not_quote_what_was_sent() -> None:
    for sent in (b"", b"nonsense\r\n\r\n"):
        peer = Peer(sent, closes=True)
        await failure_of(post(peer.origin))
        await peer.gone
    await failure_of(post(f"http://127.0.0.1:{free_port()}/"))
    await failure_of(post("http://idp.example/"))


# TLS


@ensureDeferred
async def test_unknown_certificate_is_refused(encrypted: Issuer) -> None:
    error = await failure_of(get(f"{encrypted.origin}/a"))
    assert not isinstance(error, UnusableError)
    assert str(error).startswith("TLS: ")
    assert "certificate verify failed" in str(error)
    assert encrypted.asked == []


@ensureDeferred
async def test_certificate_in_ca_file_is_accepted(encrypted: Issuer, certificate: tuple[Path, Path]) -> None:
    fetcher = make_fetcher(certificate[1])
    for name in ("127.0.0.1", "localhost"):
        url = encrypted.origin.replace("127.0.0.1", name)
        assert (await fetcher.get(f"{url}/a")).content == b"over TLS"


@ensureDeferred
async def test_ca_file_may_have_several_certificates_and_other_text(
    encrypted: Issuer, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    pem = certificate[1].read_text()
    bundle.write_text(f"subject=CN = localhost\n{pem}\n# the same again\n{pem.replace(chr(10), chr(13) + chr(10))}")
    assert (await make_fetcher(bundle).get(f"{encrypted.origin}/a")).content == b"over TLS"


@ensureDeferred
async def test_certificate_of_another_host_is_refused(certificate: tuple[Path, Path]) -> None:
    with Issuer(AUDIENCE, certificate=certificate, host="127.0.0.2") as issuer:
        error = await failure_of(make_fetcher(certificate[1]).get(f"{issuer.origin}/a"))
        assert str(error) == "TLS: its certificate is for another host"
        assert issuer.asked == []


@ensureDeferred
async def test_plain_http_server_behind_an_https_url_is_a_tls_error(issuer: Issuer) -> None:
    error = await failure_of(get(issuer.origin.replace("http:", "https:")))
    assert str(error).startswith("TLS: ")


def test_unreadable_ca_file_is_a_config_error(tmp_path: Path) -> None:
    for missing in (tmp_path / "missing.pem", tmp_path):
        with pytest.raises(ConfigError, match=r"^ca_file: .*: cannot be read: "):
            make_fetcher(missing)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"nonsense",
        b"\xff\x00",
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ],
)
def test_ca_file_without_certificates_is_a_config_error(tmp_path: Path, content: bytes) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(content)
    with pytest.raises(ConfigError, match=r"^ca_file: .*roots\.pem: has no certificates in PEM"):
        make_fetcher(roots)


def test_ca_file_with_one_broken_certificate_is_a_config_error(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Else the missing one would be noticed only when it is needed."""
    roots = tmp_path / "roots.pem"
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    roots.write_bytes(certificate[1].read_bytes() + broken)
    with pytest.raises(ConfigError, match="broken"):
        make_fetcher(roots)


# The log


@ensureDeferred
async def test_fetches_log_nothing(issuer: Issuer, encrypted: Issuer, certificate: tuple[Path, Path]) -> None:
    """Neither successful ones, nor failed ones, nor connections that time out later."""
    reactor = HeldReactor()
    issuer.replies["/a"] = Reply(b"a")
    issuer.replies["/b"] = Reply.redirect("https://elsewhere.example/")
    fetcher = make_fetcher(certificate[1], reactor)
    hanging = [Peer(certificate=tls) for tls in (None, certificate)]
    with capturedLogs() as events:
        failing = [fetcher.get(peer.origin) for peer in hanging]
        await fetcher.get(f"{issuer.origin}/a")
        await fetcher.get(f"{encrypted.origin}/a")
        failing += [fetcher.get(f"{issuer.origin}/b"), fetcher.get(f"http://127.0.0.1:{free_port()}/")]
        for peer in hanging:
            await peer.wait_until_asked()
        reactor.advance(fetching.FETCH_MAX_S)
        for asking in failing:
            await failure_of(asking)
        for peer in hanging:
            await peer.gone
        reactor.advance(fetching.FETCH_MAX_S)
    assert [formatEvent(event) for event in events] == []


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@ensureDeferred
async def test_refused_responses_leave_no_socket_open(issuer: Issuer) -> None:
    issuer.replies["/large"] = Reply(b"x" * (CONTENT_MAX_BYTES + 1))
    issuer.replies["/elsewhere"] = Reply.redirect("https://elsewhere.example/")
    before = open_files()
    for path in ("/large", "/elsewhere", "/missing"):
        for _ in range(3):
            await failure_of(get(f"{issuer.origin}{path}"))
    await wait_for(lambda: open_files() <= before)


def test_repeated_message_is_not_new() -> None:
    repeats = RepeatFilter()
    is_new = [repeats.is_new(message) for message in ("a", "a", "b", "a", "", "")]
    assert is_new == [True, False, True, True, True, False]

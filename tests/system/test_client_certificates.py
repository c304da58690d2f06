"""Client certificates of curl, openssl and browsers, straight to postd and through HAProxy, nginx and Caddy."""

import base64
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from pytest_twisted import async_yield_fixture, ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.threads import deferToThread
from twisted.web.resource import Resource

from postd.http.peer import PeerResolver
from postd.net.listening import ask_for_client_certificates, bind, close
from postd.reactor import IReactor
from tests.helpers import PATIENCE_S, make_certificate, make_site
from tests.redis_server import free_port
from tests.system.browser import OpenBrowser
from tests.system.test_balancers import wait_until
from tests.system.test_redis import ETC, substitute

reactor = cast(IReactor, global_reactor)

Files = tuple[Path, Path]
"""The files of a key and its certificate."""


class Shows(Resource):
    """Records the client certificates of requests, as `PeerResolver` finds them."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.clients = PeerResolver(["127.0.0.1"])
        self.certificates: list[bytes | None] = []
        self.url = ""

    def render(self, request: Any) -> bytes:
        if request.path != b"/post":  # which HAProxy asks for
            self.certificates.append(self.clients.client_certificate(request))
        return b"served"

    def take(self) -> list[bytes | None]:
        """Return what came since the last call."""
        taken, self.certificates = self.certificates, []
        return taken


@async_yield_fixture
async def listen(certificate: Files) -> AsyncIterator[Callable[[str], Shows]]:
    """Return a function that listens on an endpoint, and asks for client certificates if that has TLS."""
    bound = []

    def listen(endpoint: str) -> Shows:
        shows = Shows()
        site = make_site(shows)
        listeners = bind([endpoint], site, where="listen", reactor=reactor)
        ask_for_client_certificates(listeners, ask=True)
        bound.extend(listeners)
        shows.url = listeners[0].url.rstrip("/")
        return shows

    yield listen
    await close(bound)


@pytest.fixture
def tls(certificate: Files) -> str:
    key, cert = certificate
    return f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={cert}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_certificate(tmp_path_factory.mktemp("shown"), subject="client")


def der(files: Files) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files[1].read_text())


def encoded(files: Files) -> str:
    return f":{base64.b64encode(der(files)).decode()}:"


def run(*command: str | Path, sent: str = "") -> str:
    """Return what a program prints; its status is not looked at."""
    return subprocess.run(command, input=sent, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout


def curl(url: str, *options: str, shows: Files | None = None) -> str:
    own: Sequence[str | Path] = () if shows is None else ("--key", shows[0], "--cert", shows[1])
    return run("curl", "--silent", "--insecure", *own, *options, url)


@pytest.mark.parametrize("version", [["--tls-max", "1.2"], ["--tlsv1.3"]], ids=["1.2", "1.3"])
@ensureDeferred
async def test_certificate_of_curl_is_that_of_its_connection(
    listen: Callable[[str], Shows], tls: str, shown: Files, version: list[str]
) -> None:
    server = listen(tls)
    two = [f"{server.url}/again", *version]
    assert await deferToThread(curl, server.url, *two, shows=shown) == "served" * 2
    assert await deferToThread(curl, server.url, *two) == "served" * 2
    assert server.take() == [der(shown)] * 2 + [None] * 2


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@ensureDeferred
async def test_openssl_client_does_not_resume_nor_renegotiate(
    listen: Callable[[str], Shows], tls: str, shown: Files, tmp_path: Path, version: str
) -> None:
    server = listen(tls)
    to = ["openssl", "s_client", "-connect", server.url.partition("//")[2], version]
    own = ["-key", str(shown[0]), "-cert", str(shown[1])]
    get = "GET / HTTP/1.0\nHost: localhost\n\n"

    def ask(*options: str | Path) -> str:
        return run(*to, "-crlf", "-ign_eof", *options, sent=get)

    assert "served" in await deferToThread(ask, *own, "-sess_out", tmp_path / "session")
    assert not (tmp_path / "session").exists()
    if version == "-tls1_2":
        said = await deferToThread(run, *to, "-reconnect", *own)
        assert "Reused" not in said
        assert said.count("New, TLSv1.2") == 6
        assert "served" not in await deferToThread(run, *to, "-ign_eof", *own, sent=f"R\n{get}")
    assert server.take() == [der(shown)]


@ensureDeferred
async def test_page_opens_in_a_browser_without_a_certificate(
    listen: Callable[[str], Shows], tls: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    server = listen(tls)

    def visit() -> list[str]:
        with open_browser(server.url, tmp_path / "profile") as browser:
            texts = []
            for path in ("/", "/next", "/next"):
                browser.open(path)
                texts.append(browser.text)
            return texts

    assert await deferToThread(visit) == ["served"] * 3
    assert set(server.take()) == {None}


Write = Callable[[Path, Files, int, str, bool], list[str]]
"""Writes the settings of a proxy, and returns its command.

The arguments are a folder, the files of the proxy's key and certificate, its port, the address that it forwards to, and
whether it asks for client certificates.
"""


def write_haproxy(folder: Path, own: Files, port: int, node: str, asks: bool) -> list[str]:  # noqa: FBT001 - `Write`
    (folder / "both.pem").write_bytes(own[1].read_bytes() + own[0].read_bytes())
    places = {
        **({"    bind :443": "    #", "#bind :443": "bind :443"} if asks else {}),
        "bind :443 ssl": f"bind 127.0.0.1:{port} ssl",
        "/etc/haproxy/posts.example.pem": str(folder / "both.pem"),
        "192.0.2.21:8080": node,
        "192.0.2.22:8080": node,
        **({"#http-request set-header Client-Cert": "http-request set-header Client-Cert"} if asks else {}),
    }
    (folder / "haproxy.cfg").write_text(substitute("haproxy.cfg.example", places))
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


def write_nginx(folder: Path, own: Files, port: int, node: str, asks: bool) -> list[str]:  # noqa: FBT001 - `Write`
    to_ask = {
        "#ssl_verify_client": "ssl_verify_client",
        "        proxy_set_header Client-Cert": "        #",
        "#proxy_set_header Client-Cert": "proxy_set_header Client-Cert",
    }
    places = {
        "    listen 443 ssl http2;": f"    listen 127.0.0.1:{port} ssl;",
        "/etc/nginx/tls/posts.example.pem": str(own[1]),
        "/etc/nginx/tls/posts.example.key": str(own[0]),
        "/var/log/nginx/postd.log": str(folder / "access.log"),
        "192.0.2.21:8080": node,
        "    server 192.0.2.22:8080": "    #",
        **(to_ask if asks else {}),
    }
    (folder / "site.conf").write_text(substitute("nginx.conf.example", places))
    (folder / "client-cert.conf").write_text((ETC / "nginx-client-cert.conf.example").read_text())
    (folder / "nginx.conf").write_text(
        "daemon off; pid nginx.pid; error_log nginx.log; events {}\n"
        "http { access_log off; include client-cert.conf; include site.conf; }"
    )
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def write_caddy(folder: Path, own: Files, port: int, node: str, asks: bool) -> list[str]:  # noqa: FBT001 - `Write`
    to_ask = {
        "\t#tls {\n\t#\tclient_auth {\n\t#\t\tmode request\n\t#\t}\n\t#}": (
            f"\ttls {own[1]} {own[0]} {{\n\t\tclient_auth {{\n\t\t\tmode request\n\t\t}}\n\t}}"
        ),
        "\t\theader_up -Client-Cert\n": "",
        "#header_up Client-Cert": "header_up Client-Cert",
    }
    files = "tls /etc/caddy/tls/posts.example.pem /etc/caddy/tls/posts.example.key"
    places = {
        "\tservers {": "\tadmin off\n\tauto_https disable_redirects\n\tservers {",
        "posts.example {": f"https://localhost:{port} {{\n\tbind 127.0.0.1\n",
        "/var/log/caddy/postd.log": str(folder / "access.log"),
        "192.0.2.21:8080 192.0.2.22:8080": node,
        **(to_ask if asks else {f"#{files}": f"tls {own[1]} {own[0]}"}),
    }
    (folder / "Caddyfile").write_text(substitute("Caddyfile.example", places))
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@contextmanager
def running(command: Sequence[str], url: str, folder: Path) -> Iterator[None]:
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | {"HOME": str(folder)}, stderr=output)
    try:
        wait_until(lambda: curl(url) == "served" or process.poll() is not None)
        assert process.poll() is None, (folder / "output").read_text()
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "does not ask"])
@pytest.mark.parametrize("write", [write_haproxy, write_nginx, write_caddy], ids=["haproxy", "nginx", "caddy"])
@ensureDeferred
async def test_proxy_passes_on_the_certificate_of_its_client_if_it_asks(  # noqa: PLR0913 - most are fixtures
    listen: Callable[[str], Shows], certificate: Files, shown: Files, tmp_path: Path, write: Write, *, asks: bool
) -> None:
    """What a client sends of the field itself is replaced or removed."""
    node = listen("tcp:0:interface=127.0.0.1")
    port = free_port()
    url = f"https://localhost:{port}"
    command = write(tmp_path, certificate, port, node.url.partition("//")[2], asks)
    large = make_certificate(tmp_path / "large", rsa.generate_private_key(65537, 4096), subject="client")
    forged = ["-H", f"Client-Cert: {encoded(shown)}"]

    def ask() -> None:
        with running(command, url, tmp_path):
            node.take()
            for options in ([], forged, forged * 2, ["-H", f"client_cert: {encoded(shown)}"]):
                for own in (None, shown, large):
                    assert curl(url, *options, shows=own) == "served"

    await deferToThread(ask)
    assert node.take() == [None, *((der(shown), der(large)) if asks else (None, None))] * 4

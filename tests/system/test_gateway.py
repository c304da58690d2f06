"""Six proxies with the settings of etc/, one after another, before one postd and a file server without any sign-in."""

import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

import httpx
import pytest
import requests
from pytest_twisted import async_yield_fixture, ensureDeferred
from requests.auth import HTTPDigestAuth
from twisted.internet import reactor as global_reactor
from twisted.internet.threads import deferToThread

from postd.reactor import IReactor
from postd.testing import Provider
from tests.device import make_proof
from tests.helpers import PATIENCE_S, locked
from tests.integration.daemon import Daemon
from tests.integration.forking import run
from tests.integration.logins import POSTD, check_info, decode_parameters
from tests.integration.test_bearer import bearer_table
from tests.integration.test_logins import write_users
from tests.issuer import Issuer, Key, Prover
from tests.pages import Reader, read_blocks
from tests.redis_server import free_port
from tests.system.chromium import BINDING, PROOF, Chromium, open_chromium
from tests.system.test_balancers import nginx_version, trust_flag, wait_until
from tests.system.test_redis import substitute

REACTOR = cast(IReactor, global_reactor)
PASSWORD = "correct horse"
ODD_NAME = "jürgen 100%"
REPORT = "The report.\n"
FAILURES_MAX = 4
AUDIENCE = "https://app.example"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

PROXIES = ("nginx", "caddy", "traefik", "envoy", "haproxy", "apache")
CHECKS = {"nginx": ["-t"], "caddy": ["adapt"], "envoy": ["--mode", "validate"], "haproxy": ["-c"], "apache": ["-t"]}
"""The options with which a proxy checks its settings; Traefik has none."""

WITHOUT_HOST = {"caddy": 200, "apache": 400, "haproxy": 200}
"""The statuses of a request with HTTP/1.0 and credentials, but without `Host`, where it is not 421."""

WHILE_AWAY = {"caddy": 502, "traefik": 500}
"""The statuses while postd does not run, where it is not 503."""

APACHE_MODULES = ("mpm_event", "authz_core", "headers", "http2", "lua", "proxy", "proxy_http", "ssl")
APACHE_FRAME = """
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/apache.pid
ErrorLog {folder}/apache.log
DefaultRuntimeDir {folder}
User www-data
Group www-data
Include {site}
"""


def find_program(name: str) -> str:
    """Return the path of a program: of this environment (the extra `system`), else of the machine."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    assert path, f"there is no {name}: see docs/development/tests.md"
    return path


class Files(SimpleHTTPRequestHandler):
    """Sends files, takes bodies of any method, and notes each request in `received` of its server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed:
            target = self.requestline.split()[1]  # `path` would have one slash for several at its begin
            self.server.received.append((self.command, target, self.headers))  # type: ignore[attr-defined] # `Application` has it
        return parsed

    def take(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.send_header("X-Length", str(len(body)))
        self.end_headers()

    do_PUT = do_POST = do_PROPFIND = take

    def do_GET(self) -> None:
        if self.path == "/events":
            self._send_event()
        elif self.headers["Upgrade"] == "websocket":
            self._echo()
        else:
            super().do_GET()

    def _send_event(self) -> None:
        """Send an event of a stream that ends once the client has it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Accel-Buffering", "no")  # nginx would wait for the end
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"data: 1\n\n")
        self.server.seen.wait(PATIENCE_S)  # type: ignore[attr-defined] # `Application` has it
        self.close_connection = True

    def _echo(self) -> None:
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        # HAProxy makes 502 of a response without it.
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_header("Sec-WebSocket-Accept", b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while piece := self.rfile.read1(100):
            self.wfile.write(piece)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Application(ThreadingHTTPServer):
    """A file server that knows nothing of authentication; `received` has method, target and fields of its requests."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "report.txt").write_text(REPORT)
        (folder / "page.html").write_text("<!DOCTYPE html><title>Page</title><p>The page.")
        self.received: list[tuple[str, str, Any]] = []
        self.seen = threading.Event()
        super().__init__(("127.0.0.1", 0), partial(Files, directory=str(folder)))

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Backend:
    """What all proxies share: postd, the application, an issuer of tokens; ends with the `with` block.

    Args:
        folder: the folder for the files of postd and of the application.
        provider: the OpenID provider of `[[sign_in]]`.
    """

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.folder = folder
        self.provider = provider
        self.port = free_port()
        self.issuer = Issuer(AUDIENCE, Key.make("ES256"))
        self.application = Application(folder / "public")
        write_users(folder, **dict.fromkeys(("alice", "bob", ODD_NAME), PASSWORD))
        (folder / "users").chmod(0o600)
        settings = substitute(
            "gateway.toml.example", {"tcp:8080": f"tcp:{self.port}", '["app.example"]': '["127.0.0.1"]'}
        )
        throttle = f'\n[session]\nbind = "offer"\n[throttle]\nfailures = {FAILURES_MAX}\n'
        sign_in = f'\n[[sign_in]]\nid = "example"\nname = "Example"\nissuer = "{provider.url}"\nclient_id = "app"\n'
        (folder / "postd.toml").write_text(settings + throttle + bearer_table(self.issuer, dpop="accept") + sign_in)
        self.postd = Daemon(folder, "-c", "postd.toml", listen=None)

    def __enter__(self) -> Self:
        with ExitStack() as running:
            for part in (self.issuer, self.application, self.postd):
                running.enter_context(part)
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


class Gateway:
    """A proxy of a kind before a backend; ends with the `with` block.

    Attributes:
        client_address: where clients come from, for each kind another; the proxy that postd trusts is 127.0.0.1.
    """

    def __init__(self, kind: str, folder: Path, certificate: tuple[Path, Path], backend: Backend) -> None:
        self.kind = kind
        self.client_address, self.guest_address, self.other_address = (
            f"127.0.{number}.{PROXIES.index(kind) + 1}" for number in (1, 2, 3)
        )
        self.provider, self.issuer, self.application = backend.provider, backend.issuer, backend.application
        self.postd, self._postd_port = backend.postd, backend.port
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.folder = folder
        self.certificate = certificate[1]
        self._key = certificate[0]
        self._running = self._stopped = ExitStack()
        write = {
            "nginx": self._write_nginx,
            "caddy": self._write_caddy,
            "traefik": self._write_traefik,
            "envoy": self._write_envoy,
            "haproxy": self._write_haproxy,
            "apache": self._write_apache,
        }
        self.command = write[kind]()

    def __enter__(self) -> Self:
        with self._stopped as running:
            self.process = subprocess.Popen(self.command, cwd=self.folder, env=os.environ | {"HOME": str(self.folder)})
            running.callback(self._stop)
            with self.client() as client:
                wait_until(lambda: self._serves(client))
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def client(self, address: str = "", **options: Any) -> httpx.Client:
        """Return a client that trusts the certificate; `address` is where it comes from, if not `client_address`."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        transport = httpx.HTTPTransport(verify=context, local_address=address or self.client_address)
        return httpx.Client(transport=transport, base_url=self.url, timeout=PATIENCE_S, **options)

    def connect(self) -> ssl.SSLSocket:
        """Return a connection that sends each write at once."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S, source_address=(self.client_address, 0))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the request waits 40 ms for a delayed ACK
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def curl(self, *options: str, path: str = "/report.txt") -> str:
        """Return what curl prints."""
        command = [
            "curl",
            "--silent",
            "--cacert",
            str(self.certificate),
            "--interface",
            self.client_address,
            *options,
            self.url + path,
        ]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd=self.folder
        ).stdout

    def last(self) -> tuple[str, str, Any]:
        """Return method, target and fields of the request that has reached the application last, and forget all."""
        received = self.application.received.pop()
        self.application.received.clear()
        return received

    def _serves(self, client: httpx.Client) -> bool:
        assert self.process.poll() is None
        try:
            return client.get("/report.txt").status_code == 401
        except httpx.TransportError:
            return False

    def _stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def _write_nginx(self) -> list[str]:
        site = substitute(
            "gateway-nginx.conf.example",
            {
                "127.0.0.1:8080": f"127.0.0.1:{self._postd_port}",
                "127.0.0.1:8000": f"127.0.0.1:{self.application.server_port}",
                "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
                "/etc/nginx/tls/app.example.pem": str(self.certificate),
                "/etc/nginx/tls/app.example.key": str(self._key),
            },
        )
        if nginx_version() >= (1, 25, 1):
            site = re.sub(r"^    listen .* ssl http2;\n", "", site, flags=re.MULTILINE)
            site = site.replace("#listen", "listen").replace("#http2 on", "http2 on")
        if nginx_version() < (1, 23):
            assert site.count("#add_header WWW-Authenticate") == 2
            site = site.replace("#add_header", "add_header")
        (self.folder / "site.conf").write_text(site)
        frame = "daemon off; pid nginx.pid; error_log nginx.log; events {} http { access_log off; include site.conf; }"
        (self.folder / "nginx.conf").write_text(frame)
        return ["nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    def _write_caddy(self) -> list[str]:
        options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
        settings = substitute(
            "gateway-Caddyfile.example",
            {
                "\n\napp.example {": f"\n{options}\n{self.url} {{\n\tbind 127.0.0.1\n",
                "#tls /etc/caddy/tls/app.example.pem /etc/caddy/tls/app.example.key": (
                    f"tls {self.certificate} {self._key}"
                ),
                "127.0.0.1:8080": f"127.0.0.1:{self._postd_port}",
                "127.0.0.1:8000": f"127.0.0.1:{self.application.server_port}",
            },
        )
        (self.folder / "Caddyfile").write_text(settings)
        return ["caddy", "run", "--config", str(self.folder / "Caddyfile"), "--adapter", "caddyfile"]

    def _fill(self, name: str, places: Mapping[str, str]) -> Path:
        """Write the example of a proxy, with the ports and files of the test; return its path."""
        common = {
            "127.0.0.1:8080": f"127.0.0.1:{self._postd_port}",
            "127.0.0.1:8000": f"127.0.0.1:{self.application.server_port}",
        }
        path = self.folder / name.removesuffix(".example")
        path.write_text(substitute(name, {**common, **places}))
        return path

    def _write_traefik(self) -> list[str]:
        places = {
            "/etc/traefik/tls/app.example.pem": str(self.certificate),
            "/etc/traefik/tls/app.example.key": str(self._key),
        }
        settings = self._fill("gateway-traefik.yml.example", places)
        static = re.findall(r"^#  ( .*)$", settings.read_text(), re.MULTILINE)
        (self.folder / "traefik.yml").write_text(
            textwrap.dedent("\n".join(static))
            .replace(":443", f"127.0.0.1:{self.port}")
            .replace("/etc/traefik/gateway.yml", str(settings))
        )
        return [find_program("traefik"), f"--configFile={self.folder / 'traefik.yml'}"]

    def _write_envoy(self) -> list[str]:
        places = {
            "address: 0.0.0.0, port_value: 443": f"address: 127.0.0.1, port_value: {self.port}",
            "port_value: 8080": f"port_value: {self._postd_port}",
            "port_value: 8000": f"port_value: {self.application.server_port}",
            "/etc/envoy/tls/app.example.pem": str(self.certificate),
            "/etc/envoy/tls/app.example.key": str(self._key),
        }
        path = self.folder / "envoy.yaml"
        path.write_text(substitute("gateway-envoy.yaml.example", places))
        options = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
        return [find_program("envoy"), "-c", str(path), *options]

    def _write_haproxy(self) -> list[str]:
        (self.folder / "both.pem").write_bytes(self.certificate.read_bytes() + self._key.read_bytes())
        action = self.folder / "gateway.lua"
        places = {"127.0.0.1:8080": f"127.0.0.1:{self._postd_port}"}
        action.write_text(substitute("gateway-haproxy.lua.example", places))
        places = {
            "bind :443": f"bind 127.0.0.1:{self.port}",
            "/etc/haproxy/app.example.pem": str(self.folder / "both.pem"),
            "/etc/haproxy/gateway.lua": str(action),
        }
        return ["haproxy", "-db", "-f", str(self._fill("gateway-haproxy.cfg.example", places))]

    def _write_apache(self) -> list[str]:
        # Started by root, Apache serves as another user, without access to pytest's folders.
        hooks = Path(mkdtemp()) / "gateway.lua"
        self._stopped.callback(shutil.rmtree, hooks.parent)
        hooks.parent.chmod(0o755)
        hooks.write_text(substitute("gateway-apache.lua.example", {"8080": str(self._postd_port)}))
        places = {
            "*:443": f"127.0.0.1:{self.port}",
            "/etc/apache2/tls/app.example.pem": str(self.certificate),
            "/etc/apache2/tls/app.example.key": str(self._key),
            "/etc/apache2/gateway.lua": str(hooks),
        }
        site = self._fill("gateway-apache.conf.example", places)
        frame = APACHE_FRAME.format(folder=self.folder, port=self.port, site=site)
        modules = [f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in APACHE_MODULES]
        (self.folder / "apache.conf").write_text("\n".join([*modules, frame]))
        options = ("-D", "FOREGROUND", "-d", str(self.folder), "-f", str(self.folder / "apache.conf"))
        return [find_program("apache2"), *options]


@async_yield_fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    async with Provider(REACTOR) as provider:
        with Backend(tmp_path_factory.mktemp("backend"), provider) as backend:
            yield backend
        assert "Traceback" not in backend.postd.log


@pytest.fixture(scope="module", params=PROXIES)
def gateway(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificate: tuple[Path, Path],
    backend: Backend,
) -> Iterator[Gateway]:
    with Gateway(request.param, tmp_path_factory.mktemp(request.param), certificate, backend) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    gateway.application.received.clear()
    with gateway.client() as client:
        yield client


def sign_in(client: httpx.Client, **more: str) -> httpx.Response:
    answer = client.post("/login", data={"username": "alice", "password": PASSWORD, **more})
    assert answer.status_code == 302
    return answer


def open_session(gateway: Gateway) -> requests.Session:
    session = requests.Session()
    session.auth = HTTPDigestAuth("alice", PASSWORD)
    session.trust_env = False  # else the environment's certificates go before ours
    session.verify = str(gateway.certificate)
    return session


def challenges(answer: httpx.Response) -> list[str]:
    return [line.partition(" ")[0] for line in answer.headers.get_list("WWW-Authenticate")]


def test_example_settings_are_valid(gateway: Gateway) -> None:
    if gateway.kind in CHECKS:
        options = gateway.command[2:] if gateway.kind == "caddy" else gateway.command[1:]
        command = [gateway.command[0], *CHECKS[gateway.kind], *options]
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert result.returncode == 0, result.stderr
        assert "warn" not in (result.stdout + result.stderr).lower()


@ensureDeferred
async def test_example_settings_of_postd_are_valid(backend: Backend) -> None:
    checked = await deferToThread(run, [POSTD, "check", "-c", "postd.toml"], backend.folder)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_commands_of_the_page_print_what_it_shows(gateway: Gateway) -> None:
    (gateway.folder / "token").write_text(gateway.issuer.token())
    steps = [
        block._replace(words=(), text=block.text.replace("https://app.example", gateway.url))
        for block in read_blocks("docs/how-to/gateway.md")
        if block.language == "console"
    ]
    assert steps
    with Reader(gateway.folder, os.environ | {"CURL_CA_BUNDLE": str(gateway.certificate)}) as reader:
        reader.follow(steps)


def test_request_without_credentials_is_refused(gateway: Gateway, client: httpx.Client) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS", "PROPFIND"):
        answer = client.request(method, "/report.txt")
        lines = challenges(answer)
        assert answer.status_code == 401
        assert lines[0] == "Digest"
        assert lines[-2:] == (["Bearer", "Basic"] if gateway.kind == "nginx" else ["DPoP", "Basic"])
    preflight = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "GET"}
    assert client.options("/report.txt", headers=preflight).status_code == 401
    assert gateway.application.received == []


def test_pages_of_the_gateway_are_no_way_in(gateway: Gateway, client: httpx.Client) -> None:
    for path in ("/gate", "/gate/x", "/post", "/openapi.json", "/%67ate", "//gate", "/login/", "/x/../gate"):
        request = client.build_request("GET", gateway.url + path)
        request.url = httpx.URL(gateway.url).copy_with(raw_path=path.encode())
        answer = client.send(request)
        assert answer.status_code in {400, 401, 404}, path
        assert not [name for name in answer.headers if name.lower().startswith("remote-")]
    assert gateway.application.received == []


def test_basic(gateway: Gateway, client: httpx.Client) -> None:
    for version in ("--http1.1", "--http2"):
        assert gateway.curl(version, "--basic", "--user", f"alice:{PASSWORD}") == REPORT
    _, target, fields = gateway.last()
    assert (target, fields["Remote-User"], fields["Remote-Scheme"]) == ("/report.txt", "alice", "basic")
    assert (fields["Remote-Scopes"], fields["Authorization"]) == (None, None)
    assert fields["X-Forwarded-For"] == gateway.client_address
    answer = client.put("/upload?a=b%20c", content=b"x" * 300_000, auth=("alice", PASSWORD))
    assert (answer.status_code, answer.headers["X-Length"]) == (201, "300000")
    assert client.get("/report.txt", auth=("alice", "wrong")).status_code == 401
    assert client.get("/nothing", auth=("alice", PASSWORD)).status_code == 404


def test_name_is_encoded(gateway: Gateway, client: httpx.Client) -> None:
    assert client.get("/report.txt", auth=(ODD_NAME, PASSWORD)).text == REPORT
    assert gateway.last()[2]["Remote-User"] == "j%C3%BCrgen 100%25"


def test_digest_by_curl(gateway: Gateway) -> None:
    """A request without credentials, then one with them; a body is sent with the second."""
    (gateway.folder / "body").write_bytes(b"x" * 300_000)
    # With HTTP/2, curl 7.88 declares no body for the first PUT and sends one: some proxies reset that stream.
    digest = ("--http1.1", "--digest", "--user", f"alice:{PASSWORD}", "--verbose", "--dump-header", "-")
    for options, method, length in (
        ((), "GET", None),
        (("--upload-file", "body"), "PUT", "300000"),
        (("--data-binary", "@body"), "POST", "300000"),
        (("--data", "depth=1", "--request", "PROPFIND"), "PROPFIND", "7"),
    ):
        path = "/report.txt?a=b&c=%20" if method == "GET" else "/dav/new%20file?x=y"
        printed = gateway.curl(*digest, *options, path=path)
        heads = re.split("^HTTP/", printed, flags=re.MULTILINE)[1:]
        assert "401" in heads[0].splitlines()[0]
        assert re.match(r"\S+ 20[01]", heads[-1])
        # Traefik passes no field of postd's response on to the client.
        assert ("authentication-info: qop=auth, rspauth=" in heads[-1].lower()) == (gateway.kind != "traefik")
        assert length is None or f"x-length: {length}\n" in heads[-1].lower().replace("\r", "")
        received, target, fields = gateway.last()
        assert (received, target, fields["Remote-Scheme"]) == (method, path, "digest")
        assert fields["Authorization"] is None


def test_digest_by_requests_proves_the_server_too(gateway: Gateway) -> None:
    if gateway.kind == "traefik":
        pytest.skip("Traefik does not pass Authentication-Info on")
    with open_session(gateway) as session:
        for path in ("/report.txt", "/report.txt?a=b", "/report.txt?c"):
            answer = session.get(gateway.url + path, timeout=PATIENCE_S)
            assert (answer.status_code, answer.text) == (200, REPORT)
            check_info(answer.headers["Authentication-Info"], str(answer.request.headers["Authorization"]), PASSWORD)
        assert session.post(f"{gateway.url}/x", data=b"x" * 5000, timeout=PATIENCE_S).headers["X-Length"] == "5000"


def test_digest_response_is_good_once_and_for_its_target(gateway: Gateway, client: httpx.Client) -> None:
    with open_session(gateway) as session:
        sent = session.get(f"{gateway.url}/report.txt", timeout=PATIENCE_S).request.headers["Authorization"]
    used = {"Authorization": str(sent)}
    again = client.get("/report.txt", headers=used)
    assert again.status_code == 401
    assert decode_parameters(again.headers.get_list("WWW-Authenticate")[0])["stale"] == "true"
    assert client.get("/page.html", headers=used).status_code == 400
    as_another = {**used, "X-Forwarded-Uri": "/report.txt", "X-Original-URI": "/report.txt"}
    assert client.get("/page.html", headers=as_another).status_code == 400


def test_token(gateway: Gateway, client: httpx.Client) -> None:
    token = gateway.issuer.token(scope="b a")
    assert gateway.curl("--header", f"Authorization: Bearer {token}") == REPORT
    fields = gateway.last()[2]
    assert fields["Remote-User"] == f"{gateway.issuer.issuer}#alice"
    assert (fields["Remote-Scheme"], fields["Remote-Scopes"]) == ("bearer", "a b")
    answer = client.get("/report.txt", headers={"Authorization": "Bearer x"})
    assert answer.status_code == 401
    metadata = client.get("/.well-known/oauth-protected-resource")
    assert metadata.json()["resource"] == gateway.url
    if gateway.kind != "nginx":
        (line,) = [one for one in answer.headers.get_list("WWW-Authenticate") if one.startswith("Bearer")]
        assert 'error="invalid_token"' in line
        assert f'resource_metadata="{metadata.url}"' in line


def test_dpop_proof_is_for_the_url_of_the_client(gateway: Gateway, client: httpx.Client) -> None:
    prover = Prover(Key.make("ES256"))
    token = gateway.issuer.token(cnf=prover.confirmation)

    def send(method: str, url: str) -> httpx.Response:
        proof = prover.prove(method, url, token)
        return client.put("/x?a=b", content=b"x", headers={"Authorization": f"DPoP {token}", "DPoP": proof})

    assert send("PUT", f"{gateway.url}/x").status_code == 201
    assert gateway.last()[2]["Remote-Scheme"] == "dpop"
    for method, url in (("GET", f"{gateway.url}/x"), ("PUT", f"{gateway.url}/gate"), ("PUT", "http://127.0.0.1/x")):
        assert send(method, url).status_code == 401
    assert gateway.application.received == []


@ensureDeferred
async def test_sign_in_at_a_provider(gateway: Gateway, client: httpx.Client) -> None:
    await deferToThread(sign_in_at_provider, gateway, client)  # the provider runs in the reactor


def sign_in_at_provider(gateway: Gateway, client: httpx.Client) -> None:
    client.cookies.set("theme", "dark", path="/")
    wait_until(lambda: client.get("/login/example?next=/report.txt%3Fa=b").is_redirect)  # 503 before it has metadata
    provider, url = gateway.provider, client.get("/login/example?next=/report.txt%3Fa=b").headers["Location"]
    assert parse_qs(urlsplit(url).query)["redirect_uri"] == [f"{gateway.url}/login/example/callback"]
    provider.userinfo["name"] = ODD_NAME
    assert client.get(provider.authorize(url)).headers["Location"] == "/report.txt?a=b"
    for headers in ({}, SMUGGLED):
        assert client.get("/report.txt", headers=headers).text == REPORT
        received = gateway.last()[2]
        named = [received.get_all(f"Remote-{name}") for name in ("User", "Name", "Scheme", "Scopes")]
        assert named == [[f"{provider.url}#alice"], ["j%C3%BCrgen 100%25"], ["session"], None]
    denied = client.get("/login/example/callback", params={"error": "access_denied", "state": "x"})
    assert denied.status_code == 400
    with gateway.client(gateway.guest_address) as other:
        token = {"logout_token": provider.logout_token()}
        assert other.post("/login/example/back-channel-logout", data=token).status_code == 200
    assert client.get("/report.txt").status_code == 401


def test_session(gateway: Gateway, client: httpx.Client) -> None:
    cookie = sign_in(client).headers["Set-Cookie"]
    assert "; Secure" in cookie
    assert client.get("/report.txt").text == REPORT
    fields = gateway.last()[2]
    assert (fields["Remote-User"], fields["Remote-Scheme"], fields["Remote-Scopes"]) == ("alice", "session", None)
    assert client.get("/report.txt", headers={"Accept": BROWSER}).text == REPORT
    assert client.post("/x", content=b"x", headers={"Origin": gateway.url}).status_code == 201
    for fields in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        gateway.application.received.clear()
        assert client.post("/x", content=b"x", headers=fields).status_code == 403
        assert client.post("/logout", headers=fields).status_code == 403
        assert gateway.application.received == []
    assert client.post("/logout").headers["Location"] == "/"
    client.cookies.clear()
    for accept, status in (("*/*", 401), ("text/html, image/gif, *; q=.2, */*; q=.2", 401), (BROWSER, 302)):
        answer = client.get("/report.txt", headers={"Cookie": cookie.partition(";")[0], "Accept": accept})
        assert answer.status_code == status


def test_session_is_bound_to_a_device(gateway: Gateway, client: httpx.Client) -> None:
    """`tests/system/test_bound_session.py` has a browser."""
    bound = gateway.postd.log.count("session bound to a device")
    key, offer = Key.make("ES256"), sign_in(client).headers["Secure-Session-Registration"]
    found = re.fullmatch(r'\(ES256 RS256\);path="(/login/bind)";challenge="([^"]+)"', offer)
    assert found
    proof = make_proof(key, found[2], registers=True)
    answer = client.post(found[1], headers={"Secure-Session-Response": proof})
    assert answer.status_code == 200
    assert answer.json()["scope"]["origin"] == gateway.url
    client.cookies.set("theme", "dark")
    assert client.get("/report.txt").text == REPORT
    wait_until(lambda: gateway.postd.log.count("session bound to a device") > bound)
    challenge = answer.headers["Secure-Session-Challenge"].split('"')[1]
    named = {"Sec-Secure-Session-Id": answer.json()["session_identifier"]}
    renewed = client.post(
        "/login/bind/refresh", headers={**named, "Secure-Session-Response": make_proof(key, challenge)}
    )
    assert renewed.status_code == 200
    assert client.get("/", headers={"Accept": BROWSER}).headers["Location"] == "/home"
    assert client.post("/logout").status_code == 302
    ended = client.post("/login/bind/refresh", headers=named)
    assert (ended.status_code, ended.json()["continue"]) == (200, False)


@pytest.mark.parametrize("target", ["/report.txt", "/a/b?c=d&e=%20f&g=%C3%BC", "/x%0D%0ASet-Cookie:%20a=b", "/?a=b"])
def test_browser_is_led_to_the_form_and_back(gateway: Gateway, client: httpx.Client, target: str) -> None:
    request = client.build_request("GET", gateway.url + "/x", headers={"Accept": BROWSER})
    request.url = httpx.URL(gateway.url).copy_with(raw_path=target.encode())
    if target.startswith("/?"):
        assert "login_form" in client.send(request).text
        return
    answer = client.send(request)
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/?next={quote(target)}")
    assert "Set-Cookie" not in answer.headers
    form = client.get(answer.headers["Location"])
    (field,) = re.findall('name="next" value="([^"]*)"', form.text)
    assert sign_in(client, next=field.replace("&amp;", "&")).headers["Location"] == target
    assert gateway.application.received == []


def test_write_of_a_browser_is_not_redirected(gateway: Gateway, client: httpx.Client) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert client.request(method, "/x", headers={"Accept": BROWSER}).status_code == 401


def test_browser_with_wrong_credentials_is_challenged_even_with_a_session(
    gateway: Gateway, client: httpx.Client
) -> None:
    for _ in range(2):
        answer = client.get("/report.txt", headers={"Accept": BROWSER, "Authorization": "Basic eDp5"})
        assert (answer.status_code, challenges(answer)[-1]) == (401, "Basic")
        assert "Remote-User" not in answer.headers
        sign_in(client)
    assert gateway.application.received == []


_IDENTITY = "Remote-User Remote-Scheme Remote-Scopes Remote-Groups Remote-Name Remote-Email RemoteUser Remote"
_OF_OTHERS = (
    "X-WebAuth-User X-WebAuth-Name X-WebAuth-Groups X-Auth-Request-User X-Auth-Request-Email X-Auth-Request-Groups "
    "X-Authenticated-User X-Real-IP True-Client-IP X-Client-IP Client-IP CF-Connecting-IP X-User X-SSL-Client-S-DN"
)
_FORWARDED = "X-Remote-User X-Forwarded-User X-Forwarded-Host X-Forwarded-Prefix X-Forwarded-Port Forwarded"
_ODD = [f"{a}{mark}{b}" for mark in "!#$%&'*+.^_`|~" for a, b in (("Remote", "User"), ("X", "Real-IP"), ("a", "b"))]
_ENCODED = "Remote%2dUser X-WebAuth%2DUser REMOTE_SCOPES X_Remote_User X-Remote_User X_Forwarded-User Client_Cert"
SMUGGLED = dict.fromkeys([*f"{_IDENTITY} {_OF_OTHERS} {_FORWARDED} {_ENCODED}".split(), *_ODD], "root") | {
    "X-Forwarded-Method": "GET",
    "X-Forwarded-Uri": "/root",
    "X-Original-Method": "GET",
    "X-Original-URI": "/root",
    "X-Forwarded-Proto": "http",
    "X-Forwarded-For": "192.0.2.1",
    "X-HTTP-Method-Override": "GET",
    "X-HTTP-Method": "GET",
    "X-Method-Override": "GET",
    "Client-Cert": ":AA==:",
}


@pytest.mark.parametrize("scheme", ["basic", "bearer", "session"])
def test_smuggled_fields_reach_nobody(gateway: Gateway, client: httpx.Client, scheme: str) -> None:
    credentials: dict[str, str] = {}
    if scheme == "basic":
        client.auth = httpx.BasicAuth("alice", PASSWORD)
    elif scheme == "bearer":
        credentials["Authorization"] = f"Bearer {gateway.issuer.token(scope='a')}"
    else:
        sign_in(client)
    sent = {**SMUGGLED, **credentials}
    for fields in (sent, {name.lower(): value for name, value in sent.items()}):
        assert client.get("/report.txt", headers=fields).status_code == 200
        received = gateway.last()[2]
        named = {name.lower().replace("_", "-"): value for name, value in received.items()}
        assert "root" not in " ".join(named.values())
        assert named["remote-user"].endswith("alice")
        assert named["remote-scheme"] == scheme
        assert named.get("remote-scopes") == ("a" if scheme == "bearer" else None)
        assert (named["x-forwarded-for"], named["x-forwarded-proto"]) == (gateway.client_address, "https")
        assert not [name for name in received if not re.fullmatch("[A-Za-z0-9-]+", name)]
        passed = {name for name in named if name.startswith(("x-forwarded-", "x-original-", "client-", "forwarded"))}
        added = {"x-forwarded-port", "x-forwarded-server"} if gateway.kind == "traefik" else set()
        assert passed == {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"} | added
        assert {name for name in named if name.startswith("remote")} <= {
            "remote-user",
            "remote-scheme",
            "remote-scopes",
        }
        assert not [name for name in named if "method" in name]
        assert not [name for name, value in received.items() if "{" in value]


KEPT = {
    "Accept": "text/plain",
    "Accept-Language": "de",
    "Cache-Control": "no-cache",
    "Content-Type": "text/x-test",
    "Cookie": "theme=dark",
    "Depth": "1",
    "Destination": "/other",
    "If-None-Match": '"x"',
    "Origin": "https://127.0.0.1",
    "Referer": "https://127.0.0.1/",
    "Sec-Fetch-Site": "same-origin",
    "User-Agent": "test/1",
    "X-CSRF-Token": "t1",
    "X-CSRFToken": "t2",
    "X-Requested-With": "XMLHttpRequest",
}


def test_fields_that_applications_need_are_passed_on(gateway: Gateway, client: httpx.Client) -> None:
    """Four of the proxies pass on listed fields only."""
    answer = client.post("/x", content=b"x" * 5, headers=KEPT, auth=("alice", PASSWORD))
    assert (answer.status_code, answer.headers["X-Length"]) == (201, "5")
    received = gateway.last()[2]
    assert {name: received[name] for name in KEPT} == KEPT
    ranged = client.get(
        "/report.txt", headers={"If-Modified-Since": "Fri, 27 Nov 2099 00:00:00 GMT"}, auth=("alice", PASSWORD)
    )
    assert ranged.status_code == 304


def test_cookies_of_the_application_do_not_reach_postd(gateway: Gateway, client: httpx.Client) -> None:
    """The limit of a head is 16 KiB; browsers send up to 40 KiB of cookies."""
    if gateway.kind == "traefik":
        pytest.skip("Traefik sends all cookies to postd, as the page says")
    own = sign_in(client).headers["Set-Cookie"].partition(";")[0]
    client.cookies.clear()
    others = "; ".join(f"a{number}={'x' * 4000}" for number in range(10))
    for cookies in (f"{own}; {others}", f"{others}; {own}", f"{others};{own}; xsession=1"):
        assert client.get("/report.txt", headers={"Cookie": cookies}).text == REPORT
        received = gateway.last()[2]
        assert received["Cookie"] == cookies
        assert received["Remote-User"] == "alice"
        assert client.get("/", headers={"Cookie": cookies}).headers["Location"] == "/home"
    assert client.get("/report.txt", headers={"Cookie": others}).status_code == 401
    assert client.get("/report.txt", headers={"Cookie": others}, auth=("alice", PASSWORD)).text == REPORT


def test_request_without_host_is_no_way_in(gateway: Gateway, client: httpx.Client) -> None:
    """HTTP/1.0; with HTTP/3 nginx has no `$http_host`, too. Some proxies put a host of their own in its place."""
    options = ("--http1.0", "--no-alpn", "-H", "Host:", "-o", "/dev/null", "-w", "%{http_code}")
    guest = gateway.curl(*options)
    assert guest == str(401 if gateway.kind == "haproxy" else WITHOUT_HOST.get(gateway.kind, 421))
    assert gateway.application.received == []
    status = gateway.curl(*options, "--user", f"alice:{PASSWORD}")
    assert status == str(WITHOUT_HOST.get(gateway.kind, 421))


ASCII = bytes(range(128)).decode()
ODD_TARGETS = (
    "/a//b", "//a/b", "//login", "/a/../b", "/a/./b", "/x/../login", "/./gate", "/a%2Fb", "/a%2fb%2e%2e/c", "/%2e%2e/x",
    "/..%2fx", "/x%00y", "/a;b=c", "/a%3bb", "/a\\b", "/a%5Cb", "/%7ex", "/%61bc", "/a?b=c//../d", "/a?b;c", "/a?%zz",
    "/a%zz", "/a|b", '/a"b', "/a{b}", "/a%25b", "/a%23b", "/a#b", "/a?q#f", "/a%3Fb", "/login/", "/login/../x",
    "/%6Cogin", "/login%2f", "/login;x", "/LOGIN", "/a?", "/\xc3\xbc", "/a\x7fb", "/home%00x",
    "/a?\xc3\xbc=\xfc", "http://{host}/a?b", "https://{host}//gate", "http://{host}", "http://evil.example/a", "*", "a",
)  # fmt: skip


def exchange(gateway: Gateway, target: str, field: str) -> bytes:
    """Send a GET with a target as it is; return the head of the response."""
    host = f"127.0.0.1:{gateway.port}"
    lines = (f"GET {target.replace('{host}', host)} HTTP/1.1", f"Host: {host}", "Connection: close", field)
    with gateway.connect() as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode("latin-1"))
        received = b""
        while b"\r\n\r\n" not in received and (piece := connection.recv(65536)):
            received += piece
    return received


def test_application_gets_the_target_that_postd_judges(gateway: Gateway, client: httpx.Client) -> None:
    """What postd judges is in its redirect to the form; a target that only one of both would get is refused."""
    password = "Authorization: Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()
    reached = 0
    for target in ODD_TARGETS:
        guest = exchange(gateway, target, f"Accept: {BROWSER}")
        assert gateway.application.received == [], target
        judged = re.search(rb"(?i)\nlocation: /\?next=(\S+)", guest)
        exchange(gateway, target, password)
        targets = [quote(target.encode("latin-1"), safe=ASCII) for _, target, _ in gateway.application.received]
        gateway.application.received.clear()
        assert targets == ([unquote(judged[1].decode())] if judged and targets else []), target
        reached += len(targets)
    assert reached > 25


def test_raw_utf_8_in_a_query_passes_where_the_proxy_passes_it_on(gateway: Gateway, client: httpx.Client) -> None:
    password = "Authorization: Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()
    answer = exchange(gateway, "/report.txt?q=\xc3\xbc", password)
    assert int(answer.split()[1]) == (400 if gateway.kind in {"envoy", "haproxy"} else 200)


def test_event_stream_arrives_before_its_end(gateway: Gateway, client: httpx.Client) -> None:
    gateway.application.seen.clear()
    with client.stream("GET", "/events", auth=("alice", PASSWORD)) as answer:
        assert next(answer.iter_raw()) == b"data: 1\n\n"
        gateway.application.seen.set()
    assert gateway.curl("--output", "/dev/null", "--write-out", "%{http_code}", path="/events") == "401"


class WebSocket:
    """A handshake through the gateway; `status` is that of the response."""

    def __init__(self, gateway: Gateway, *fields: str) -> None:
        self._socket = gateway.connect()
        lines = [
            "GET /ws HTTP/1.1",
            f"Host: 127.0.0.1:{gateway.port}",
            "Connection: keep-alive, Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *fields,
        ]
        self._socket.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._socket.recv(1)
        self.status = int(head.split()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def echo(self, text: bytes) -> bytes:
        self._socket.sendall(text)
        return self._socket.recv(100)


def test_websocket_of_another_origin_is_refused(gateway: Gateway, client: httpx.Client) -> None:
    session = "Cookie: " + sign_in(client).headers["Set-Cookie"].partition(";")[0]
    password = "Authorization: Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()
    token = f"Authorization: Bearer {gateway.issuer.token()}"
    own, foreign = f"Origin: {gateway.url}", ("Origin: https://blog.example", "Sec-Fetch-Site: same-site")
    for credentials in (session, password):
        with WebSocket(gateway, credentials, *foreign) as refused:
            assert refused.status == 403
        with WebSocket(gateway, credentials, "Origin: https://127.0.0.1:1") as refused:
            assert refused.status == 403
        assert gateway.application.received == []
        for fields in ([own], []):
            with WebSocket(gateway, credentials, *fields) as opened:
                assert (opened.status, opened.echo(b"hello")) == (101, b"hello")
        gateway.application.received.clear()
    with WebSocket(gateway, token, *foreign) as opened:
        assert (opened.status, opened.echo(b"hello")) == (101, b"hello")
    with WebSocket(gateway, own) as refused:
        assert refused.status == 401


def test_open_websocket_outlives_its_session(gateway: Gateway, client: httpx.Client) -> None:
    """As the page says: a proxy asks postd once, for the handshake."""
    session = "Cookie: " + sign_in(client).headers["Set-Cookie"].partition(";")[0]
    with WebSocket(gateway, session, f"Origin: {gateway.url}") as opened:
        assert client.post("/logout").status_code == 302
        assert opened.echo(b"hello") == b"hello"
        with WebSocket(gateway, session, f"Origin: {gateway.url}") as refused:
            assert refused.status == 401


@pytest.mark.parametrize("names", ["Remote-User", "close, remote-scheme ,Remote-Scopes", "x, REMOTE-USER"])
def test_identity_arrives_whatever_connection_names(gateway: Gateway, client: httpx.Client, names: str) -> None:
    """A proxy removes the fields that `Connection` names (RFC 9110 §7.6.1); a token's scopes limit it."""
    headers = [("Connection", "keep-alive"), ("Connection", names)]
    token = gateway.issuer.token(scope="a")
    answer = client.get("/report.txt", headers=[*headers, ("Authorization", f"Bearer {token}")])
    assert answer.status_code == 200
    received = gateway.last()[2]
    shown = [received[f"Remote-{name}"] for name in ("User", "Scheme", "Scopes")]
    assert shown == [f"{gateway.issuer.issuer}#alice", "bearer", "a"]
    assert received["X-Forwarded-For"] == gateway.client_address


def test_smuggled_fields_do_not_sign_in(gateway: Gateway, client: httpx.Client) -> None:
    assert client.get("/report.txt", headers=SMUGGLED).status_code == 401
    for accept in ("*/*", BROWSER):
        answer = client.get("/page.html", headers={**SMUGGLED, "Accept": accept})
        assert answer.headers.get("Location") in {None, "/?next=/page.html"}
    assert gateway.application.received == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Authorization", "Basic eDp4"), ("Authorization", "Basic eDp4")], 400),
        ([("Authorization", f"Basic {'x' * 9000}")], 431),
        ([("Authorization", f"Bearer {'x' * 8000}")], 401),
    ],
)
def test_refused_field_has_its_status(
    gateway: Gateway, client: httpx.Client, headers: Sequence[tuple[str, str]], status: int
) -> None:
    if status == 400 and gateway.kind in {"envoy", "apache"}:
        status = 401  # they make one field of both, which has no scheme
    assert client.get("/report.txt", headers=list(headers)).status_code == status
    assert gateway.application.received == []


@pytest.mark.parametrize("count", [60, 98, 150])
def test_many_fields_let_nothing_in(gateway: Gateway, client: httpx.Client, count: int) -> None:
    """HAProxy 2.6 crashes if a script has 101 fields to send."""
    answer = exchange(gateway, "/report.txt", "\r\n".join(f"X-{number}: y" for number in range(count)))
    assert re.match(rb"HTTP/1\.1 (400|401|431) ", answer)
    assert gateway.application.received == []
    assert client.get("/report.txt", auth=("alice", PASSWORD)).text == REPORT
    assert gateway.process.poll() is None


def accepts(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def broken_script(gateway: Gateway, script: str, begin: str) -> Iterator[str]:
    """Run a second proxy of this kind, with an error at the begin of a script; return its URL."""
    port, settings = (
        free_port(),
        Path(gateway.command[gateway.command.index({"envoy": "-c"}.get(gateway.kind, "-f")) + 1]),
    )
    for name in {script, settings.name}:
        text = (
            (gateway.folder / name)
            .read_text()
            .replace(str(gateway.port), str(port))
            .replace(script, f"broken-{script}")
        )
        (gateway.folder / f"broken-{name}").write_text(text.replace(begin, f"{begin} error()"))
    command = [word.replace(str(settings), str(gateway.folder / f"broken-{settings.name}")) for word in gateway.command]
    with subprocess.Popen(command, cwd=gateway.folder) as process:
        try:
            wait_until(lambda: accepts(port))
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_error_in_a_script_lets_nothing_in(gateway: Gateway, client: httpx.Client) -> None:
    """HAProxy and Envoy go on after it."""
    match gateway.kind:
        case "haproxy":
            with broken_script(gateway, "gateway.lua", "function(txn)") as url:
                assert client.get(f"{url}/report.txt", auth=("alice", PASSWORD)).status_code == 503
            assert gateway.application.received == []
        case "envoy":
            names = ("Remote-User", "Remote-Name", "Remote-Scheme", "Remote-Scopes", "X-Forwarded-Uri", "Client-Cert")
            identity = dict.fromkeys(names, "root")
            with broken_script(gateway, "envoy.yaml", "function envoy_on_request(handle)") as url:
                assert client.get(f"{url}/report.txt", headers=identity).status_code == 401
                assert gateway.application.received == []
                host = {"Host": f"127.0.0.1:{gateway.port}"}
                answer = client.get(f"{url}/report.txt", headers=identity | host, auth=("alice", PASSWORD))
                assert answer.status_code == 200
            received = gateway.last()[2]
            found = {name: received[name] for name in identity if name in received}
            assert found == {"Remote-User": "alice", "Remote-Scheme": "basic"}
        case _:
            pytest.skip("no script, or an error in it is a 500")


def test_host_that_is_not_allowed_has_its_status(gateway: Gateway, client: httpx.Client) -> None:
    answer = client.get("/report.txt", headers={"Host": "evil.example"}, auth=("alice", PASSWORD))
    assert (answer.status_code, answer.content == b"") == ((200, True) if gateway.kind == "caddy" else (421, False))
    assert gateway.application.received == []  # Caddy has no site of that name, and an empty answer for it


def test_throttle_counts_the_client_behind_the_proxy(gateway: Gateway) -> None:
    forged = {"X-Forwarded-For": "192.0.2.1", "X-Real-IP": "192.0.2.1", "Forwarded": "for=192.0.2.1"}
    with gateway.client(gateway.guest_address) as guest, gateway.client(gateway.other_address) as bob:
        statuses = [
            guest.get("/report.txt", auth=("bob", f"wrong{number}"), headers=forged).status_code
            for number in range(FAILURES_MAX)
        ]
        assert statuses == [401] * FAILURES_MAX
        for auth in (httpx.BasicAuth("bob", PASSWORD), httpx.DigestAuth("bob", PASSWORD)):
            answer = guest.get("/report.txt", auth=auth, headers=forged)
            assert answer.status_code == 429
            assert 0 < int(answer.headers["Retry-After"]) <= 300
        assert bob.get("/report.txt", auth=("bob", PASSWORD)).text == REPORT


@pytest.mark.slow
def test_store_that_is_away_is_503(gateway: Gateway, client: httpx.Client) -> None:
    """Digest has to store the use of its nonce."""
    digest = httpx.DigestAuth("alice", PASSWORD)
    with locked(gateway.postd.folder / "postd.db", "IMMEDIATE"):
        answer = client.get("/report.txt", auth=digest)
        assert answer.status_code == 503
        # Envoy makes its own response of a 5xx.
        assert gateway.kind == "envoy" or int(answer.headers["Retry-After"]) > 0
        assert "WWW-Authenticate" not in answer.headers
    assert gateway.application.received == []
    wait_until(lambda: client.get("/report.txt", auth=digest).status_code == 200)


@pytest.mark.slow
def test_gateway_that_is_away_lets_nothing_in(gateway: Gateway, client: httpx.Client) -> None:
    gateway.postd.stop()
    try:
        for _ in range(3):
            answer = client.get("/report.txt", auth=("alice", PASSWORD))
            assert answer.status_code == WHILE_AWAY.get(gateway.kind, 503)
        assert gateway.application.received == []
    finally:
        gateway.postd.__enter__()
    wait_until(lambda: client.get("/report.txt", auth=("alice", PASSWORD)).status_code == 200)


@pytest.fixture(scope="module")
def browser(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if gateway.kind not in {"nginx", "caddy"}:
        pytest.skip("one proxy that passes redirects on suffices")
    flags = (BINDING, trust_flag(gateway.certificate))
    with open_chromium(gateway.url, tmp_path_factory.mktemp("profile"), *flags) as browser:
        yield browser


def test_person_signs_in_and_out(gateway: Gateway, browser: Chromium) -> None:
    browser.open("/page.html?year=2026&month=%20x")
    browser.wait_for("/?next=/page.html%3Fyear%3D2026%26month%3D%2520x")
    browser.wait_for_focus("username")
    if folder := os.environ.get("POSTD_TEST_SCREENSHOTS"):
        browser.driver.save_screenshot(f"{folder}/{gateway.kind}-form.png")
    assert browser.find_barriers() == []
    browser.type("alice", "\ue004", PASSWORD, "\ue007")
    browser.wait_for("/page.html?year=2026&month=%20x")
    assert browser.text == "The page."
    browser.wait_until(lambda: browser.driver.get_cookie(PROOF), "a proof")
    browser.driver.delete_cookie(PROOF)
    browser.open("/page.html")
    assert browser.text == "The page."
    assert browser.driver.get_cookie(PROOF), "the proof is renewed"
    browser.open("/logout")
    browser.type("\ue004", "\ue007")
    browser.wait_for("/")
    browser.open("/page.html")
    browser.wait_for("/?next=/page.html")
    assert not [line for line in browser.complaints() if "Content Security Policy" in line]

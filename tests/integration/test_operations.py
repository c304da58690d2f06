"""Operation of a real server: reloads, stops, health, metrics, request ids."""

import http.client
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from postd.auth.user_file import make_account, set_account
from tests.cases import each
from tests.helpers import make_certificate, run_sql, wait_until
from tests.integration.daemon import FREE_PORT, START_MAX_S, STOP_MAX_S, Daemon
from tests.integration.logins import DigestUser, is_stale, sign_in
from tests.issuer import DISCOVERY, INTROSPECTION, JWKS, RFC_8414, Issuer, Key, Reply
from tests.redis_server import RedisServer

PASSWORD = "correct horse"
JSON = {"Content-Type": "application/json"}
ADMIN = ("/healthz", "/readyz", "/metrics")
HSTS = "Strict-Transport-Security"
AT_END = "postd_tls_certificate_not_after_seconds"
AUDIENCE = "https://posts.example"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Samples by name and labels."""


def connect(url: str) -> httpx.Client:
    """Return a client that does not read the machine's certificates: that takes 60 ms."""
    return httpx.Client(base_url=url, timeout=START_MAX_S, verify=False)


def ask(method: str, url: str, **options: Any) -> httpx.Response:
    """Make a request over a connection of its own."""
    with connect("") as client:
        return client.request(method, url, **options)


class Operated(Daemon):
    """A daemon with TLS, an admin listener and a settings file that tests change."""

    def __init__(self, folder: Path, workers: str, *, more: Sequence[str] = ()) -> None:
        self.workers_wanted = workers
        content = b""
        for name in ("alice", "bob"):
            content = set_account(content, make_account(name, PASSWORD, "postd"))
        (folder / "users").touch(0o600)
        (folder / "users").write_bytes(content)
        make_certificate(folder)
        self.settings_file = folder / "postd.toml"
        super().__init__(folder, "-c", "postd.toml", *more, listen=None)
        self.settings_file.write_text(self.settings())

    def settings(self, top: str = "", *, write: str = "open", more: str = "") -> str:
        """Return settings, with lines for the top, the scheme for writing, and further tables."""
        tls = "ssl:0:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem"
        return (
            f'listen = ["{FREE_PORT}", "{tls}"]\nusers = "users"\nworkers = {self.workers_wanted}\nhsts = "365d"\n'
            f'{top}\n[api]\nwrite = ["{write}"]\n[admin]\nlisten = ["{FREE_PORT}", "{tls}"]\n'
            '[[page]]\npath = "/basic"\nschemes = ["basic"]\n[[page]]\npath = "/digest"\nschemes = ["digest"]\n'
            f"{more}\n"
        )

    def _address(self, pattern: str) -> str:
        ready = [line for line in self.log.splitlines() if "postd ready: " in line][-1]
        (found,) = re.findall(pattern, ready)
        return str(found)

    @property
    def tls_url(self) -> str:
        return self._address(r"(https://\S+?)/[,;]")

    @property
    def admin_url(self) -> str:
        return self._address(r"admin (http://\S+?)/[,;]")

    @property
    def admin_tls_url(self) -> str:
        return self._address(r"admin \S+ (https://\S+)/")

    def ask_admin(self, path: str) -> httpx.Response:
        return ask("GET", f"{self.admin_url}{path}")

    def samples(self) -> Samples:
        """Return the samples of `/metrics`."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.ask_admin("/metrics").text)
            for sample in family.samples
        }

    def reload(self, settings: str | None = None) -> None:
        """Write other settings, if given, send SIGHUP, and wait until all processes have reloaded."""
        if settings is not None:
            self.settings_file.write_text(settings)
        before = total(self.samples(), "postd_reloads_total")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: total(self.samples(), "postd_reloads_total") == before + 1)
        self.ask_admin("/readyz")  # workers answer after they have reloaded

    @contextmanager
    def reloaded(self, settings: str) -> Iterator[None]:
        """Apply other settings for the block."""
        self.reload(settings)
        try:
            yield
        finally:
            self.reload(self.settings())

    def each(self, do: Callable[[httpx.Client], httpx.Response]) -> list[httpx.Response]:
        """Make requests over so many new connections that each worker most probably gets one."""
        answers = []
        for _ in range(1 if self.workers_wanted == "1" else 6):
            with connect(self.url) as client:
                answers.append(do(client))
        return answers

    def statuses(self, do: Callable[[httpx.Client], httpx.Response]) -> set[int]:
        return {answer.status_code for answer in self.each(do)}


def total(samples: Samples, name: str, **labels: str) -> float:
    """Return a sample, summed over all labels that are not given."""
    return sum(value for (one, of), value in samples.items() if one == name and labels.items() <= set(of))


def listen_to_the_end(lines: Iterator[str]) -> None:
    """Read a stream that is about to end in order; httpx raises if its last chunk does not come."""
    deadline = time.monotonic() + START_MAX_S
    for _ in lines:
        assert time.monotonic() < deadline


def post(client: httpx.Client, **options: Any) -> httpx.Response:
    return client.post("/post", json={"post": "x"}, **options)


@pytest.fixture(scope="module", params=["1", "2"], ids=["one", "workers"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """A server that the tests share: each leaves the settings as it has found them."""
    with Operated(tmp_path_factory.mktemp("service"), request.param) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


# Metrics and request ids


def test_health_readiness_and_metrics_are_on_the_admin_listener_only(service: Operated) -> None:
    health, ready, metrics = (service.ask_admin(path) for path in ADMIN)
    assert (health.status_code, health.text) == (200, "ok\n")
    assert (ready.status_code, ready.text) == (200, "store: ok\n")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=")
    assert "# TYPE postd_http_requests_total counter" in metrics.text
    for path in ADMIN:
        assert ask("HEAD", f"{service.admin_url}{path}").status_code == 200
        assert ask("POST", f"{service.admin_url}{path}").status_code == 405
        assert service.statuses(lambda client, path=path: client.get(path)) == {404}  # type: ignore[misc]
        assert ask("GET", f"{service.tls_url}{path}").status_code == 404
    for path in ("/", "/post", "/home", "/nothing"):
        assert service.ask_admin(path).status_code == 404


def test_metrics_count_each_request(service: Operated) -> None:
    """Exactly, on all workers."""
    before = service.samples()
    counted: Counter[tuple[str, str, str, str]] = Counter()

    def count(answer: httpx.Response, route: str, scheme: str = "none") -> httpx.Response:
        counted[route, answer.request.method, str(answer.status_code), scheme] += 1
        return answer

    alice, wrong = ("alice", PASSWORD), ("unknown", "wrong")
    for round_ in range(6):
        with connect(service.url) as client:
            location = count(post(client, headers={"Idempotency-Key": f"metrics-{round_}"}), "/post").headers[
                "Location"
            ]
            count(client.get("/post"), "/post")
            count(client.head(location), "/post/<id>")
            count(client.put(location, json={"post": "y"}), "/post/<id>")
            count(client.put(location, content=b"{", headers=JSON), "/post/<id>")
            count(client.request("PATCH", "/post"), "/post")
            count(client.delete(location), "/post/<id>")
            count(client.get(location), "/post/<id>")
            count(client.get("/nothing"), "none")
            count(client.get("/basic"), "/basic")
            count(client.get("/basic", auth=alice), "/basic", "basic")
            count(sign_in(service, "alice", PASSWORD), "/login", "form")
    count(ask("GET", f"{service.url}/basic", auth=wrong), "/basic", "basic")
    digest = DigestUser("alice", PASSWORD)
    nonce = digest.nonce(service)
    counted["/digest", "GET", "401", "none"] += 1
    with connect(service.url) as client:
        assert count(digest.get(client, nonce, 1), "/digest", "digest").status_code == 200
        assert is_stale(count(digest.get(client, nonce, 1), "/digest", "digest"))
    after = service.samples()

    def grown(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    names = ("route", "method", "status", "scheme")
    counts = {
        tuple(dict(of)[name] for name in names): value - before.get((which, of), 0)
        for (which, of), value in after.items()
        if which == "postd_http_requests_total"
    }
    assert {key: value for key, value in counts.items() if value} == dict(counted)
    for (route, method), requests in Counter(
        {of: sum(n for key, n in counted.items() if key[:2] == of) for of in {key[:2] for key in counted}}
    ).items():
        assert grown("postd_http_request_duration_seconds_count", route=route, method=method) == requests
    assert grown("postd_auth_total", scheme="basic", outcome="accepted") == 6
    assert grown("postd_auth_total", scheme="basic", outcome="refused") == 1
    assert grown("postd_auth_total", scheme="digest", outcome="accepted") == 1
    assert grown("postd_auth_total", scheme="digest", outcome="stale") == 1
    assert grown("postd_auth_total", scheme="form", outcome="accepted") == 6
    assert grown("postd_store_duration_seconds_count", operation="write") >= 24
    assert grown("postd_store_errors_total") == 0
    if service.workers_wanted != "1":
        assert total(after, "postd_workers") == int(service.workers_wanted)
    assert total(after, "postd_ready") == 1
    assert total(after, "process_resident_memory_bytes") > 10_000_000


def test_connections_and_streams_are_counted_while_open(service: Operated) -> None:
    def there() -> tuple[float, float]:
        samples = service.samples()
        return total(samples, "postd_connections"), total(samples, "postd_event_listeners")

    def nobody_is_left() -> bool:
        ask("POST", f"{service.url}/post", json={"post": "x"})  # closed streams are noticed when an event is sent
        return there() == (0, 0)

    wait_until(nobody_is_left)
    with connect(service.url) as client, client.stream("GET", "/post/events"):
        client.get("/post")
        assert there() == (2, 1)
    wait_until(nobody_is_left)


@pytest.mark.parametrize("service", ["2"], ids=["workers"], indirect=True)
def test_counters_never_decrease_when_a_worker_is_killed(service: Operated) -> None:
    for answer in service.each(lambda client: client.get("/post/1234567")):
        assert answer.status_code == 404
    seen = before = service.samples()
    ready = service.log.count("is ready, replacing")
    os.kill(service.workers[1], signal.SIGKILL)
    while service.log.count("is ready, replacing") == ready or total(seen, "postd_workers") < 2:
        samples = service.samples()
        for key, value in seen.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert samples[key] >= value, key
        seen = samples
        time.sleep(0.05)
    for answer in service.each(lambda client: client.get("/post/1234567")):
        assert answer.status_code == 404
    after = service.samples()
    asked = {"route": "/post/<id>", "method": "GET", "status": "404"}
    name = "postd_http_requests_total"
    assert total(after, name, **asked) == total(before, name, **asked) + 6
    assert total(after, "postd_worker_ends_total") == total(before, "postd_worker_ends_total") + 1


def ids_in_log(service: Operated, id_: str) -> int:
    return len(re.findall(rf" id={re.escape(id_)}$", service.log, re.MULTILINE))


def test_refused_request_keeps_its_request_id(service: Operated) -> None:
    for n, line in enumerate((b"X-Bad : x", b"Transfer-Encoding: gzip", b"Host: again", b"X-Long: " + b"x" * 20_000)):
        name = b"refused-%d-%d" % (n, time.monotonic_ns())
        with service.connect() as client:
            client.sendall(b"GET /post HTTP/1.1\r\nHost: localhost\r\nx-request-id: %b\r\n%b\r\n\r\n" % (name, line))
            answer = client.recv(65536)
        assert answer.split(b" ")[1] in {b"400", b"431", b"501"}
        assert b"\r\nX-Request-Id: %b\r\n" % name in answer
        wait_until(lambda name=name: ids_in_log(service, name.decode()) == 1)  # type: ignore[misc]


@each("path", ["/post", "/post/0", "/basic", "/", "/nothing"])
def test_request_id_is_returned_and_logged(service: Operated, path: str) -> None:
    given = f"trace.1-{path.strip('/') or 'root'}_{time.monotonic_ns()}~+=:@"
    answer = ask("GET", f"{service.url}{path}", headers={"X-Request-Id": given})
    assert answer.headers.get_list("X-Request-Id") == [given]
    wait_until(lambda: ids_in_log(service, given) == 1)
    ours = [ask("GET", f"{service.url}{path}").headers["X-Request-Id"] for _ in range(2)]
    assert ours[0] != ours[1]
    wait_until(lambda: all(ids_in_log(service, one) == 1 for one in ours))


@each(
    "given",
    ["x" * 129, "two words", 'quoted"', "ümlaut", "", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLW9mLWl0"],
    ids=["long", "two words", "quoted", "not ASCII", "empty", "token"],
)
def test_invalid_request_id_is_replaced(service: Operated, given: str) -> None:
    answer = ask("GET", f"{service.url}/post", headers={b"X-Request-Id": given.encode()})
    (ours,) = answer.headers.get_list("X-Request-Id")
    assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", ours)
    wait_until(lambda: ids_in_log(service, ours) == 1)
    assert not given or f"id={given}" not in service.log


def test_strict_transport_security_is_sent_over_tls_only(service: Operated) -> None:
    paths = ("/post", "/post/0", "/basic", "/", "/home", "/nothing", "/openapi.json")
    with connect(service.tls_url) as client:
        for path in paths:
            assert client.get(path).headers.get_list(HSTS) == ["max-age=31536000"]
        assert client.delete("/post/0").headers.get_list(HSTS) == ["max-age=31536000"]
        with client.stream("GET", "/post/events") as stream:
            assert stream.headers.get_list(HSTS) == ["max-age=31536000"]
    for path in paths:
        assert HSTS not in ask("GET", f"{service.url}{path}").headers


# What it takes up


def test_reload_changes_an_access_rule(service: Operated) -> None:
    with connect(service.url) as kept:
        assert post(kept).status_code == 201
        with service.reloaded(service.settings(write="basic")):
            assert service.statuses(post) == {401}
            assert post(kept).status_code == 401  # nor have connections of before the old rule
            assert service.statuses(lambda client: post(client, auth=("alice", PASSWORD))) == {201}
        assert post(kept).status_code == 201
    assert service.statuses(post) == {201}


def test_reload_adds_and_removes_a_page(service: Operated) -> None:
    with service.reloaded(service.settings(more='[[page]]\npath = "/added"\nschemes = ["basic"]')):
        assert service.statuses(lambda client: client.get("/added")) == {401}
        answers = service.each(lambda client: client.get("/added", auth=("bob", PASSWORD)))
        assert {answer.text for answer in answers} == {"Success: bob\n"}
    assert service.statuses(lambda client: client.get("/added")) == {404}


def test_reload_changes_the_throttle(service: Operated) -> None:
    with service.reloaded(service.settings(more="[throttle]\nfailures = 1")):
        guesser = f"guesser{time.monotonic_ns()}", "wrong"
        assert ask("GET", f"{service.url}/basic", auth=guesser).status_code == 401
        assert ask("GET", f"{service.url}/basic", auth=guesser).status_code == 429
        assert service.statuses(lambda client: client.get("/basic", auth=("alice", PASSWORD))) == {200}
    assert ask("GET", f"{service.url}/basic", auth=guesser).status_code == 401


def test_reload_adds_users_and_keeps_sessions(service: Operated) -> None:
    users = service.folder / "users"
    before = users.read_bytes()
    session = {"Cookie": f"session={sign_in(service, 'alice', PASSWORD).cookies['session']}"}
    users.write_bytes(set_account(before, make_account("carol", PASSWORD, "postd")))
    service.reload()
    assert service.statuses(lambda client: client.get("/basic", auth=("carol", PASSWORD))) == {200}
    assert {one.text for one in service.each(lambda client: client.get("/home", headers=session))} == {
        "Success: alice\n"
    }
    users.write_bytes(before)
    service.reload()
    assert service.statuses(lambda client: client.get("/basic", auth=("carol", PASSWORD))) == {401}


def test_reload_adds_an_issuer_and_readiness_waits_for_its_keys(service: Operated) -> None:
    with Issuer(AUDIENCE, Key.make("ES256")) as issuer:
        token = {"Authorization": f"Bearer {issuer.token()}"}
        issuer.stop()
        table = f'[[page]]\npath = "/bearer"\nschemes = ["bearer"]\n[[bearer]]\nissuer = "{issuer.issuer}"\n'
        with service.reloaded(service.settings(more=f'{table}audience = "{AUDIENCE}"')):
            ready = service.ask_admin("/readyz")
            assert (ready.status_code, ready.text) == (503, f"store: ok\nbearer {issuer.issuer}: no keys yet\n")
            assert total(service.samples(), "postd_ready") == 0
            assert ask("GET", f"{service.url}/post").status_code == 200  # all else goes on
            issuer.start()
            wait_until(lambda: service.ask_admin("/readyz").status_code == 200)
            assert service.ask_admin("/readyz").text == f"store: ok\nbearer {issuer.issuer}: ok\n"
            answers = service.each(lambda client: client.get("/bearer", headers=token))
            assert {answer.text for answer in answers} == {"Success: alice\n"}
            assert total(service.samples(), "postd_bearer_keys", issuer=issuer.issuer) == 1
            asked = len(issuer.asked)
            service.reload()
            assert service.statuses(lambda client: client.get("/bearer", headers=token)) == {200}
            assert service.ask_admin("/readyz").status_code == 200  # what is held stays
            assert len(issuer.asked) >= asked
        assert service.statuses(lambda client: client.get("/bearer", headers=token)) == {404}
        assert service.ask_admin("/readyz").text == "store: ok\n"


def test_issuer_with_introspection_alone_is_ready(service: Operated) -> None:
    """It has neither metadata nor keys, so none are missing; and it has no metrics of keys."""
    with Issuer(AUDIENCE, Key.make("ES256")) as issuer:
        for path in (DISCOVERY, RFC_8414, JWKS):
            issuer.replies[path] = Reply(b"", 404)
        issuer.active["opaque"] = {"username": "alice", "client_id": "app"}
        table = f'[[page]]\npath = "/bearer"\nschemes = ["bearer"]\n[[bearer]]\nissuer = "{issuer.issuer}"\n'
        table += f'audience = "{AUDIENCE}"\nintrospection_endpoint = "{issuer.origin}{INTROSPECTION}"'
        with service.reloaded(service.settings(more=table)):
            wait_until(lambda: service.ask_admin("/readyz").status_code == 200)
            assert service.ask_admin("/readyz").text == f"store: ok\nbearer {issuer.issuer}: ok\n"
            answers = service.each(lambda client: client.get("/bearer", headers={"Authorization": "Bearer opaque"}))
            assert {answer.text for answer in answers} == {"Success: alice\n"}
            assert not any(name.startswith("postd_bearer_keys") for name, _ in service.samples())


BROKEN = {
    "no TOML": (lambda service: service.settings() + "[api\n", "postd.toml"),
    "a wrong value": (lambda service: service.settings(more='[limits]\nbody = "much"'), "limits.body"),
    "an endpoint that the next start would not take": (
        lambda service: service.settings().replace("listen = [", 'listen = ["bogus:1", ', 1),
        "bogus",
    ),
    "a store that the next start would not take": (
        lambda service: service.settings().replace("workers = ", "store = 'bogus:x'\nworkers = "),
        "bogus:x",
    ),
    "a folder that is not there": (
        lambda service: service.settings(more='[[page]]\npath = "/f"\nschemes = ["basic"]\nfiles = "gone"'),
        "gone",
    ),
    "a secret that is not there": (
        lambda service: service.settings(
            more='[[bearer]]\nissuer = "http://127.0.0.1:9"\naudience = "x"\nclient_id = "x"\n'
            'client_secret_file = "gone"\nintrospection_endpoint = "http://127.0.0.1:9/i"'
        ),
        "gone",
    ),
}


def check_refused(service: Operated, broken: str, word: str) -> None:
    before, errors = service.samples(), service.log.count("#error]")
    with service.reloaded(broken):
        assert service.statuses(post) == {201}
        samples = service.samples()
        assert total(samples, "postd_last_reload_good") == 0
        refused = {"outcome": "refused"}
        assert total(samples, "postd_reloads_total", **refused) == total(before, "postd_reloads_total", **refused) + 1
        lines = [line for line in service.log.splitlines() if "#error]" in line][errors:]
        assert len(lines) == 1, lines
        assert "reload failed, keeping the current settings: " in lines[0]
        assert word in lines[0]
    assert total(service.samples(), "postd_last_reload_good") == 1


def test_reload_of_broken_settings_keeps_the_current_ones(service: Operated) -> None:
    check_refused(service, "wrokers = 2\n" + service.settings(), "wrokers")


@pytest.mark.parametrize("service", ["1"], ids=["one"], indirect=True)
@pytest.mark.parametrize("what", BROKEN)
def test_failed_reload_names_the_setting(service: Operated, what: str) -> None:
    make, word = BROKEN[what]
    check_refused(service, make(service), word)


def test_broken_user_file_fails_the_reload(service: Operated) -> None:
    users = service.folder / "users"
    good, failed = users.read_bytes(), service.log.count("reload failed")
    users.write_bytes(b"what is this\n")
    service.reload()
    service.wait_for("reload failed", failed + 1)
    assert total(service.samples(), "postd_last_reload_good") == 0
    assert service.statuses(lambda client: client.get("/basic", auth=("alice", PASSWORD))) == {200}
    users.write_bytes(good)
    service.reload()
    assert total(service.samples(), "postd_last_reload_good") == 1


def test_reload_applies_the_rest_when_a_setting_takes_a_restart(service: Operated) -> None:
    warnings = service.log.count("restart to apply it")
    other = service.settings(write="basic").replace("workers = ", "store = 'sqlite:other.db'\nworkers = 1")
    with service.reloaded(other):
        service.wait_for("restart to apply it", warnings + 2)
        logged = [line for line in service.log.splitlines() if "restart to apply it" in line][warnings:]
        assert sorted(re.findall(r"(\w+) changed in the settings", "\n".join(logged))) == ["store", "workers"]
        assert service.statuses(post) == {401}
        assert service.ask_admin("/readyz").status_code == 200
    assert not (service.folder / "other.db").exists()
    assert len(service.workers) == (0 if service.workers_wanted == "1" else 2)


def tls_connection(service: Operated, url: str = "") -> http.client.HTTPSConnection:
    host, port = (url or service.tls_url).removeprefix("https://").split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, int(port), timeout=START_MAX_S, context=context)
    connection.connect()
    return connection


def certificate_of(connection: http.client.HTTPSConnection) -> bytes:
    shown = connection.sock.getpeercert(binary_form=True)
    assert shown
    return shown


def get(connection: http.client.HTTPConnection, path: str = "/post") -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_reload_replaces_a_certificate_and_keeps_connections(service: Operated) -> None:
    kept = tls_connection(service)
    assert get(kept) == 200
    ends = {
        url: total(service.samples(), AT_END, listener=f"{url}/") for url in (service.tls_url, service.admin_tls_url)
    }
    warnings = service.log.count("the certificate expires soon")
    make_certificate(service.folder, ends_in=timedelta(hours=1))
    service.reload()
    assert service.log.count("the certificate expires soon") == warnings + len(ends)
    shown = set()
    for _ in range(6):
        connection = tls_connection(service)
        shown.add(certificate_of(connection))
        assert get(connection) == 200
        connection.close()
    with closing(tls_connection(service, service.admin_tls_url)) as admin:
        shown.add(certificate_of(admin))
        assert get(admin, "/healthz") == 200
    assert shown == {ssl.PEM_cert_to_DER_cert((service.folder / "cert.pem").read_text())}
    assert certificate_of(kept) not in shown
    assert get(kept) == 200
    kept.close()
    for url in (service.tls_url, service.admin_tls_url):
        assert total(service.samples(), AT_END, listener=f"{url}/") < ends[url]
        assert service.log.count(f"{url}/ has a new certificate, valid until 2") == 1


def test_reload_refuses_a_key_of_another_certificate(service: Operated) -> None:
    key, certificate = service.folder / "key.pem", service.folder / "cert.pem"
    before = key.read_bytes(), certificate.read_bytes()
    make_certificate(service.folder)
    certificate.write_bytes(before[1])
    try:
        service.reload()
        assert total(service.samples(), "postd_last_reload_good") == 0
        assert "its key is not that of its certificate" in service.log
        for _ in range(3):
            connection = tls_connection(service)
            assert certificate_of(connection) == ssl.PEM_cert_to_DER_cert(before[1].decode())
            assert get(connection) == 200
            connection.close()
    finally:
        key.write_bytes(before[0])
    service.reload()
    assert total(service.samples(), "postd_last_reload_good") == 1


def test_reload_of_changed_rules_ends_streams_in_order(service: Operated) -> None:
    with connect(service.url) as client:
        with client.stream("GET", "/post/events") as stream:
            lines = stream.iter_lines()
            assert [next(lines) for _ in range(2)][1] == "event: position"
            service.reload()  # with unchanged rules no stream ends
            post(client)
            assert next(line for line in lines if line.startswith("event: ")) == "event: added"
            with service.reloaded(service.settings(write="basic")):
                listen_to_the_end(lines)
        assert client.get("/post").status_code == 200


# How it ends

BODY = b'{"post": "sent in two parts"}'
HEAD = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)


class Keeper(threading.Thread):
    """Makes one request after another on a connection until a response has `Connection: close`."""

    def __init__(self, port: int, acknowledged: list[str], number: int) -> None:
        super().__init__()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STOP_MAX_S)
        self._acknowledged = acknowledged
        self._number = number
        self.error: Exception | None = None
        self.ended_in_order = False

    def run(self) -> None:
        try:
            for count in range(100_000):
                text = f"{self._number}-{count}"
                self._connection.request("POST", "/post", f'{{"post": "{text}"}}', JSON)
                answer = self._connection.getresponse()
                answer.read()
                assert answer.status == 201
                self._acknowledged.append(text)
                if answer.getheader("Connection") == "close":
                    self.ended_in_order = True
                    return
                time.sleep(0.01)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            self.error = error


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stop_answers_pending_requests_within_its_grace(tmp_path: Path, workers: str) -> None:
    acknowledged: list[str] = []
    with Operated(tmp_path, workers) as daemon:
        daemon.reload(daemon.settings('shutdown_grace = "3s"'))
        admin_url = daemon.admin_url
        keepers = [Keeper(daemon.port, acknowledged, number) for number in range(4)]
        hanging = daemon.connect()
        hanging.sendall(HEAD + BODY[:10])
        client = connect(daemon.url)
        with hanging, client, client.stream("GET", "/post/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            for keeper in keepers:
                keeper.start()
            wait_until(lambda: len(acknowledged) > 40)
            signalled = time.monotonic()
            daemon.process.send_signal(signal.SIGTERM)
            listen_to_the_end(lines)
            ready = ask("GET", f"{admin_url}/readyz")
            assert ready.status_code == 503
            assert "stopping" in ready.text
            wait_until(lambda: refuses_connections(daemon.port))  # one process may be a moment behind the other
            for keeper in keepers:
                keeper.join()
            with suppress(ConnectionResetError):
                assert hanging.recv(1000) == b""
            waited_s = time.monotonic() - signalled
            assert daemon.stop() == -signal.SIGTERM
    assert [keeper.error for keeper in keepers] == [None] * 4
    assert all(keeper.ended_in_order for keeper in keepers)
    assert waited_s > 2.9
    assert "shutdown: 1 connections aborted after 3.0 s" in daemon.log
    stored = {text for (text,) in run_sql(tmp_path / "postd.db", "SELECT post FROM post")}
    assert stored == set(acknowledged)
    assert "Traceback" not in daemon.log


@pytest.mark.slow
def test_tls_client_that_does_not_read_does_not_delay_a_stop(tmp_path: Path) -> None:
    """It has half a second for another request, and two to close; like an idle connection in a pool."""
    with Operated(tmp_path, "1") as daemon:
        daemon.reload(daemon.settings('shutdown_grace = "1h"'))
        with closing(tls_connection(daemon)) as used, closing(tls_connection(daemon)):
            assert get(used) == 200
            assert daemon.stop() == -signal.SIGTERM
    assert "cut off" not in daemon.log


def test_stop_sends_the_rest_to_slow_readers(tmp_path: Path) -> None:
    """A response that is logged arrives, however much of it the kernel has still to send."""
    with Daemon(tmp_path) as daemon, ExitStack() as closing_all:
        posts = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)"
        run_sql(tmp_path / "postd.db", f"{posts} INSERT INTO post (post) SELECT printf('%0140d', i) FROM n")
        whole = ask("GET", f"{daemon.url}/post").content
        slow = [closing_all.enter_context(socket.socket()) for _ in range(8)]
        for requests, one in enumerate(slow, 1):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
            one.settimeout(STOP_MAX_S)
            one.connect(("127.0.0.1", daemon.port))
            one.sendall(b"GET /post HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests)
        time.sleep(0.5)  # what can be sent has been
        daemon.process.send_signal(signal.SIGTERM)
        time.sleep(0.8)  # longer than idle connections are kept
        received = b""
        for one in slow:
            received += b"".join(iter(lambda one=one: one.recv(100_000), b""))  # type: ignore[misc]
            one.close()
        assert daemon.stop() == -signal.SIGTERM
    assert received.count(whole) + 1 == daemon.log.count('"GET /post HTTP/1.1" 200 ')


IDLE_AT_THE_END_S = 0.5
"""How long idle connections are kept while the server stops."""

_ACTIVATE = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "web", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.slow
def test_restart_with_a_systemd_socket_refuses_no_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        through = (sys.executable, "-c", _ACTIVATE, str(held.fileno()))

        def start() -> Daemon:
            listen = "systemd:domain=INET:name=web"
            return Daemon(tmp_path, listen=listen, through=through, pass_fds=(held.fileno(),))

        with (
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START_MAX_S)) as kept,
            closing(http.client.HTTPConnection("127.0.0.1", port, timeout=START_MAX_S)) as waiting,
        ):
            with start() as daemon:
                assert daemon.port == port
                assert ask("POST", f"{daemon.url}/post", json={"post": "before"}).status_code == 201
                assert get(kept) == 200
                signalled = time.monotonic()
                daemon.process.send_signal(signal.SIGTERM)
                try:
                    assert get(kept) == 200
                except http.client.RemoteDisconnected:
                    assert time.monotonic() > signalled + IDLE_AT_THE_END_S
                assert daemon.stop() == -signal.SIGTERM
            waiting.request("GET", "/post/1")
            with start():
                answer = waiting.getresponse()
                assert (answer.status, answer.read()) == (200, b'{\n  "id": 1,\n  "post": "before"\n}\n')


def test_readiness_follows_the_store(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as redis, Operated(tmp_path, "1", more=("-s", redis.url)) as daemon:
        assert daemon.ask_admin("/readyz").text == "store: ok\n"
        redis.kill()
        wait_until(lambda: daemon.ask_admin("/readyz").status_code == 503)
        assert daemon.ask_admin("/readyz").text.startswith("store: ")
        assert daemon.ask_admin("/healthz").status_code == 200
        assert ask("GET", f"{daemon.url}/post").status_code == 503
        samples = daemon.samples()
        assert total(samples, "postd_ready") == 0
        assert total(samples, "postd_store_errors_total", operation="read") > 0
        redis.start()
        wait_until(lambda: daemon.ask_admin("/readyz").status_code == 200)
        assert ask("GET", f"{daemon.url}/post").status_code == 200

"""Authentication on the real process, with common HTTP clients: passwords, Digest, sessions."""

import asyncio
import base64
import binascii
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import Cookie, CookieJar
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import httpx
import pytest
import pytest_twisted
import requests
import treq
from requests.auth import HTTPBasicAuth, HTTPDigestAuth
from treq.client import HTTPClient
from twisted.internet import reactor
from twisted.web.client import Agent

from postd.auth.user_file import make_account, set_account
from tests.cases import each
from tests.helpers import PATIENCE_S
from tests.integration.clients import DIGEST_CLIENTS, TIMEOUT_S, DigestClient
from tests.integration.daemon import FREE_PORT, Daemon, refuse_here, run_postd
from tests.integration.logins import (
    DigestUser,
    check_info,
    compute,
    decode_parameters,
    is_stale,
    run_postd_user,
    see_home,
    sign_in,
    taken_up,
)
from tests.integration.test_daemon import check_refused

PASSWORD = "correct horse: battery"
COLONS_AND_UTF_8 = "pä:ß wörd:€ 世界:"
SUCCESS = "Success: alice\n"

ALL_BY_DIGEST = """
users = "users"
api = {read = ["digest"], write = ["digest"]}
"""


def serve(folder: Path, settings: str = 'users = "users"', **options: Any) -> Daemon:
    """Return a daemon with these settings, the user file among them, not started yet."""
    (folder / "postd.toml").write_text(settings)
    return Daemon(folder, "-c", "postd.toml", **options)


def write_users(folder: Path, **passwords: str) -> None:
    """Write a user file."""
    content = b""
    for name, password in passwords.items():
        content = set_account(content, make_account(name, password, "postd"))
    (folder / "users").write_bytes(content)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    write_users(folder, alice=COLONS_AND_UTF_8, **dict.fromkeys(DIGEST_CLIENTS, PASSWORD))
    with serve(folder) as daemon:
        yield daemon


# Digest, with each client


@pytest.fixture(scope="module", params=["MD5", "SHA-256", "SHA-256 MD5"])
def offering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, str]]:
    """A daemon that offers the algorithms on each page, and their names."""
    folder = tmp_path_factory.mktemp("offering")
    write_users(folder, alice=PASSWORD)
    with serve(folder, f"{ALL_BY_DIGEST}\ndigest.algorithms = {request.param.split()}") as daemon:
        yield daemon, request.param


def can(client: str, algorithms: str) -> bool:
    """Support of SHA-256 in urllib came with Python 3.14; before that it looks only at the first challenge."""
    return client != "urllib" or sys.version_info >= (3, 14) or algorithms.startswith("MD5")


@pytest.mark.parametrize("name", DIGEST_CLIENTS)
@pytest.mark.parametrize(
    ("asked", "body", "status"),
    [
        ("GET /digest", None, 200),
        ("HEAD /digest", None, 200),
        ("GET /post?limit=2&after=1", None, 200),
        ("POST /post", {"post": "Grüße"}, 201),
    ],
)
def test_digest_authenticates(offering: tuple[Daemon, str], name: str, asked: str, body: Any, status: int) -> None:
    daemon, offered = offering
    method, path = asked.split()
    with DIGEST_CLIENTS[name]("alice", PASSWORD) as client:
        if not can(name, offered):
            with pytest.raises(ValueError, match="SHA-256"):
                client.request(method, daemon.url + path, body)
            return
        challenged, entered = client.request(method, daemon.url + path, body)
    assert (challenged.status, challenged.authorization) == (401, None)
    assert entered.status == status
    assert entered.authorization is not None
    assert decode_parameters(entered.authorization)["algorithm"] in offered.split()
    check_info(entered.headers["authentication-info"], entered.authorization, PASSWORD)


@pytest.mark.parametrize("name", ["requests", "httpx", "aiohttp"])
def test_digest_client_reuses_the_nonce(offering: tuple[Daemon, str], name: str) -> None:
    """One request each from the second on, with increasing counts."""
    url = offering[0].url
    with DIGEST_CLIENTS[name]("alice", PASSWORD) as client:
        _, first = client.request("GET", f"{url}/digest")
        (second,) = client.request("HEAD", f"{url}/digest")
        (third,) = client.request("POST", f"{url}/post", {"post": "x"})
    sent = [decode_parameters(exchange.authorization or "") for exchange in (first, second, third)]
    assert [parameters["nc"] for parameters in sent] == ["00000001", "00000002", "00000003"]
    assert len({parameters["nonce"] for parameters in sent}) == 1
    assert [first.status, second.status, third.status] == [200, 200, 201]


def test_digest_client_recovers_from_an_expired_nonce(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)

    def check_recovery(client: DigestClient, url: str) -> None:
        refused, entered = client.request("POST", f"{url}/post", {"post": "x"})
        assert refused.status == 401
        assert ", stale=true" in refused.headers["www-authenticate"]
        assert entered.status == 201

    def check(url: str) -> None:
        with requests_and_others() as clients:
            for client in clients:
                assert client.request("GET", f"{url}/digest")[-1].status == 200
            time.sleep(1.1)
            for client in clients:
                check_recovery(client, url)

    with serve(tmp_path, f'{ALL_BY_DIGEST}\ndigest.nonce_lifetime = "1s"') as daemon:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            began = time.monotonic()
            try:
                check(daemon.url)
            except (AssertionError, ValueError):
                # A nonce may expire before its first use on a busy machine.
                if time.monotonic() < began + 2 or time.monotonic() > deadline:
                    raise
            else:
                break


class requests_and_others:  # noqa: N801 - a context manager, called as a function is
    """Sessions of the clients that keep a nonce."""

    def __enter__(self) -> list[DigestClient]:
        self._opened = [DIGEST_CLIENTS[name]("alice", PASSWORD) for name in ("requests", "httpx", "aiohttp")]
        return [manager.__enter__() for manager in self._opened]

    def __exit__(self, *_: object) -> None:
        for manager in self._opened:
            manager.__exit__(None, None, None)


@pytest.mark.parametrize("name", DIGEST_CLIENTS)
def test_digest_client_gives_up_on_a_wrong_password(daemon: Daemon, name: str) -> None:
    """A wrong response is never stale, which would make clients retry for ever."""
    with DIGEST_CLIENTS[name](name, "wrong") as client:
        try:
            exchanges = client.request("GET", f"{daemon.url}/digest")
        except urllib.request.HTTPError as error:
            assert error.code == 401
            error.close()
        else:
            assert [exchange.status for exchange in exchanges] == [401, 401]
            assert "stale" not in exchanges[-1].headers["www-authenticate"]


def test_digest_accepts_a_utf_8_name(tmp_path: Path) -> None:
    write_users(tmp_path, jürgen=COLONS_AND_UTF_8)
    with serve(tmp_path) as daemon, DIGEST_CLIENTS["aiohttp"]("jürgen", COLONS_AND_UTF_8) as client:
        assert client.request("GET", f"{daemon.url}/digest")[-1].status == 200


# Basic, with each client


def basic_with_requests(url: str, user: str, password: str) -> str:
    # It encodes text as Latin-1; bytes go as they are.
    return requests.get(url, auth=HTTPBasicAuth(user.encode(), password.encode()), timeout=TIMEOUT_S).text


def basic_with_httpx(url: str, user: str, password: str) -> str:
    return httpx.get(url, auth=(user, password)).text


def basic_with_aiohttp(url: str, user: str, password: str) -> str:
    async def get() -> str:
        authorization = aiohttp.encode_basic_auth(user, password, encoding="utf-8")
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers={"Authorization": authorization}) as answer,
        ):
            return await answer.text()

    return asyncio.run(get())


def basic_with_urllib(url: str, user: str, password: str) -> str:
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, url, user, password)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
    with opener.open(url, timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.parametrize("get", [basic_with_requests, basic_with_httpx, basic_with_aiohttp, basic_with_urllib])
def test_basic_authenticates(daemon: Daemon, get: Callable[[str, str, str], str]) -> None:
    assert get(f"{daemon.url}/basic", "alice", COLONS_AND_UTF_8) == SUCCESS


def test_names_in_latin_1_authenticate(tmp_path: Path) -> None:
    """Requests and aiohttp encode text so."""
    write_users(tmp_path, jürgen="pässwörd")
    with serve(tmp_path) as daemon:
        basic = requests.get(f"{daemon.url}/basic", auth=("jürgen", "pässwörd"), timeout=TIMEOUT_S)
        digest = requests.get(f"{daemon.url}/digest", auth=HTTPDigestAuth("jürgen", "pässwörd"), timeout=TIMEOUT_S)
        assert [(answer.status_code, answer.content.decode()) for answer in (basic, digest)] == [
            (200, "Success: jürgen\n")
        ] * 2


@pytest_twisted.ensureDeferred
async def test_treq_authenticates_with_basic(daemon: Daemon) -> None:
    answer = await treq.get(f"{daemon.url}/basic", auth=("alice", COLONS_AND_UTF_8))
    assert (answer.code, await answer.text()) == (200, SUCCESS)


# The form, with each client


def test_requests_signs_in_by_form(daemon: Daemon) -> None:
    with requests.Session() as session:
        form = session.get(f"{daemon.url}/", timeout=TIMEOUT_S)
        assert 'name="login_form"' in form.text
        home = session.post(
            f"{daemon.url}/login", {"username": "alice", "password": COLONS_AND_UTF_8}, timeout=TIMEOUT_S
        )
        assert (home.url, home.text) == (f"{daemon.url}/home", SUCCESS)
        assert session.get(f"{daemon.url}/", timeout=TIMEOUT_S).url == f"{daemon.url}/home"
        (cookie,) = cast("list[Cookie]", list(session.cookies))  # they are no texts, whatever its types say
        assert (cookie.name, cookie.path, cookie.expires) == ("session", "/", None)
        button = session.get(f"{daemon.url}/logout", timeout=TIMEOUT_S)
        assert 'action="/logout"' in button.text
        assert session.get(f"{daemon.url}/home", timeout=TIMEOUT_S).text == SUCCESS
        out = session.post(f"{daemon.url}/logout", timeout=TIMEOUT_S)
        assert out.url == f"{daemon.url}/"
        assert len(session.cookies) == 0
        assert session.get(f"{daemon.url}/home", timeout=TIMEOUT_S).url == f"{daemon.url}/"
    assert cookie.value is not None
    assert see_home(daemon, cookie.value).headers["Location"] == "/"  # it is gone from the store, too


def test_httpx_signs_in_by_form(daemon: Daemon) -> None:
    with httpx.Client(base_url=daemon.url, follow_redirects=True) as client:
        home = client.post("/login", data={"username": "alice", "password": COLONS_AND_UTF_8})
        assert (home.url.path, home.text) == ("/home", SUCCESS)
        assert client.post("/logout").url.path == "/"
        assert dict(client.cookies) == {}


def test_aiohttp_signs_in_by_form(daemon: Daemon) -> None:
    async def sign_in_and_out() -> list[str]:
        # By default it keeps no cookies of IP addresses.
        async with aiohttp.ClientSession(daemon.url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            async with session.post("/login", data={"username": "alice", "password": COLONS_AND_UTF_8}) as home:
                met = [home.url.path, await home.text()]
            async with session.post("/logout") as out:
                return [*met, out.url.path]

    assert asyncio.run(sign_in_and_out()) == ["/home", SUCCESS, "/"]


def test_urllib_signs_in_by_form(daemon: Daemon) -> None:
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    form = urlencode({"username": "alice", "password": COLONS_AND_UTF_8}).encode()
    with opener.open(f"{daemon.url}/login", form, timeout=TIMEOUT_S) as home:
        assert home.read().decode() == SUCCESS
    with opener.open(f"{daemon.url}/logout", b"", timeout=TIMEOUT_S) as out:
        assert out.url == f"{daemon.url}/"
    assert list(jar) == []


@pytest_twisted.ensureDeferred
async def test_treq_signs_in_by_form(daemon: Daemon) -> None:
    client = HTTPClient(Agent(reactor))  # keeps cookies
    form = {"username": "alice", "password": COLONS_AND_UTF_8}
    home = await client.post(f"{daemon.url}/login", data=form, browser_like_redirects=True)
    assert (home.code, await home.text()) == (200, SUCCESS)
    again = await client.get(f"{daemon.url}/home")
    assert await again.text() == SUCCESS
    out = await client.post(f"{daemon.url}/logout", browser_like_redirects=True)
    assert 'name="login_form"' in await out.text()


def test_session_cookie_over_tls_is_secure(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """TLS needs no acknowledgement on any address."""
    key, cert = certificate
    write_users(tmp_path, alice=PASSWORD)
    with serve(tmp_path, listen=f"ssl:0:privateKey={key}:certKey={cert}") as daemon:
        context = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=f"https://localhost:{daemon.port}", verify=context) as client:
            home = client.post("/login", data={"username": "alice", "password": PASSWORD})
            assert home.headers["Set-Cookie"].endswith("; Path=/; HttpOnly; SameSite=Lax; Secure")
            assert client.get("/home").text == SUCCESS


def test_cross_site_request_of_a_browser_is_refused(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    (tmp_path / "postd.toml").write_text(
        'users = "users"\n[api]\nwrite = ["digest", "basic", "session"]\ncors_origins = ["https://app.example"]\n'
    )
    text, foreign = {"post": "x"}, {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    named = {**foreign, "Origin": "https://app.example"}
    handshake = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    with Daemon(tmp_path, "-c", "postd.toml") as daemon, httpx.Client(base_url=daemon.url) as client:
        session = {"Cookie": f"session={sign_in(daemon, 'alice', PASSWORD).cookies['session']}"}
        cases: list[tuple[httpx.Auth, dict[str, str], int]] = [
            (httpx.BasicAuth("alice", PASSWORD), {}, 201),
            (httpx.DigestAuth("alice", PASSWORD), {}, 201),
            (httpx.Auth(), session, 403),
        ]
        for auth, cookie, status in cases:
            assert client.post("/post", json=text, auth=auth, headers=cookie).status_code == 201
            assert client.post("/post", json=text, auth=auth, headers={**cookie, **foreign}).status_code == 403
            assert client.post("/post", json=text, auth=auth, headers={**cookie, **named}).status_code == status
        assert client.get("/home", headers={**session, **handshake, **foreign}).status_code == 403
        assert client.get("/home", headers={**session, **handshake, "Origin": daemon.url}).status_code == 200
        for path, auth in (
            ("/basic", httpx.BasicAuth("alice", PASSWORD)),
            ("/digest", httpx.DigestAuth("alice", PASSWORD)),
        ):
            assert client.get(path, auth=auth, headers={**handshake, **foreign}).status_code == 403
            assert client.get(path, auth=auth, headers=handshake).status_code == 200
        assert len(client.get("/post").json()) == 5


def test_refused_login_is_the_same_for_unknown_user_and_wrong_password(daemon: Daemon) -> None:
    answers = [
        sign_in(daemon, "alice", "wrong"),
        sign_in(daemon, "unknown", "wrong"),
        sign_in(daemon, "alice", ""),
        httpx.post(f"{daemon.url}/login", data={"username": "alice"}),
    ]
    seen = {(answer.status_code, answer.text, answer.headers["Content-Type"]) for answer in answers}
    assert seen == {(401, "Login failed\n", "text/plain; charset=utf-8")}
    assert all("Set-Cookie" not in answer.headers for answer in answers)


# Nonces and sessions, over the end of the process


def stop(daemon: Daemon) -> None:
    daemon.stop()


def kill(daemon: Daemon) -> None:
    daemon.kill()


@pytest.mark.parametrize(("end", "algorithm"), [(stop, "SHA-256"), (kill, "MD5")])
def test_nonce_outlives_a_restart(tmp_path: Path, end: Callable[[Daemon], None], algorithm: str) -> None:
    write_users(tmp_path, alice=PASSWORD)
    alice = DigestUser("alice", PASSWORD, algorithm=algorithm)
    settings = f'users = "users"\ndigest.algorithms = ["{algorithm}"]'
    with serve(tmp_path, settings) as daemon, httpx.Client(base_url=daemon.url) as client:
        unused, used = alice.nonce(daemon), alice.nonce(daemon)
        assert alice.get(client, used, 1).status_code == 200
        assert alice.get(client, used, 7).status_code == 200
        end(daemon)
    with serve(tmp_path, settings) as daemon, httpx.Client(base_url=daemon.url) as client:
        for count in (1, 7):
            assert is_stale(alice.get(client, used, count))
        for count in (2, 8, 3):
            assert alice.get(client, used, count).status_code == 200
        assert is_stale(alice.get(client, used, 2))
        assert alice.get(client, unused, 1).status_code == 200
        assert is_stale(alice.get(client, unused[:-4] + "AAAA", 1))


def test_concurrent_uses_of_a_nonce_count_succeed_once(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    alice = DigestUser("alice", PASSWORD)
    with serve(tmp_path) as daemon, ThreadPoolExecutor(8) as pool, httpx.Client(base_url=daemon.url) as client:
        nonce = alice.nonce(daemon)
        for count in range(1, 21):
            tries = list(pool.map(lambda _, count=count: alice.get(client, nonce, count), range(8)))
            assert sorted(answer.status_code for answer in tries) == [200] + [401] * 7
            assert all(is_stale(answer) for answer in tries if answer.status_code == 401)


def test_digest_response_is_valid_for_one_target_and_method(daemon: Daemon) -> None:
    alice = DigestUser("alice", COLONS_AND_UTF_8)
    with httpx.Client(base_url=daemon.url) as client:
        moved = {"Authorization": alice.credentials(alice.nonce(daemon), 1)}
        assert client.get("/digest?all", headers=moved).status_code == 400
        assert client.head("/digest", headers=moved).status_code == 401
        assert client.get("/digest", headers=moved).status_code == 200
        twice = [("Authorization", alice.credentials(alice.nonce(daemon), count)) for count in (1, 1)]
        refused = client.get("/digest", headers=twice)
        assert (refused.status_code, "WWW-Authenticate" in refused.headers) == (400, False)
    assert "possible attack" in daemon.log


class Counter(threading.Thread):
    """Uses one nonce with increasing counts until the connection fails."""

    def __init__(
        self, daemon: Daemon, alice: DigestUser, enough: threading.Event, accepted: list[tuple[str, int]]
    ) -> None:
        super().__init__()
        self._url = daemon.url
        self._alice = alice
        self._nonce = alice.nonce(daemon)
        self._enough = enough
        self._accepted = accepted

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=PATIENCE_S) as client:
            for count in range(1, 100_000):
                try:
                    answer = self._alice.get(client, self._nonce, count)
                except httpx.TransportError:
                    return
                assert answer.status_code == 200
                self._accepted.append((self._nonce, count))
                if len(self._accepted) >= 400:
                    self._enough.set()


@pytest.mark.slow
def test_used_nonce_counts_outlive_kill_9_under_load(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    alice = DigestUser("alice", PASSWORD)
    accepted: list[tuple[str, int]] = []
    with serve(tmp_path) as daemon:
        enough = threading.Event()
        counters = [Counter(daemon, alice, enough, accepted) for _ in range(8)]
        for counter in counters:
            counter.start()
        assert enough.wait(PATIENCE_S)
        daemon.kill()
        for counter in counters:
            counter.join()
    last = dict(accepted)
    assert len(last) == 8
    with serve(tmp_path) as daemon, httpx.Client(base_url=daemon.url) as client:
        for nonce, count in accepted:
            assert is_stale(alice.get(client, nonce, count)), (nonce, count)
        for nonce, count in last.items():
            # One more may have been noted, and its answer lost.
            assert alice.get(client, nonce, count + 2).status_code == 200


def test_session_outlives_a_restart_but_not_its_password(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD, bob=PASSWORD)
    with serve(tmp_path) as daemon:
        alices, bobs = (sign_in(daemon, name, PASSWORD).cookies["session"] for name in ("alice", "bob"))
        ended = sign_in(daemon, "alice", PASSWORD).cookies["session"]
        httpx.post(f"{daemon.url}/logout", headers={"Cookie": f"session={ended}"})
    with serve(tmp_path) as daemon:
        assert see_home(daemon, alices).text == SUCCESS
        assert see_home(daemon, ended).headers["Location"] == "/"
        daemon.kill()
    run_postd_user(tmp_path / "users", "passwd", "alice", "another one")
    with serve(tmp_path) as daemon:
        assert see_home(daemon, alices).headers["Location"] == "/"
        assert see_home(daemon, bobs).text == "Success: bob\n"


# The user file, while the server runs


def test_new_user_file_is_loaded(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        assert f"{tmp_path}/users: " in warnings_in(daemon)
        assert "the user file does not exist yet" in warnings_in(daemon)
        with taken_up(daemon, "1 user"):
            run_postd_user(tmp_path / "users", "add", "alice", PASSWORD)
        assert httpx.get(f"{daemon.url}/basic", auth=("alice", PASSWORD)).text == SUCCESS
        assert httpx.get(f"{daemon.url}/digest", auth=httpx.DigestAuth("alice", PASSWORD)).text == SUCCESS
        assert sign_in(daemon, "alice", PASSWORD).status_code == 302


def test_changed_user_file_is_reloaded(tmp_path: Path) -> None:
    """A changed password ends its sessions and its entry in the password cache."""
    users = tmp_path / "users"
    write_users(tmp_path, alice=PASSWORD, bob=PASSWORD)
    alice = DigestUser("alice", PASSWORD)
    with serve(tmp_path) as daemon, httpx.Client(base_url=daemon.url) as client:
        alices, bobs = (sign_in(daemon, name, PASSWORD).cookies["session"] for name in ("alice", "bob"))
        nonce = alice.nonce(daemon)
        assert client.get("/basic", auth=("alice", PASSWORD)).status_code == 200
        assert alice.get(client, nonce, 1).status_code == 200
        with taken_up(daemon, "2 users"):
            run_postd_user(users, "passwd", "alice", "another one")
        assert see_home(daemon, alices).headers["Location"] == "/"
        assert client.get("/basic", auth=("alice", PASSWORD)).status_code == 401
        answer = alice.get(client, nonce, 2)
        assert (answer.status_code, is_stale(answer)) == (401, False)
        assert client.get("/basic", auth=("alice", "another one")).status_code == 200
        with taken_up(daemon, "1 user"):
            run_postd_user(users, "remove", "bob")
        assert see_home(daemon, bobs).headers["Location"] == "/"
        assert client.get("/basic", auth=("bob", PASSWORD)).status_code == 401


def test_broken_user_file_keeps_the_old_users(tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_users(tmp_path, alice=PASSWORD)
    good = users.read_bytes()
    with serve(tmp_path) as daemon:
        session = sign_in(daemon, "alice", PASSWORD).cookies["session"]

        def check_in_force() -> None:
            assert httpx.get(f"{daemon.url}/basic", auth=("alice", PASSWORD)).status_code == 200
            assert see_home(daemon, session).text == SUCCESS

        with taken_up(daemon, f"error] user file not reloaded, keeping the last good one: {users}: line 3"):
            users.write_bytes(b"# ours\n" + good + b"bob:swordfish\n")
        check_in_force()
        assert "swordfish" not in daemon.log
        with taken_up(daemon, f"error] user file not reloaded, keeping the last good one: {users} no longer exists"):
            users.unlink()
        check_in_force()
        with taken_up(daemon, "2 users"):
            users.write_bytes(good + good.replace(b"alice:", b"carol:"))
        check_in_force()
    assert "Traceback" not in daemon.log


# The start


@each(
    "settings, users, words",
    [
        ("", "# ours\nalice:swordfish\n", ["users: line 2", "plain text", "htpasswd -B"]),
        ("", "alice:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00\n", ["users: line 1", "Apache MD5"]),
        ("", "alice\n", ["users: line 1", "no colon"]),
        ("realm = 'a\"b'", "", ["postd.toml: realm", "not a realm"]),
        ("realm = ''", "", ["postd.toml: realm", "not a realm"]),
        ("[[page]]\npath = '/login'\nschemes = ['basic']", "", ["postd.toml: page[0].path", "/login", "reserved"]),
        ("[[page]]\npath = '/post/x'\nschemes = ['basic']", "", ["postd.toml: page[0].path", "reserved"]),
        (
            "[[page]]\npath = '/a'\nschemes = ['basic']\n[[page]]\npath = '/a'\nschemes = ['digest']",
            "",
            ["postd.toml: page[1].path", "/a", "another page"],
        ),
        (
            "[[page]]\npath = '/a'\nschemes = ['basic']\nfiles = 'no/such'",
            "",
            ["postd.toml: page[0].files", "no/such", "folder does not exist"],
        ),
        ("[[page]]\npath = '/a'\nschemes = ['bsaic']", "", ["postd.toml: page[0].schemes", '"digest", "bearer"']),
        ("api.write = ['password']", "", ["postd.toml: api.write", '"open", "digest", "bearer", "basic"']),
        ("digest.algorithms = ['SHA-1']", "", ["postd.toml: digest.algorithms", '"SHA-256"']),
    ],
)
def test_unusable_login_settings_fail_the_start(
    socket_folder: Path, settings: str, users: str, words: list[str]
) -> None:
    (socket_folder / "users").write_text(users)
    (socket_folder / "postd.toml").write_text(f"users = 'users'\nlisten = ['unix:p.sock', '{FREE_PORT}']\n{settings}\n")
    line = refuse_here(socket_folder, "-c", "postd.toml")
    assert all(word in line for word in words), line
    assert "swordfish" not in line
    assert {path.name for path in socket_folder.iterdir()} == {"users", "postd.toml"}  # no socket, and no store


def test_plaintext_passwords_fail_the_start(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    (tmp_path / "postd.toml").write_text('insecure = ["open-writes"]\nusers = "users"')
    result = run_postd(tmp_path, "-c", "postd.toml", "-l", FREE_PORT, "-l", "tcp:0")
    check_refused(result, "--listen: tcp:0: ", "clear text", "trusted_proxies", 'insecure = ["plaintext-passwords"]')
    assert not (tmp_path / "postd.db").exists()


@pytest.mark.parametrize(
    "settings",
    [
        'insecure = ["open-writes", "plaintext-passwords"]',
        'insecure = ["open-writes"]\ntrusted_proxies = ["10.0.0.0/8"]',
        'insecure = ["plaintext-passwords"]\napi.write = ["basic"]',
    ],
)
def test_insecure_plaintext_passwords_are_allowed(tmp_path: Path, settings: str) -> None:
    write_users(tmp_path, alice=PASSWORD)
    with serve(tmp_path, f'users = "users"\n{settings}', listen="tcp:0") as daemon:
        answer = httpx.get(f"http://127.0.0.1:{daemon.port}/basic", auth=("alice", PASSWORD))
        assert answer.text == SUCCESS


def warnings_in(daemon: Daemon) -> str:
    return "\n".join(line for line in daemon.log.splitlines() if "#warn]" in line)


def check_words(text: str, *words: str) -> None:
    for word in words:
        assert word in text


def test_users_without_digest_hash_are_warned_of(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD, bob=PASSWORD)
    users = tmp_path / "users"
    users.write_text("\n".join(line.rsplit(":", 1)[0] for line in users.read_text().splitlines()))
    run_postd_user(users, "passwd", "bob", PASSWORD)
    with serve(tmp_path) as daemon:
        check_words(warnings_in(daemon), "no Digest", "realm 'postd'", "alice", "postd user passwd")
        assert "bob" not in warnings_in(daemon)
        assert httpx.get(f"{daemon.url}/basic", auth=("alice", PASSWORD)).text == SUCCESS
        assert httpx.get(f"{daemon.url}/digest", auth=httpx.DigestAuth("alice", PASSWORD)).status_code == 401
        with taken_up(daemon, "2 users"):
            run_postd_user(users, "passwd", "alice", PASSWORD)
        assert httpx.get(f"{daemon.url}/digest", auth=httpx.DigestAuth("alice", PASSWORD)).text == SUCCESS


def test_changed_realm_disables_digest_with_a_warning(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    with serve(tmp_path, 'users = "users"\nrealm = "elsewhere"') as daemon:
        check_words(warnings_in(daemon), "no Digest", "realm 'elsewhere'", "alice", "postd user passwd")


def test_rules_without_users_are_warned_of(tmp_path: Path) -> None:
    with serve(tmp_path, 'api.write = ["basic"]') as daemon:
        assert "users is not set" in warnings_in(daemon)
        assert httpx.post(f"{daemon.url}/post", json={"post": "x"}).status_code == 401
    (tmp_path / "log").unlink()
    with serve(tmp_path, "") as daemon:
        assert warnings_in(daemon) == ""


# The throttle


def try_basic(daemon: Daemon, user: str, password: str, address: str | None = None) -> httpx.Response:
    headers = {"X-Forwarded-For": address} if address else {}
    return httpx.get(f"{daemon.url}/basic", auth=(user, password), headers=headers)


def check_throttled(*answers: httpx.Response) -> None:
    for answer in answers:
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["Retry-After"]) <= 300
        assert "WWW-Authenticate" not in answer.headers
        assert "Set-Cookie" not in answer.headers


def test_eleventh_failure_is_429_in_each_scheme(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD, bob=PASSWORD)
    with serve(tmp_path) as daemon:
        assert try_basic(daemon, "alice", PASSWORD).status_code == 200  # what is remembered is throttled, too
        session = sign_in(daemon, "alice", PASSWORD).cookies["session"]
        for number in range(4):
            assert try_basic(daemon, "alice", f"wrong {number}").status_code == 401
        for _ in range(3):
            assert httpx.get(f"{daemon.url}/digest", auth=httpx.DigestAuth("alice", "wrong")).status_code == 401
        for number in range(3):
            assert sign_in(daemon, "alice", f"wrong {number}").status_code == 401

        def check_all() -> None:
            check_throttled(
                try_basic(daemon, "alice", "wrong"),
                try_basic(daemon, "alice", PASSWORD),
                httpx.get(f"{daemon.url}/digest", auth=httpx.DigestAuth("alice", PASSWORD)),
                sign_in(daemon, "alice", PASSWORD),
            )
            assert try_basic(daemon, "bob", PASSWORD).status_code == 200
            assert see_home(daemon, session).status_code == 200
            assert httpx.get(f"{daemon.url}/digest").status_code == 401

        check_all()
        daemon.kill()
    with serve(tmp_path) as daemon:
        check_all()


def test_throttle_counts_by_address(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    settings = 'trusted_proxies = ["127.0.0.1"]\nthrottle = {failures = 4, address_failures = 8}'
    with serve(tmp_path, f'users = "users"\n{settings}') as daemon:
        for number in range(4):
            assert try_basic(daemon, "alice", "wrong", f"2001:db8::{number}").status_code == 401
        check_throttled(try_basic(daemon, "alice", PASSWORD, "2001:db8::ffff"))
        check_throttled(try_basic(daemon, "alice", PASSWORD, "192.0.2.7, 2001:db8::1"))
        assert try_basic(daemon, "alice", PASSWORD, "2001:db8:0:1::1").status_code == 200
        assert try_basic(daemon, "alice", PASSWORD, "192.0.2.7").status_code == 200
        for number in range(8):
            assert try_basic(daemon, f"unknown {number}", "wrong", "192.0.2.8").status_code == 401
        check_throttled(try_basic(daemon, "alice", PASSWORD, "192.0.2.8"))


def test_throttle_ignores_forwarded_for_of_untrusted_peers(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    with serve(tmp_path, 'users = "users"\nthrottle.failures = 3') as daemon:
        for number in range(3):
            assert try_basic(daemon, "alice", "wrong", f"192.0.2.{number}").status_code == 401
        check_throttled(try_basic(daemon, "alice", "wrong", "192.0.2.9"))
        assert daemon.log.count("is not in trusted_proxies") == 1


@pytest.mark.slow
def test_throttle_ends_after_its_window(tmp_path: Path) -> None:
    write_users(tmp_path, alice=PASSWORD)
    with serve(tmp_path, 'users = "users"\nthrottle = {failures = 2, window = "2s"}') as daemon:
        while True:  # the window may end before the third request on a busy machine
            began = time.monotonic()
            assert [try_basic(daemon, "alice", "wrong").status_code for _ in range(2)] == [401, 401]
            refused = try_basic(daemon, "alice", PASSWORD)
            if refused.status_code == 429:
                break
            assert time.monotonic() > began + 2
        check_throttled(refused)
        time.sleep(int(refused.headers["Retry-After"]))
        assert try_basic(daemon, "alice", PASSWORD).status_code == 200


# Other requests, and the log


@pytest.mark.slow
def test_password_verification_does_not_block_other_requests(tmp_path: Path) -> None:
    names = [f"user{number}" for number in range(30)]
    write_users(tmp_path, **dict.fromkeys(names, PASSWORD))
    with serve(tmp_path) as daemon, httpx.Client(base_url=daemon.url) as client, ThreadPoolExecutor(30) as pool:
        logins = [pool.submit(sign_in, daemon, name, PASSWORD) for name in names]
        served = 0
        while not all(login.done() for login in logins):
            assert client.get("/post").status_code == 200
            served += 1
        assert [login.result().status_code for login in logins] == [302] * len(names)
    assert served > len(names)  # else each may have waited for a verification


def test_log_has_no_secret(tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_users(tmp_path, alice=PASSWORD)
    wrong = "wrong-but-near-the-right-one"
    secrets = {PASSWORD, wrong, "correct horse", *users.read_text().strip().split(":")[1:]}
    secrets |= {part.partition("=")[2] for part in users.read_text().strip().split(":")[2].split(",")[:2]}
    settings = 'users = "users"\napi.write = ["basic", "session"]'
    with serve(tmp_path, settings) as daemon, httpx.Client(base_url=daemon.url) as client:
        for password in (PASSWORD, wrong):
            secrets.add(base64.b64encode(f"alice:{password}".encode()).decode().rstrip("="))
            client.get("/basic", auth=("alice", password))
            answer = sign_in(daemon, "alice", password)
            if password == PASSWORD:
                secrets.add(answer.cookies["session"])
                see_home(daemon, answer.cookies["session"])
                httpx.post(f"{daemon.url}/logout", headers={"Cookie": f"session={answer.cookies['session']}"})
                see_home(daemon, answer.cookies["session"])
            alice = DigestUser("alice", password)
            nonce = alice.nonce(daemon)
            for count in (1, 1):
                alice.get(client, nonce, count)
            credentials = alice.credentials(nonce, 1)
            client.get("/digest?elsewhere", headers={"Authorization": credentials})
            client.get("/digest", headers={"Authorization": credentials.replace("qop=auth", "qop=none")})
            client.get("/digest", headers={"Authorization": credentials.replace("nc=00000001", "nc=1")})
            client.get("/digest", headers={"Authorization": credentials + ", " + credentials})
            sent = decode_parameters(credentials)
            mac = base64.urlsafe_b64decode(nonce)[17:]
            secrets |= {sent["response"], nonce, nonce[-20:], mac.hex(), compute(sent, password, "")}
        # What is malformed may be a secret all the same.
        half = base64.b64encode(f"alice{PASSWORD.replace(':', '')}".encode()).decode()
        secrets |= {half.rstrip("="), PASSWORD.replace(":", "")}
        for authorization in (half, f"Basic {half}", f"Basic !{half}", f"Bearer {half}", f"\x1b[1m{half}"):
            headers = {"Authorization": authorization, "Cookie": f"session={half[:43]:A<43}"}
            status = 401 if authorization.isprintable() else 400  # no field has control characters (RFC 9110 §5.5)
            assert client.get("/basic", headers=headers).status_code == status
            assert client.delete("/post/1", headers=headers).status_code == status
        client.get("/home", headers={"Cookie": f"session={half}; session=x"})
        client.post("/login", data={"username": ["alice", "bob"], "password": PASSWORD})
        client.post("/login", content=PASSWORD.encode(), headers={"Content-Type": "text/plain"})
        client.post("/login", content=b"\xff" + PASSWORD.encode())
        with taken_up(daemon, "1 user"):
            run_postd_user(users, "passwd", "alice", wrong)
        secrets |= set(users.read_text().strip().split(":")[1:])
    log = daemon.log
    assert "login refused" in log
    assert [secret for secret in secrets if secret in log] == []
    assert not any(binascii.b2a_hex(secret.encode()).decode() in log for secret in secrets)
    assert "Traceback" not in log
    assert '" 500 ' not in log
    assert "\x1b" not in log

"""Programs with `postd.protect` in processes of their own: shared stores, stores that are away, and the end."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from tests.helpers import PATIENCE_S, run_sql
from tests.issuer import JWKS, Issuer, Key, Reply
from tests.redis_server import RedisServer, free_port
from tests.web.clients import PASSWORD, account

pytestmark = pytest.mark.slow  # each test starts programs

PROGRAM = """
import sys
from contextlib import AsyncExitStack
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import globalLogPublisher, textFileLogObserver
from twisted.web.resource import Resource
from twisted.web.server import Site
from postd.protect import Protection, identity, issuer

class Name(Resource):
    isLeaf = True

    def render_GET(self, request):
        return identity(request).name.encode()

async def main(reactor, users, url, *stores):
    issuers = [issuer(url, audience="https://app.example")] if url else []
    globalLogPublisher.addObserver(textFileLogObserver(sys.stderr))
    async with AsyncExitStack() as stack:
        for store in stores:
            protection = Protection(
                reactor, users=users, issuers=issuers, store=store, failures=3, sign_in="/sign-in"
            )
            await stack.enter_async_context(protection)
            root = Resource()
            for scheme in ("basic", "digest", "session", *(["bearer"] if issuers else [])):
                root.putChild(scheme.encode(), protection.protect(Name(), scheme))
            root.putChild(b"sign-in", protection.pages(after="/session"))
            port = reactor.listenTCP(0, Site(root), interface="127.0.0.1").getHost().port
            print(port, flush=True)
        await Deferred()

react(main, sys.argv[1:])
"""

AUDIENCE = "https://app.example"
ALICE = ("alice", PASSWORD)

SLOW = "alice:$2b$13$abcdefghijklmnopqrstuuRBBZ4S7O0QAHGMDvAP0LaGbdQJQN9EO\n"
"""A line of a user file with a hash that takes half a second to verify."""


class Running(Struct):
    """A process of `PROGRAM`, and the URL of each of its sites."""

    process: subprocess.Popen[str]
    urls: list[str]

    def get(self, path: str, auth: Any = None, *, at: int = 0, **more: Any) -> httpx.Response:
        return httpx.get(self.urls[at] + path, auth=auth, **more)

    def terminate(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def run(folder: Path, *stores: str, users: str = account("alice"), issuer: str = "") -> Iterator[Running]:
    """Run `PROGRAM`, with a site for each store; it may end before the `with` block does."""
    (folder / "users").write_text(users)
    command = [sys.executable, "-c", PROGRAM, str(folder / "users"), issuer, *stores]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        started = []
        for _ in stores:
            port = process.stdout.readline().strip()
            assert port, (folder / "log").read_text()
            started.append(f"http://127.0.0.1:{port}")
        yield Running(process, started)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'logins.db'}"
        return
    with RedisServer(tmp_path / "redis") as server:
        yield server.url


class SharingTests:
    """Two of them on one store."""

    def test_sessions_nonces_and_failures_are_shared(self, tmp_path: Path, store: str) -> None:
        with run(tmp_path, store, store) as program:
            form = {"username": ALICE[0], "password": ALICE[1]}
            signed_in = httpx.post(f"{program.urls[0]}/sign-in/login", data=form)
            assert (signed_in.status_code, signed_in.headers["Location"]) == (302, "/session")
            cookies = {"Cookie": signed_in.headers["Set-Cookie"].partition(";")[0]}
            assert [program.get("/session", headers=cookies, at=at).status_code for at in (0, 1)] == [200, 200]
            httpx.post(f"{program.urls[1]}/sign-in/logout", headers=cookies)
            assert [program.get("/session", headers=cookies, at=at).status_code for at in (0, 1)] == [302, 302]

            accepted = program.get("/digest", httpx.DigestAuth(*ALICE))
            assert (accepted.status_code, accepted.text) == (200, "alice")
            for at in (0, 1):  # the nonce is known to both, and the nonce count was used
                headers = {"Authorization": accepted.request.headers["Authorization"]}
                stale = program.get("/digest", at=at, headers=headers)
                assert stale.status_code == 401
                assert "stale=true" in stale.headers["WWW-Authenticate"]
            first = program.get("/digest", httpx.DigestAuth(*ALICE)).request.headers["Authorization"]
            assert program.get("/digest", at=1, headers={"Authorization": first}).status_code == 401

            statuses = [program.get("/basic", ("alice", "wrong"), at=at).status_code for at in (0, 1, 0)]
            assert statuses == [401, 401, 401]
            assert [program.get("/basic", ALICE, at=at).status_code for at in (0, 1)] == [429, 429]


class IssuerTests:
    def test_tokens_of_an_issuer_are_accepted(self, tmp_path: Path) -> None:
        with (
            Issuer(AUDIENCE, Key.make("ES256")) as provider,
            run(tmp_path, "memory:", issuer=provider.issuer) as program,
        ):
            for token, status in ((provider.token(), 200), (provider.token(aud="x"), 401), ("x", 401)):
                answer = program.get("/bearer", headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code == status
            assert program.get("/bearer", headers={"Authorization": f"Bearer {provider.token()}"}).text == "alice"

    def test_sigterm_ends_a_program_while_its_issuer_does_not_answer(self, tmp_path: Path) -> None:
        with Issuer(AUDIENCE, Key.make("ES256")) as provider:
            provider.replies[JWKS] = Reply(before=threading.Event())
            with run(tmp_path, "memory:", issuer=provider.issuer) as program:
                provider.wait_for_request(JWKS)
                assert program.terminate() == 0
        assert "Traceback" not in (tmp_path / "log").read_text()


class StoreTests:
    def test_store_that_is_away_does_not_stop_the_start(self, tmp_path: Path) -> None:
        with RedisServer(tmp_path / "redis") as server:
            server.kill()
            with run(tmp_path, server.url) as program:
                for path, auth in (("/basic", ALICE), ("/digest", None)):
                    answer = program.get(path, auth)
                    assert (answer.status_code, int(answer.headers["Retry-After"]) >= 1) == (503, True)
                server.start()
                deadline = time.monotonic() + PATIENCE_S
                while program.get("/basic", ALICE).status_code != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                assert program.get("/digest", httpx.DigestAuth(*ALICE)).status_code == 200

    def test_store_of_another_program_is_refused_at_the_start(self, tmp_path: Path) -> None:
        database = tmp_path / "other.db"
        run_sql(database, "CREATE TABLE bookmarks (url TEXT)", "PRAGMA user_version = 7")
        (tmp_path / "users").write_text(account("alice"))
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "users"), "", f"sqlite:{database}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert "ValueError: store: " in ended.stderr
        assert run_sql(database, "SELECT name FROM sqlite_master") == [("bookmarks",)]


class EndTests:
    """Nothing outlives it."""

    def test_sigterm_ends_a_program(self, tmp_path: Path, store: str) -> None:
        with run(tmp_path, "memory:", store) as program:
            assert program.get("/basic", ALICE).status_code == 200
            assert program.terminate() == 0
        assert "Traceback" not in (tmp_path / "log").read_text()

    def test_sigterm_ends_a_program_while_a_password_is_hashed(self, tmp_path: Path) -> None:
        with run(tmp_path, "memory:", users=SLOW) as program:
            with pytest.raises(httpx.ReadTimeout):
                program.get("/basic", ALICE, timeout=httpx.Timeout(PATIENCE_S, read=0.2))
            assert program.terminate() == 0
        assert "Traceback" not in (tmp_path / "log").read_text()

    def test_sigterm_ends_a_program_while_its_store_is_away(self, tmp_path: Path) -> None:
        with run(tmp_path, f"redis://127.0.0.1:{free_port()}") as program:
            assert program.get("/basic", ALICE).status_code == 503
            assert program.terminate() == 0
        assert "Traceback" not in (tmp_path / "log").read_text()

    def test_stop_leaves_no_thread_timer_or_socket(self, tmp_path: Path, store: str) -> None:
        (tmp_path / "users").write_text(account("alice"))
        away = f"redis://127.0.0.1:{free_port()}"
        command = [sys.executable, "-c", STOP, str(tmp_path / "users"), "memory:", store, away]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        before, *after = map(json.loads, ended.stdout.splitlines())
        assert after == [before] * 3


STOP = """
import json, sys, threading
import treq
from twisted.internet.task import deferLater, react
from twisted.web.resource import Resource
from twisted.web.server import Site
from postd.protect import Protection

async def show(reactor):
    for _ in range(5):  # turns in which closed connections are forgotten
        await deferLater(reactor, 0.01)
    # Without those of the reactor, which are as many as it needed at the same time.
    names = [one.name for one in threading.enumerate()]
    threads = [name for name in names if not name.startswith("PoolThread-twisted.internet.reactor")]
    timers = [str(call) for call in reactor.getDelayedCalls()]
    sockets = sorted(type(one).__name__ for one in {*reactor.getReaders(), *reactor.getWriters()})
    print(json.dumps([threads, timers, sockets]))

async def ask(reactor, resource):
    site = Site(resource)
    port = reactor.listenTCP(0, site, interface="127.0.0.1")
    url = f"http://127.0.0.1:{port.getHost().port}/"
    answer = await treq.get(url, auth=("alice", "wrong"), persistent=False, reactor=reactor)
    await answer.content()
    await port.stopListening()
    site.stopFactory()
    return answer.code

async def main(reactor, users, *stores):
    assert await ask(reactor, Resource()) == 404  # what the client itself leaves is there from now on
    await show(reactor)
    for store in stores:
        protection = Protection(reactor, users=users, store=store)
        await protection.start()
        guarded = protection.protect(Resource(), "basic")
        assert await ask(reactor, guarded) == (503 if store == stores[-1] else 401)
        await protection.stop()
        await protection.stop()
        await show(reactor)

react(main, sys.argv[1:])
"""


class ImportTests:
    def test_import_loads_neither_a_front_nor_settings_nor_a_store(self) -> None:
        """Nor Klein, nor a client of HTTP: what an application does not ask for costs it nothing."""
        code = "import json, sys, postd.protect; print(json.dumps(sorted(sys.modules)))"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        loaded = json.loads(result.stdout)
        others = ("klein", "werkzeug", "sqlite3", "txredisapi", "treq", "joserfc", "twisted.internet.reactor")
        ours = ("web", "settings", "daemon", "schemes", "store.sqlite", "store.redis", "monitoring", "cli", "client")
        unwanted = (*others, *(f"postd.{name}" for name in ours))
        assert not [name for name in loaded if any(name == one or name.startswith(f"{one}.") for one in unwanted)]

"""`postd.testing` under pytest-twisted, its suite under `trial`."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import treq
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet import tcp
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.client import ConfigError, Digest, SignInError
from postd.protect import Protection, identity
from postd.reactor import IReactor
from postd.testing import Issuer, PostServer, Server, basic, bearer, write_users
from tests.cases import each
from tests.helpers import PATIENCE_S

REACTOR = cast(IReactor, global_reactor)
ROOT = Path(__file__).parent.parent.parent


class Name(Resource):
    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        client = identity(request)
        return b"-" if client is None else client.name.encode()


class Silent(Resource):
    """Answers nothing; fires `asked` at the request, and notes when the client has gone."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: Deferred[None] = Deferred()
        self.gone = 0

    def render_GET(self, request: Any) -> int:
        request.notifyFinish().addErrback(self._note)
        self.asked.callback(None)
        return NOT_DONE_YET

    def _note(self, _: object) -> None:
        self.gone += 1


def run(*command: str, folder: Path = ROOT) -> str:
    result = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def open_resources() -> set[Any]:
    """Return connections, ports and what timers call; a `LoopingCall` is one, whichever timer it has."""
    connections = [one for one in cast(Any, REACTOR).getReaders() if isinstance(one, tcp.Connection | tcp.Port)]
    return {*connections, *(cast(Any, timer).func for timer in REACTOR.getDelayedCalls())}


@pytest.mark.slow
def test_suite_passes_under_trial(tmp_path: Path) -> None:
    printed = run("-m", "twisted.trial", "--temp-directory", str(tmp_path / "trial"), "tests.testing.trial_suite")
    assert "PASSED" in printed


@pytest.mark.slow
def test_import_loads_no_pytest() -> None:
    assert run("-c", "import sys, postd.testing; print('pytest' in sys.modules)") == "False\n"


@pytest.mark.parametrize("on_port", [False, True])
@ensureDeferred
async def test_nothing_is_left_when_requests_were_in_progress(*, on_port: bool) -> None:
    before = open_resources()
    silent = Silent()
    async with Server(REACTOR, silent, on_port=on_port) as server:
        failed = server.client().get(server.url).addCallbacks(lambda _: False, lambda _: True)
        await silent.asked
        await deferLater(REACTOR, 0)
        assert silent.gone == 0
    assert silent.gone == 1
    assert await failed
    assert open_resources() <= before


@ensureDeferred
async def test_treq_uses_the_agent_of_a_client(tmp_path: Path) -> None:
    users = write_users(tmp_path / "users", {"älice": "pä:ss"}, realm="Notes")
    async with (
        Protection(REACTOR, users=users, realm="Notes") as protection,
        Server(REACTOR, protection.protect(Name(), "digest", "basic")) as server,
    ):
        client = server.client(Digest("älice", "pä:ss"))
        response = await treq.get(f"{server.url}/x", agent=client.agent)
        assert await response.content() == "älice".encode()
        response = await server.client().get(server.url, headers=basic("älice", "pä:ss"))
        assert await response.content() == "älice".encode()


@ensureDeferred
async def test_claims_are_replaced_added_and_left_out() -> None:
    async with Issuer(REACTOR, audience="https://a.example") as issuer, Issuer(REACTOR) as other:
        trusted = issuer.trusted(audience=["https://a.example", "https://b.example"], user_claim="email")
        async with (
            Protection(REACTOR, issuers=[trusted]) as protection,
            Server(REACTOR, protection.protect(Name(), "bearer")) as server,
        ):

            async def ask(token: str) -> tuple[int, str]:
                response = await server.client().get(server.url, headers=bearer(token))
                return response.code, (await response.text())[:20]

            assert await ask(issuer.sign(email="a@example")) == (200, "a@example")
            assert await ask(issuer.sign(email="a@example", aud="https://b.example")) == (200, "a@example")
            for refused in (
                issuer.sign(),
                issuer.sign(email="a@example", aud="https://c.example"),
                issuer.sign(email="a@example", exp=None),
                other.sign(email="a@example", iss=issuer.url, aud="https://a.example"),
            ):
                assert (await ask(refused))[0] == 401


@ensureDeferred
async def test_server_takes_all_schemes_by_settings(tmp_path: Path) -> None:
    users = write_users(tmp_path / "users", {"alice": "wonderland"})
    async with Issuer(REACTOR) as issuer:
        table = {"issuer": issuer.url, "audience": issuer.audience}
        rule = {"read": ["basic", "bearer", "session"]}
        async with PostServer(REACTOR, 'realm = "postd"', users=users, api=rule, bearer=[table]) as server:
            for headers in (
                basic("alice", "wonderland"),
                bearer(issuer.sign()),
                await server.sign_in("alice", "wonderland"),
            ):
                response = await server.client().get(f"{server.url}/post", headers=headers)
                assert (response.code, await response.json()) == (200, [])
            with pytest.raises(SignInError, match="401"):
                await server.sign_in("alice", "looking-glass")


@each("settings", [{"reallm": "x"}, {"api": {"reed": []}}, {"realm": 3}])
def test_wrong_settings_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="settings"):
        PostServer(REACTOR, **settings)


@ensureDeferred
async def test_store_that_cannot_be_used_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "posts.db").write_text("not a database")
    server = PostServer(REACTOR, store=f"sqlite:{tmp_path}/posts.db")
    with pytest.raises(ConfigError, match=r"settings: store: .*not an SQLite database"):
        await server.start()


@pytest.mark.parametrize("users", [{"a:b": "x"}, {"alice": ""}])
def test_wrong_users_are_refused(tmp_path: Path, users: Any) -> None:
    with pytest.raises(ValueError, match=r"has a colon|is empty"):
        write_users(tmp_path / "users", users)

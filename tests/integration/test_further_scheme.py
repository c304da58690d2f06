"""The example of docs/development/schemes.md, in a real server and in a stock Klein application."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import treq
from klein import Klein
from pytest_twisted import ensureDeferred
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import Site

from postd.protect import Protection, identity
from tests.client.server import REACTOR
from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.web.clients import account

PAGE = Path(__file__).parents[2] / "docs" / "development" / "schemes.md"
MODULE = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[0]

REGISTERED = """
import sys
sys.path.insert(0, {folder!r})
from postd.scheme_names import SCHEMES
SCHEMES["apikey"] = "apikey:ApiKey"
from twisted.scripts.twistd import run
sys.argv[:1] = []
sys.exit(run())
"""
"""Runs twistd with the module of the example; in the repository the line in `SCHEMES` registers it."""

SETTINGS = """
[api]
write = ["apikey"]

[[page]]
path = "/reports"
schemes = ["apikey", "basic"]

[[page]]
path = "/alone"
schemes = ["apikey"]
users = ["somebody else"]

[apikey]
account = "robot"
key_file = "key"

[throttle]
failures = 4
address_failures = 4
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "apikey.py").write_text(MODULE)
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "postd.toml").write_text(SETTINGS)
    through = (sys.executable, "-c", REGISTERED.format(folder=str(tmp_path)))
    with Daemon(tmp_path, "-c", "postd.toml", through=through) as daemon:
        yield daemon


def test_further_scheme_protects_pages_and_the_api(daemon: Daemon) -> None:
    right, wrong = {"X-Api-Key": "s3cret"}, {"X-Api-Key": "guess"}
    with httpx.Client(base_url=daemon.url, trust_env=False) as client:
        assert client.get("/reports", headers=right).text == "Success: robot\n"
        refused = client.get("/reports", headers=wrong)
        assert refused.status_code == 401
        assert refused.headers.get_list("WWW-Authenticate") == ['Basic realm="postd"']
        unasked = client.get("/alone")
        assert (unasked.status_code, unasked.headers["WWW-Authenticate"]) == (401, 'ApiKey realm="postd"')
        assert client.get("/alone", headers=right).status_code == 403
        assert client.post("/post", json={"post": "x"}, headers=wrong).status_code == 401
        assert client.post("/post", json={"post": "x"}, headers=right).status_code == 201
        # Reading is open; the key is checked all the same.
        statuses = [client.get("/post", headers=headers).status_code for headers in ({}, right, wrong)]
        assert statuses == [200, 200, 401]
        document = client.get("/openapi.json").json()
        assert document["paths"]["/post"]["post"]["security"] == [{"apikey": []}]
        assert document["components"]["securitySchemes"]["apikey"]["name"] == "X-Api-Key"
        assert ">API key<" in client.get("/docs").text
        assert client.get("/alone", headers=wrong).status_code == 401
        assert client.get("/alone", headers=wrong).status_code == 429
        assert client.get("/alone", headers=right).status_code == 429
    assert "write apikey" in daemon.log
    daemon.wait_for(" - robot ")
    assert "scheme=apikey" in daemon.log


def test_example_has_at_most_40_lines() -> None:
    assert len(MODULE.splitlines()) <= 40


@ensureDeferred
async def test_further_scheme_protects_a_klein_application(tmp_path: Path) -> None:
    """The same module as in the server, by value."""
    (tmp_path / "users").write_text(account("alice"))
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "other").write_text("0ther\n")
    module: dict[str, Any] = {"__name__": "apikey"}
    exec(compile(MODULE, "apikey.py", "exec"), module)
    make = module["ApiKey"]
    app = Klein()

    @app.route("/")
    def show(request: Any) -> str:
        client = identity(request)
        assert client is not None
        return f"{client.name} {client.scheme}"

    async with Protection(REACTOR, users=tmp_path / "users", failures=3, address_failures=3) as protection:
        robot, other = make("robot", str(tmp_path / "key")), make("other", str(tmp_path / "other"))
        root = Resource()
        for name, schemes in ((b"reports", [robot, "basic"]), (b"alone", [robot]), (b"other", [other])):
            root.putChild(name, protection.protect(app.resource(), *schemes))
        port = REACTOR.listenTCP(0, Site(root), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}"

        async def ask(path: str, **fields: str) -> tuple[int, str, list[str] | None]:
            headers = Headers({name.replace("_", "-"): [value] for name, value in fields.items()})
            answer = await treq.get(f"{url}{path}/", headers=headers, persistent=False)
            return answer.code, await answer.text(), answer.headers.getRawHeaders("WWW-Authenticate")

        try:
            assert await ask("/reports", X_Api_Key="s3cret") == (200, "robot apikey", None)
            assert await ask("/other", X_Api_Key="0ther") == (200, "other apikey", None)
            assert await ask("/alone") == (401, "Unauthorized\n", ['ApiKey realm="postd"'])
            assert (await ask("/reports", X_Api_Key="guess"))[0::2] == (401, ['Basic realm="postd"'])
            (tmp_path / "key").write_text("new\n")
            await protection.reload()
            assert (await ask("/alone", X_Api_Key="s3cret"))[0] == 401
            assert await ask("/alone", X_Api_Key="new") == (200, "robot apikey", None)
            assert (await ask("/other", X_Api_Key="new"))[0] == 401
            assert (await ask("/other", X_Api_Key="0ther"))[0] == 429
        finally:
            await port.stopListening()
        with pytest.raises(ValueError, match=r"key_file: .*absent: No such file or directory"):
            protection.protect(app.resource(), make("robot", str(tmp_path / "absent")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('account = "robot"', "", "postd.toml: apikey: account is missing"),
        ('account = "robot"', "account = 7", "postd.toml: apikey: account: expected a string, got a whole number"),
        ('["apikey", "basic"]', '["apikeys"]', "'apikeys' is not the name of a scheme"),
        ("[apikey]", "[basic]\nfoo = 1\n[apikey]", "postd.toml: basic: unknown key; this scheme has no table"),
        ("[apikey]", "[token]\nissuers = []\n[apikey]", "postd.toml: token: unknown key; this scheme has no table"),
        ("[api]", "basic = 5\n[api]", "postd.toml: basic: unknown key; this scheme has no table"),
        ('= "key"', '= "absent"', "absent: No such file or directory"),
        ('= "key"', '= "/dev/null"', "postd.toml: apikey: key_file: /dev/null is empty"),
        ('= "key"', "= 7", "postd.toml: apikey: key_file: expected a string, got a whole number"),
    ],
)
def test_settings_of_a_further_scheme_are_checked(tmp_path: Path, before: str, after: str, why: str) -> None:
    (tmp_path / "apikey.py").write_text(MODULE)
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "postd.toml").write_text(SETTINGS.replace(before, after))
    through = (sys.executable, "-c", REGISTERED.format(folder=str(tmp_path)))
    with Daemon(tmp_path, "-c", "postd.toml", wait=False, through=through) as daemon:
        assert daemon.process.wait(PATIENCE_S) == 1
        assert why in daemon.log

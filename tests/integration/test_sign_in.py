"""Sign-in at an OpenID provider, by real servers with several workers."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.threads import deferToThread

from postd.client import AuthClient
from postd.reactor import IReactor
from postd.testing import Provider
from tests.helpers import PATIENCE_S
from tests.integration.daemon import FREE_PORT, Daemon
from tests.integration.forking import run
from tests.integration.logins import POSTD
from tests.redis_server import free_port
from tests.sign_in import Browser

REACTOR = cast(IReactor, global_reactor)
SECRET = "a secret"
SETTINGS = """
trusted_proxies = ["unix", "127.0.0.1"]
[api]
read = ["session"]
write = ["session"]
[[page]]
path = "/gate"
schemes = ["session"]
forward = true
[[page]]
path = "/alice"
schemes = ["session"]
users = ["{issuer}#alice"]
[[page]]
path = "/bob"
schemes = ["session"]
users = ["{issuer}#bob"]
[[sign_in]]
id = "example"
name = "Example"
issuer = "{issuer}"
client_id = "app"
client_secret_file = "secret"
{more}
"""


@asynccontextmanager
async def provided(folder: Path, more: str = "") -> AsyncIterator[Provider]:
    """Run a provider; write the settings of a server for it."""
    async with Provider(REACTOR, client_secret=SECRET) as idp:
        (folder / "secret").write_text(SECRET + "\n")
        (folder / "postd.toml").write_text(SETTINGS.format(issuer=idp.url, more=more))
        yield idp


class Machine(Browser):
    """A browser with a new connection for each request, so that any worker may answer."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon.url, AuthClient(REACTOR, daemon.url), "/login/example")

    async def get(self, target: str, method: str = "GET", **keywords: Any) -> Any:
        headers = {"Connection": "close", **keywords.pop("headers", {})}
        return await super().get(target, method, headers=headers, **keywords)


@contextmanager
def serving(folder: Path, *options: str, listen: str = FREE_PORT) -> Iterator[Daemon]:
    with Daemon(folder, "--config", "postd.toml", *options, listen=listen) as daemon:
        yield daemon


@ensureDeferred
async def test_user_of_a_provider_is_a_user_everywhere(tmp_path: Path) -> None:
    async with provided(tmp_path) as idp:
        with serving(tmp_path) as daemon:
            browser = Machine(daemon)
            assert (await browser.get("/board")).location == "/?next=/board"
            assert 'href="/login/example?next=/board"' in (await browser.get("/?next=/board")).text
            assert (await browser.sign_in(idp, "?next=/board")).location == "/board"
            assert '<strong dir="auto">Alice</strong>' in (await browser.get("/board")).text
            assert "<h1>Success: Alice</h1>" in (await browser.get("/home")).text
            assert (await browser.get("/home", headers={"Accept": "*/*"})).text == f"Success: {idp.url}#alice\n"
            assert [(await browser.get(page)).code for page in ("/alice", "/bob")] == [200, 403]
            fields = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/", "X-Forwarded-Host": "localhost"}
            gate = await browser.get("/gate", headers=fields)
            names = ("Remote-User", "Remote-Name", "Remote-Scheme", "Remote-Scopes")
            found = [gate.headers.getRawHeaders(name) for name in names]
            assert found == [[f"{idp.url}#alice"], ["Alice"], ["session"], None]
            document = json.loads((await browser.get("/openapi.json")).text)
            assert "/login" in document["paths"]
            assert (await browser.get("/docs")).code == 200
            listed = await deferToThread(run, [POSTD, "session", "list", "-c", "postd.toml"], tmp_path)
            assert listed.stdout.splitlines()[1].split()[:2] == [f"{idp.url}#alice".encode(), b"example"]
            ended = await deferToThread(
                run, [POSTD, "session", "revoke", "--user", f"{idp.url}#alice", "-c", "postd.toml"], tmp_path
            )
            assert ended.stdout == b"1 session ended\n"
            assert (await browser.get("/home")).location == "/"
            lines = daemon.log
        assert f"signed in: '{idp.url}#alice' from 127.0.0.1 by sign_in example" in lines
        assert '"GET /login/example/callback?~' in lines
        assert "scheme=sign_in" in lines
        assert "code=" not in lines


@ensureDeferred
async def test_sign_in_is_finished_by_any_worker_and_after_a_restart(tmp_path: Path) -> None:
    listen = f"tcp:{free_port()}:interface=127.0.0.1"
    async with provided(tmp_path) as idp:
        with serving(tmp_path, "--workers", "2", listen=listen) as daemon:
            browser = Machine(daemon)
            for _ in range(4):
                assert (await browser.sign_in(idp)).code == 302
            begun = await browser.begin()
            sessions = {**browser.cookies}
        with serving(tmp_path, listen=listen):
            assert (await browser.get("/home")).code == 200
            assert (await browser.get(idp.authorize(begun))).location == "/home"
            assert sessions != browser.cookies


@ensureDeferred
async def test_back_channel_logout_ends_sessions_on_all_workers(tmp_path: Path) -> None:
    async with provided(tmp_path) as idp:
        with serving(tmp_path, "--workers", "2") as daemon:
            browser = Machine(daemon)
            await browser.sign_in(idp)
            assert {(await browser.get("/home")).code for _ in range(6)} == {200}
            form = {"logout_token": idp.logout_token()}
            codes = [
                (await Machine(daemon).get("/login/example/back-channel-logout", "POST", data=form)).code
                for _ in range(4)
            ]
            assert codes == [200, 400, 400, 400]
            assert {(await browser.get("/home")).code for _ in range(6)} == {302}


@ensureDeferred
async def test_sign_out_at_the_provider_is_allowed_by_the_pages(tmp_path: Path) -> None:
    async with provided(tmp_path, 'logout = "provider"') as idp:
        with serving(tmp_path) as daemon:
            browser = Machine(daemon)
            await browser.sign_in(idp)
            for path in ("/board", "/logout"):
                policy = (await browser.get(path)).headers.getRawHeaders("Content-Security-Policy")[0]
                assert f"form-action 'self' {idp.url};" in policy
            assert (await browser.get("/logout", "POST")).location.startswith(f"{idp.url}/logout?id_token_hint=ey")


@ensureDeferred
async def test_form_sent_without_a_session_is_kept_during_a_sign_in(tmp_path: Path) -> None:
    """The sign-in is in another tab; then this one sends the form."""
    async with provided(tmp_path) as idp:
        with serving(tmp_path) as daemon:
            browser = Machine(daemon)
            page = await browser.get("/board", "POST", data={"post": "a <text>"})
            assert page.code == 401
            assert "what you sent was not stored, and is kept" in page.text
            assert '<a class="button" href="/login/example?next=/board" target="_blank">' in page.text
            form = re.findall(r'<form method="POST" action="/board".*?</form>', page.text, re.DOTALL)
            assert '<input type="hidden" name="post" value="a &lt;text&gt;">' in form[0]
            await browser.sign_in(idp, "?next=/board")
            assert (await browser.get("/board", "POST", data={"post": "a <text>"})).code == 303
            assert "a &lt;text&gt;" in (await browser.get("/board")).text


@ensureDeferred
async def test_check_tries_discovery_and_prints_the_redirect_uri(tmp_path: Path) -> None:
    async with provided(tmp_path) as idp:
        checked = await deferToThread(run, [POSTD, "check", "-c", "postd.toml"], tmp_path)
        lines = [line for line in checked.stdout.decode().splitlines() if line.startswith("sign_in")]
        assert lines[0] == (
            "sign_in: ok, redirect URI to register for example: http://127.0.0.1:8080/login/example/callback; set "
            "public_url, so that there is one, whatever address a browser uses"
        )
        assert lines[1].startswith(f"sign_in example: ok, {idp.url}/.well-known/openid-configuration leads to")
        assert lines[2:] == ["sign_in example: ok, client authentication: client_secret_basic"]
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('id = "bind"', "sign_in[0].id: 'bind' is reserved: bind, passkey, reset, session"),
        ('id = "A"', "sign_in[0].id: 'A' is not an id"),
        ('scopes = ["profile"]', 'sign_in[0].scopes: need "openid"'),
        ('client_secret_file = "none"', "sign_in[0].client_secret_file: "),
        ('client_auth = "private_key_jwt"', "sign_in[0].client_auth: private_key_jwt needs client_key_file"),
        ('client_idd = "a"', "sign_in[0].client_idd: unknown key (did you mean 'client_id'?)"),
        ('logout = "both"', "sign_in[0].logout: "),
    ],
)
def test_wrong_settings_end_the_start_in_one_line(tmp_path: Path, line: str, why: str) -> None:
    options = {"id": '"a"', "name": '"A"', "issuer": '"https://idp.example"', "client_id": '"a"'}
    key, _, value = line.partition(" = ")
    table = "\n".join(f"{name} = {text}" for name, text in {**options, key: value}.items())
    (tmp_path / "postd.toml").write_text(f"[[sign_in]]\n{table}\n")
    with Daemon(tmp_path, "--config", "postd.toml", wait=False) as daemon:
        assert daemon.process.wait(PATIENCE_S) == 1
    (shown,) = daemon.log.splitlines()
    assert f"postd.toml: {why}" in shown

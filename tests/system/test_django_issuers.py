"""Tokens of django-oauth-toolkit and django-allauth, and sign-in there, at a real `twistd postd`, by their pages."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.forking import run
from tests.integration.logins import POSTD
from tests.redis_server import free_port
from tests.system.form_browser import FormBrowser

SITE = Path(__file__).with_name("django_site.py")
RULES = 'api = {read = ["bearer"], write = ["bearer"]}\npage = [{path = "/token", schemes = ["bearer"]}]\n'
SCOPES = 'read_scope = "post:read"\nwrite_scope = "post:write"\n'


class Site(NamedTuple):
    """The Django site, and the port of the postd that its users sign in to."""

    url: str
    secret: str
    token: str
    port: int

    def grant(self, path: str) -> str:
        """Return the token of a machine."""
        form = {"grant_type": "client_credentials", "scope": "post:read post:write"}
        answer = httpx.post(f"{self.url}{path}", data=form, auth=("posts-cli", self.secret), timeout=PATIENCE_S)
        return str(answer.raise_for_status().json()["access_token"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port = free_port()
    command = [sys.executable, str(SITE), str(tmp_path_factory.mktemp("django")), f"http://localhost:{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{SITE.name} ended with {process.wait()}"
            made = json.loads(line)
            yield Site(f"http://127.0.0.1:{made['port']}", made["secret"], made["token"], port)
        finally:
            process.terminate()


def owner(daemon: Daemon, token: str) -> str:
    """Write a post with a token; return its owner."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=daemon.url, headers=headers, timeout=PATIENCE_S) as client:
        assert client.post("/post", json={"post": "By token"}).status_code == 201
        return client.get("/token").text


def test_opaque_tokens_of_django_oauth_toolkit(site: Site, tmp_path: Path) -> None:
    """Their introspection has no `sub`: a user's token belongs to the user, a machine's to the client."""
    (tmp_path / "secret").write_text(site.secret)
    table = f'[[bearer]]\nissuer = "{site.url}/o"\naudience = "https://posts.example"\n{SCOPES}'
    table += f'introspection_endpoint = "{site.url}/o/introspect/"\nclient_id = "posts-server"\n'
    (tmp_path / "postd.toml").write_text(f'{RULES}{table}client_secret_file = "secret"\n')
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        assert owner(daemon, site.token) == "Success: alice\n"
        assert owner(daemon, site.grant("/o/token/")) == "Success: posts-cli\n"
        unknown = {"Authorization": "Bearer unknown"}
        assert httpx.get(f"{daemon.url}/post", headers=unknown, timeout=PATIENCE_S).status_code == 401


def test_jwt_of_django_allauth_without_sub(site: Site, tmp_path: Path) -> None:
    table = f'[[bearer]]\nissuer = "{site.url}"\naudience = ""\nrequired_claims = {{token_use = "access"}}\n{SCOPES}'
    (tmp_path / "postd.toml").write_text(f'{RULES}{table}user_claim = "client_id"\n')
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        assert owner(daemon, site.grant("/identity/o/api/token")) == "Success: posts-cli\n"
    ended = run([POSTD, "check", "-c", "postd.toml"], tmp_path)
    assert (ended.returncode, b"jwks.json, which has " in ended.stdout) == (0, True)


class Kind(NamedTuple):
    """An issuer at the site: its path, the name of alice at it, and its button to sign out."""

    path: str
    shown: str
    leave: str


KINDS = {"allauth": Kind("", "alice", "Sign Out"), "toolkit": Kind("/o", "1", "Logout")}


@pytest.mark.parametrize("name", KINDS)
def test_user_signs_in_and_out(site: Site, tmp_path: Path, name: str) -> None:
    """From the board's address to the board, and out at both; all forms are sent without JavaScript."""
    kind = KINDS[name]
    (tmp_path / "secret").write_text(site.secret)
    (tmp_path / "postd.toml").write_text(f"""
        api = {{read = ["session"], write = ["session"]}}
        [[sign_in]]
        id = "{name}"
        name = "Django"
        issuer = "{site.url}{kind.path}"
        client_id = "posts"
        client_secret_file = "secret"
        logout = "provider"
    """)
    listen = f"tcp:{site.port}:interface=127.0.0.1"
    with Daemon(tmp_path, "-c", "postd.toml", listen=listen) as daemon, FormBrowser() as browser:
        url = f"http://localhost:{daemon.port}"
        counts = [
            browser.open(f"{url}/board"),
            browser.follow("Sign in with Django"),
            browser.press("Sign In", login="alice", password=site.secret),
            browser.press("Authorize"),
        ]
        assert (browser.status, browser.url, counts) == (200, f"{url}/board", [1, 2, 1, 2])
        browser.open("/home")
        assert f"Success: {kind.shown}<" in browser.text
        browser.open("/logout")
        browser.press("Sign out")
        browser.press(kind.leave)
        assert browser.url == f"{url}/"
        browser.follow("Sign in with Django")
        assert "Sign In" in browser.buttons, "the provider has ended its session, too"

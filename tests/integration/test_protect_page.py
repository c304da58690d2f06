"""The programs of docs/protect.md and docs/client.md as they stand there, in processes of their own.

One thing is replaced: the addresses, `127.0.0.1:8080` of the program and `http://127.0.0.1:9000` of the issuer.
"""

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from klein import Klein
from msgspec import Struct
from pytest_twisted import ensureDeferred
from requests.auth import HTTPDigestAuth
from twisted.internet.threads import deferToThread
from twisted.web.resource import Resource
from twisted.web.server import Site

from postd.client import Auth, AuthClient, Basic, BearerFile, Digest, FormLogin
from postd.protect import Protection, identity, issuer
from tests.client.server import REACTOR
from tests.helpers import PATIENCE_S
from tests.integration.test_logins import write_users
from tests.issuer import Issuer, Key
from tests.redis_server import free_port

pytestmark = pytest.mark.slow  # each test starts programs

ROOT = Path(__file__).parent.parent.parent
LINES_MAX = 15
USER, PASSWORD = "alice", "correct horse"
AUDIENCE, SCOPE = "https://posts.example", "post:read"

KLEIN, BEARER, FORM = "Digest and Basic, with Klein", "Bearer tokens, with Klein", "A form, with Klein"
PLAIN, TWIST, CHECKER = "twisted.web alone", "twist web", "Any checker of twisted.cred"
WRAPPER = "Our checkers and factories in stock twisted.web"
PROGRAMS = (KLEIN, BEARER, FORM, PLAIN, TWIST, CHECKER, WRAPPER)


ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


class Served(Struct):
    """A running program."""

    url: str
    folder: Path
    console: str
    issuer: Issuer

    @property
    def home(self) -> str:
        """The protected page."""
        return f"{self.url}/app/" if "/app/" in self.console else f"{self.url}/"


@cache
def sections(page: str) -> dict[str, str]:
    """Return the text below each heading."""
    _, *parts = re.split(r"^##+ (.+)\n", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def block(section: str, language: str) -> str:
    """Return the first block in a language; "" if there is none."""
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@contextmanager
def running(heading: str, folder: Path) -> Iterator[Served]:
    """Run the program below a heading of docs/protect.md, until the end of the block."""
    port = free_port()
    write_users(folder, **{USER: PASSWORD})
    with ExitStack() as stack:
        issuer = stack.enter_context(Issuer(AUDIENCE, Key.make("ES256")))
        section = sections("protect.md")[heading].replace("http://127.0.0.1:9000", issuer.issuer)
        section = section.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("tcp:8080:", f"tcp:{port}:")
        (folder / "token").write_text(issuer.token(scope=SCOPE))
        (folder / "passwd").write_text(f"{USER}:{PASSWORD}\n")
        (folder / "public").mkdir()
        (folder / "public" / "index.html").write_text("Hello\n")
        (folder / "hello.py").write_text(block(section, "python"))
        command = block(section, "sh") or "python hello.py"
        log = stack.enter_context((folder / "log").open("wb"))
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"], cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log
        )
        try:
            served = Served(f"http://127.0.0.1:{port}", folder, block(section, "console"), issuer)
            wait_until_served(served, process)
            yield served
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
    assert "Traceback" not in (folder / "log").read_text()


def wait_until_served(served: Served, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        log = (served.folder / "log").read_text()
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        try:
            if httpx.get(served.home, follow_redirects=False).status_code in {302, 401}:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)


@pytest.mark.parametrize("heading", PROGRAMS)
def test_program_has_few_lines(heading: str) -> None:
    lines = [line for line in block(sections("protect.md")[heading], "python").splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX


def test_each_program_is_run() -> None:
    complete = [
        heading for heading, section in sections("protect.md").items() if "postd.protect" in block(section, "python")
    ]
    assert sorted(complete) == sorted(PROGRAMS)


@pytest.mark.parametrize("page", ["protect.md", "client.md", "tokens.md"])
def test_code_of_the_page_can_be_parsed(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        ast.parse(code)


@pytest.mark.parametrize("page", ["protect.md", "client.md", "gateway.md", "tokens.md"])
def test_links_of_the_page_lead_to_files(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    targets = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text)
    assert targets
    for target, anchor in targets:
        file = ROOT / "docs" / target
        assert file.exists()
        headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", one).lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("heading", [KLEIN, PLAIN, TWIST, WRAPPER])
def test_digest_and_basic_by_other_clients(heading: str, tmp_path: Path) -> None:
    """Of the algorithms offered requests uses MD5, httpx SHA-256."""
    with running(heading, tmp_path) as served:
        for right in (HTTPDigestAuth(USER, PASSWORD), (USER, PASSWORD)):
            answer = requests.get(served.home, auth=right, timeout=PATIENCE_S)
            assert (answer.status_code, answer.text[:5]) == (200, "Hello")
        for auth in (httpx.DigestAuth(USER, PASSWORD), httpx.BasicAuth(USER, PASSWORD)):
            with httpx.Client(auth=auth) as client:
                for _ in range(2):
                    found = client.get(served.home)
                    assert (found.status_code, found.text[:5]) == (200, "Hello")
        for wrong in (httpx.DigestAuth(USER, "wrong"), httpx.BasicAuth(USER, "wrong"), None):
            assert httpx.get(served.home, auth=wrong).status_code == 401


def auth_of(scheme: str, folder: Path) -> Auth:
    match scheme:
        case "Digest":
            return Digest(USER, PASSWORD)
        case "Basic":
            return Basic(USER, PASSWORD)
        case "form":
            return FormLogin(USER, PASSWORD)
    return BearerFile(str(folder / "token"))


@ensureDeferred
@pytest.mark.parametrize(
    ("heading", "schemes"),
    [
        (KLEIN, ["Digest", "Basic"]),
        (BEARER, ["token"]),
        (FORM, ["form"]),
        (PLAIN, ["Digest", "Basic"]),
        (TWIST, ["Digest", "Basic"]),
        (CHECKER, ["Basic"]),
        (WRAPPER, ["Digest", "Basic"]),
    ],
)
async def test_program_by_the_client_of_postd(heading: str, schemes: list[str], tmp_path: Path) -> None:
    context = running(heading, tmp_path)
    served = await deferToThread(context.__enter__)
    try:
        for scheme in schemes:
            async with AuthClient(REACTOR, served.url, auth_of(scheme, tmp_path)) as client:
                for _ in range(2):
                    answer: Any = await client.get(served.home)
                    assert (answer.code, (await answer.text())[:5]) == (200, "Hello")
    finally:
        await deferToThread(context.__exit__, None, None, None)


def test_page_with_a_form_leads_to_it(tmp_path: Path) -> None:
    with running(FORM, tmp_path) as served, httpx.Client(base_url=served.url) as client:
        assert client.get("/app/").headers["Location"] == "/"
        assert "<form" in client.get("/").text
        form = {"username": USER, "password": "wrong"}
        assert client.post("/login", data=form).status_code == 401
        answer = client.post("/login", data={**form, "password": PASSWORD})
        assert (answer.status_code, answer.headers["Location"]) == (302, "/app/")
        assert client.get("/app/").text == "Hello alice, by session\n"
        assert client.post("/logout").headers["Location"] == "/"
        assert client.get("/app/").status_code == 302


def test_token_without_the_scope_of_the_resource_is_403(tmp_path: Path) -> None:
    with running(BEARER, tmp_path) as served:
        assert httpx.get(served.home).headers["WWW-Authenticate"] == f'Bearer realm="postd", scope="{SCOPE}"'
        answer = httpx.get(served.home, headers={"Authorization": f"Bearer {served.issuer.token()}"})
        assert answer.status_code == 403
        assert (
            answer.headers["WWW-Authenticate"] == f'Bearer realm="postd", error="insufficient_scope", scope="{SCOPE}"'
        )


def test_program_with_treq(tmp_path: Path) -> None:
    with running(KLEIN, tmp_path) as served:
        text = block((ROOT / "docs/client.md").read_text(), "python")
        printed = subprocess.run(
            [sys.executable, "-c", text.replace("http://127.0.0.1:8080", served.url)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert printed.stdout == "200 Hello alice, by digest\n"


@ensureDeferred
async def test_parts_of_programs_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that are no programs of their own, run one after another with what they need."""
    monkeypatch.chdir(tmp_path)
    write_users(tmp_path, **{USER: PASSWORD})
    root, app, inner = Resource(), Klein(), Klein()
    app.route("/")(greet)
    inner.route("/")(greet)
    page = sections("protect.md")
    names: dict[str, Any] = {"reactor": REACTOR, "root": root, "app": app, "Resource": Resource}
    names |= {"Protection": Protection, "staff": inner.resource(), "data": inner.resource()}
    exec(block(page["The form"], "python"), names)
    with_form = names["protection"]
    trusted = issuer("http://127.0.0.1:9", audience=AUDIENCE)
    names["protection"] = with_issuer = Protection(REACTOR, users="users", issuers=[trusted])
    exec(block(page["Protected resources"], "python"), names)
    exec(block(page["Metadata for clients of Bearer"], "python"), names)
    async with with_form, with_issuer:
        port = REACTOR.listenTCP(0, Site(root), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}"
        try:
            await deferToThread(ask_parts, url)
        finally:
            await port.stopListening()


def greet(request: Any) -> str:
    found = identity(request)
    assert found is not None
    return f"Hello {found.name}"


def ask_parts(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        assert client.get("/app/").headers["Location"] == "/account"
        assert "<form" in client.get("/account").text
        answer = client.post("/account/login", data={"username": USER, "password": PASSWORD})
        assert (answer.status_code, answer.headers["Location"]) == (302, "/app/")
        assert client.get("/app/").text == "Hello alice"
    assert httpx.get(f"{url}/staff/", auth=(USER, PASSWORD)).text == "Hello alice"
    metadata = httpx.get(f"{url}/.well-known/oauth-protected-resource")
    assert metadata.json()["authorization_servers"] == ["http://127.0.0.1:9"]
    challenge = httpx.get(f"{url}/data/").headers["WWW-Authenticate"]
    assert challenge == f'Bearer realm="postd", scope="data:read", resource_metadata="{metadata.url}"'


def test_client_imports_nothing_of_the_server() -> None:
    code = "import sys, postd.client; print(*sorted(name for name in sys.modules if name.startswith('postd.')))"
    printed = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    packages = {name.split(".")[1] for name in printed.stdout.split()}
    assert packages <= {"caching", "client", "errors", "model", "net", "protocol", "reactor", "twisted_private"}

"""The programs of docs/how-to/protect.md, in processes of their own, with other clients than the page shows.

One thing is replaced: the addresses, `127.0.0.1:8080` of the program and `http://127.0.0.1:9000` of the issuer.
"""

import os
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
from tests.cases import each
from tests.client.server import REACTOR
from tests.helpers import PATIENCE_S
from tests.integration.test_logins import write_users
from tests.issuer import Issuer, Key
from tests.pages import Block, read_blocks
from tests.redis_server import free_port

pytestmark = pytest.mark.slow  # each test starts programs

ROOT = Path(__file__).parent.parent.parent
LINES_MAX = 15
USER, PASSWORD = "alice", "correct horse"
AUDIENCE, SCOPE = "https://posts.example", "post:read"

KLEIN, BEARER, FORM = "Digest and Basic, with Klein", "Bearer tokens, with Klein", "A form, with Klein"
TOKENS = "Personal access tokens, with Klein"  # run with the page (tests/system/test_pages.py)
PLAIN, TWIST, CHECKER = "twisted.web alone", "twist web", "Any checker of twisted.cred"
WRAPPER = "Checkers and factories of postd in stock twisted.web"
PROGRAMS = (KLEIN, BEARER, FORM, TOKENS, PLAIN, TWIST, CHECKER, WRAPPER)


ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


class Served(Struct):
    """A running program."""

    url: str
    folder: Path
    path: str
    issuer: Issuer

    @property
    def home(self) -> str:
        """The protected page."""
        return f"{self.url}{self.path}"


@cache
def blocks_below(heading: str) -> list[Block]:
    """Return the code blocks below a heading of docs/how-to/protect.md."""
    return [block for block in read_blocks("docs/how-to/protect.md") if block.heading == heading]


def program_of(heading: str) -> str:
    return "".join(block.text for block in blocks_below(heading) if block.file == "hello.py")


@contextmanager
def running(heading: str, folder: Path) -> Iterator[Served]:
    """Run the program below a heading of docs/how-to/protect.md, until the end of the block."""
    port = free_port()
    write_users(folder, **{USER: PASSWORD})
    with ExitStack() as stack:
        issuer = stack.enter_context(Issuer(AUDIENCE, Key.make("ES256")))
        (command,) = [block.text for block in blocks_below(heading) if block.port == 8080]
        program = program_of(heading).replace("http://127.0.0.1:9000", issuer.issuer)
        (folder / "token").write_text(issuer.token(scope=SCOPE))
        (folder / "passwd").write_text(f"{USER}:{PASSWORD}\n")
        (folder / "public").mkdir()
        (folder / "public" / "index.html").write_text("Hello\n")
        (folder / "hello.py").write_text(program.replace("tcp:8080:", f"tcp:{port}:"))
        log = stack.enter_context((folder / "log").open("wb"))
        command = f"exec env {command.replace('tcp:8080:', f'tcp:{port}:')}"
        process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
        try:
            served = Served(f"http://127.0.0.1:{port}", folder, "/app/" if '"/app/"' in program else "/", issuer)
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


@each("heading", PROGRAMS)
def test_program_has_few_lines(heading: str) -> None:
    lines = [line for line in program_of(heading).splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX


def test_each_program_is_run() -> None:
    complete = [block.heading for block in read_blocks("docs/how-to/protect.md") if block.file == "hello.py"]
    assert sorted(complete) == sorted(PROGRAMS)


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
        assert client.get("/app/").headers["Location"] == "/?next=/app/"
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


@ensureDeferred
async def test_parts_of_programs_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that are no programs of their own, run one after another with what they need."""
    monkeypatch.chdir(tmp_path)
    write_users(tmp_path, **{USER: PASSWORD})
    root, app, inner = Resource(), Klein(), Klein()
    app.route("/")(greet)
    inner.route("/")(greet)
    names: dict[str, Any] = {"reactor": REACTOR, "root": root, "app": app, "Resource": Resource}
    names |= {"Protection": Protection, "staff": inner.resource(), "data": inner.resource()}
    exec(part_of("The form"), names)
    with_form = names["protection"]
    trusted = issuer("http://127.0.0.1:9", audience=AUDIENCE)
    names["protection"] = with_issuer = Protection(REACTOR, users="users", issuers=[trusted])
    exec(part_of("Protected resources"), names)
    exec(part_of("Metadata for clients of Bearer"), names)
    async with with_form, with_issuer:
        port = REACTOR.listenTCP(0, Site(root), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}"
        try:
            await deferToThread(ask_parts, url)
        finally:
            await port.stopListening()


def part_of(heading: str) -> str:
    """Return the first part of a program below a heading."""
    return next(block.text for block in blocks_below(heading) if block.language == "python")


def greet(request: Any) -> str:
    found = identity(request)
    assert found is not None
    return f"Hello {found.name}"


def ask_parts(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        assert client.get("/app/").headers["Location"] == "/account?next=/app/"
        assert "<form" in client.get("/account").text
        answer = client.post("/account/login", data={"username": USER, "password": PASSWORD})
        assert (answer.status_code, answer.headers["Location"]) == (302, "/app/")
        assert client.get("/app/").text == "Hello alice"
    assert httpx.get(f"{url}/staff/", auth=(USER, PASSWORD)).text == "Hello alice"
    metadata = httpx.get(f"{url}/.well-known/oauth-protected-resource")
    assert metadata.json()["authorization_servers"] == ["http://127.0.0.1:9"]
    challenge = httpx.get(f"{url}/data/").headers["WWW-Authenticate"]
    assert challenge == f'Bearer realm="postd", scope="data:read", resource_metadata="{metadata.url}/data"'


def test_client_imports_nothing_of_the_server() -> None:
    code = "import sys, postd.client; print(*sorted(name for name in sys.modules if name.startswith('postd.')))"
    printed = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    packages = {name.split(".")[1] for name in printed.stdout.split()}
    shared = {"caching", "credential_files", "errors", "model", "net", "protocol", "reactor", "twisted_private"}
    assert packages <= {"client", *shared}

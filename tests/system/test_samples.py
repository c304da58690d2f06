"""The samples of `/docs`, run as they are shown, against the server that shows them."""

import getpass
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html import unescape

import httpx
import pytest
from msgspec import Struct

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.test_bearer import bearer_table
from tests.issuer import Issuer, Key
from tests.system.test_browser import PASSWORD, add_user

SCHEMES = '["digest", "bearer", "basic", "session"]'
ENDLESS = "watchPosts"
LAST = "signOut"
"""The operation after which the session is gone."""
TREQ_OF_EACH_SCHEME = "addPost"


class Sample(Struct, frozen=True):
    """A sample of an operation, and the status of the answer that is shown below it."""

    operation: str
    client: str
    source: str
    status: str


class Server(Struct, frozen=True):
    daemon: Daemon
    samples: list[Sample]
    environment: dict[str, str]

    def pick(self, client: str) -> list[Sample]:
        return sorted((one for one in self.samples if one.client == client), key=lambda one: one.operation == LAST)

    def put_post(self) -> None:
        """Make the post 1 as the samples want it; by another program, because only the server assigns ids."""
        with closing(sqlite3.connect(self.daemon.folder / "postd.db", timeout=PATIENCE_S)) as database, database:
            absent = "NOT EXISTS (SELECT * FROM post WHERE id = 1)"
            database.execute(f"INSERT INTO post (id, post) SELECT 1, 'Hello, world' WHERE {absent}")

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        """Start a command without a terminal, so that it reads the password from its input."""
        # A file: a command that needs no password may have closed a pipe before it is written to.
        with (self.daemon.folder / "input").open("rb") as password:
            return subprocess.Popen(
                command,
                cwd=self.daemon.folder,
                env=self.environment,
                start_new_session=True,
                stdin=password,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )


def read_stream(process: "subprocess.Popen[bytes]") -> bytes:
    """Return what a sample prints up to the first field of the event stream, or until it ends; end it."""
    printed = b""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            printed += line
            if line.startswith(b"retry: "):
                break
    finally:
        process.kill()
        process.communicate()
    return printed


def decode_samples(page: str) -> Iterator[Sample]:
    for operation, article in re.findall(r'<article aria-labelledby="(\w+)">(.*?)</article>', page, re.DOTALL):
        (status,) = re.findall(r"<pre><code>HTTP/1.1 (\d+) ", article)
        for client, of_client in re.findall(r"<summary>(\w+)</summary>(.*?)</details>", article, re.DOTALL):
            for source in re.findall(r'<pre class="sample"><code>(.*?)</code></pre>', of_client, re.DOTALL):
                yield Sample(operation, client, unescape(source), status)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("daemon")
    with Issuer("https://posts.example", Key.make("ES256")) as issuer:
        rules = f"[api]\nread = {SCHEMES}\nwrite = {SCHEMES}\n[throttle]\nfailures = 1000\n"
        (folder / "postd.toml").write_text(rules + bearer_table(issuer))
        (folder / "password.txt").write_text(PASSWORD)
        (folder / "input").write_text(f"{PASSWORD}\n")
        with Daemon(folder, "--config", "postd.toml", "--users", add_user(folder)) as daemon:
            samples = list(decode_samples(httpx.get(f"{daemon.url}/docs").text))
            yield Server(daemon, samples, {**os.environ, "TOKEN": issuer.token()})


def test_every_operation_has_samples_for_this_server(server: Server) -> None:
    operations = json.loads(httpx.get(f"{server.daemon.url}/openapi.json").content)["paths"]
    wanted = {one["operationId"] for methods in operations.values() for one in methods.values()}
    for client in ("curl", "httpx", "treq"):
        assert {sample.operation for sample in server.pick(client)} == wanted
    assert all(server.daemon.url in sample.source for sample in server.samples)


def test_curl_gets_the_answer_that_is_shown(server: Server) -> None:
    (sign_in,) = [sample for sample in server.pick("curl") if sample.operation == "signIn"]
    answered = {}
    for sample in [sign_in, *server.pick("curl")]:
        server.put_post()
        process = server.start("bash", "-c", sample.source)
        printed = read_stream(process) if sample.operation == ENDLESS else process.communicate()[0]
        # With Digest there is another before it.
        status = re.findall(rb"^HTTP/1\.1 (\d+) ", printed, re.MULTILINE)[-1].decode()
        answered[sample.operation, sample.source] = status
    assert answered == {(sample.operation, sample.source): sample.status for sample in server.pick("curl")}


def test_httpx_gets_the_answer_that_is_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: another one for each would take half a minute."""
    monkeypatch.setattr(getpass, "getpass", lambda: PASSWORD)
    monkeypatch.setenv("TOKEN", server.environment["TOKEN"])
    for sample in server.pick("httpx"):
        if sample.operation != ENDLESS:
            server.put_post()
            exec(compile(sample.source, sample.operation, "exec"), {})
            assert capsys.readouterr().out.split(" ")[0] == sample.status, sample.source


def test_treq_gets_the_answer_that_is_shown(server: Server) -> None:
    """Programs of each form: each scheme, a form, a redirect, none of them."""
    server.put_post()
    picked = [
        sample
        for sample in server.pick("treq")
        if sample.operation in {TREQ_OF_EACH_SCHEME, "signIn", "addOnBoard", "showSignIn"}
    ]
    assert len(picked) == 10
    running = [(sample, server.start(sys.executable, "-c", sample.source)) for sample in picked]
    for sample, process in running:
        printed, complaint = process.communicate()
        assert printed.decode().split(" ")[0] == sample.status, (sample.source, complaint)


@pytest.mark.parametrize("client", ["httpx", "treq"])
def test_stream_is_printed_as_it_arrives(server: Server, client: str) -> None:
    for sample in server.pick(client):
        if sample.operation == ENDLESS and "Digest" in sample.source:
            printed = read_stream(server.start(sys.executable, "-u", "-c", sample.source))
            assert printed.startswith(b"retry: ")
            return
    raise AssertionError("there is no such sample")

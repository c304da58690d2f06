"""`postd list`, `add`, `update`, `delete` and `watch` as processes of their own, against the real daemon."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.threads import deferToThread

from tests.cli.test_user import terminal
from tests.client.server import EVENT_STREAM, Disconnect, Request, make_response, problem, serving
from tests.client.test_dpop import ProvenIssuer
from tests.helpers import PATIENCE_S, wait_until
from tests.integration import forking
from tests.integration.daemon import Daemon
from tests.integration.logins import POSTD
from tests.integration.test_bearer import bearer_table
from tests.integration.test_client import AUDIENCE, issue_tokens
from tests.integration.test_logins import PASSWORD, write_users
from tests.issuer import Issuer, Key
from tests.proofs import read_proof, token_hash
from tests.redis_server import free_port

WAIT_MAX_S = PATIENCE_S
HOSTILE = "a\x1b[31m\tb\n\u202ec ü"


@pytest.fixture(scope="module")
def open_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("open")) as daemon:
        yield daemon


def run(*arguments: str, stdin: str = "", status: int = 0) -> str:
    """Return the output of a command, or the one line of its error."""
    result = forking.run([POSTD, *arguments], given=stdin.encode())
    out, err = result.stdout.decode(), result.stderr.decode()
    assert result.returncode == status, err
    if not status:
        assert err == ""
        return out
    assert out == ""
    assert err.startswith("postd: ")
    assert err.count("\n") == 1
    return err


class Watching:
    """`postd watch`, with its output in two files."""

    def __init__(self, folder: Path, *arguments: str, stdin: str = "") -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen([POSTD, "watch", *arguments], stdin=subprocess.PIPE, stdout=out, stderr=err)
        assert self.process.stdin
        self.process.stdin.write(stdin.encode())
        self.process.stdin.close()

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.out or self.process.poll() is not None)
        assert words in self.out, self.err

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_MAX_S)


def test_commands_list_add_update_and_delete_posts(open_daemon: Daemon) -> None:
    url = ("--url", open_daemon.url)
    assert run("add", HOSTILE, *url) == "added 1\n"
    assert run("add", "-", *url, "--json", stdin="\ufefftwo\n\n") == '{"id": 2}\n'
    assert run("update", "2", "-", *url, stdin="zwei") == "updated 2\n"
    assert run("list", *url) == "1  a\\x1b[31m\\x09b\\x0a\\u202ec ü\n2  zwei\n"
    listed = run("list", *url, "--json")
    assert listed.isascii()
    assert [json.loads(line) for line in listed.splitlines()] == [{"id": 1, "post": HOSTILE}, {"id": 2, "post": "zwei"}]
    assert run("delete", "1", *url) == "deleted 1\n"
    assert run("delete", "1", *url, status=1) == "postd: 404 Not Found: There is no post 1.\n"


def test_list_reports_connection_and_file_errors(open_daemon: Daemon, tmp_path: Path) -> None:
    assert "refused" in run("list", "--url", "http://127.0.0.1:1", status=1)
    line = run("list", "--url", open_daemon.url, "--bearer-file", str(tmp_path / "missing"), status=1)
    assert line == f"postd: {tmp_path}/missing: cannot be read: No such file or directory\n"


def test_commands_sign_in_with_each_scheme(tmp_path: Path) -> None:
    with Issuer(AUDIENCE, Key.make("ES256")) as issuer:
        issue_tokens(issuer)
        write_users(tmp_path, alice=PASSWORD)
        (tmp_path / "postd.toml").write_text(
            f"""
            users = "users"
            api = {{read = ["open"], write = ["basic", "digest", "session", "bearer"]}}
            {bearer_table(issuer)}
            """
        )
        token, secret = tmp_path / "token", tmp_path / "secret"
        token.write_text(issuer.token())
        secret.write_text("s3cret\n")
        with Daemon(tmp_path, "-c", "postd.toml") as daemon:
            url = ("--url", daemon.url)
            with terminal(tmp_path, "add", "typed", *url, "--basic", "alice") as screen:
                screen.read_until("Password for alice: ")
                screen.type(f"{PASSWORD}\n")
                assert screen.end() == 0
                assert screen.shown == "Password for alice: \nadded 1\n"
            for number, scheme in enumerate(("--digest", "--login"), 2):
                added = run("add", "-", *url, scheme, "alice", "--password-stdin", stdin=f"{PASSWORD}\ntext\n")
                assert added == f"added {number}\n"
            assert run("add", "x", *url, "--bearer-file", str(token)) == "added 4\n"
            credentials = (
                "--client-credentials",
                issuer.issuer,
                "--client-id",
                "us",
                "--client-secret-file",
                str(secret),
            )
            assert run("add", "x", *url, *credentials, "--scope", "a b") == "added 5\n"
            assert issuer.asked[-1].form["scope"] == "a b"
            wrong = ("--password-stdin",)
            assert "401" in run("add", "x", *url, "--digest", "alice", *wrong, stdin="wrong\n", status=1)
            assert "wrong" in run("add", "x", *url, "--login", "alice", *wrong, stdin="wrong\n", status=1)
            assert run("session", "list", "-s", f"sqlite:{tmp_path}/postd.db") == "no sessions\n"
            assert PASSWORD not in daemon.log


@ensureDeferred
async def test_commands_prove_that_they_have_the_key_of_their_token(tmp_path: Path) -> None:
    key, token, secret = tmp_path / "key.pem", tmp_path / "token", tmp_path / "secret"
    thumbprint = run("dpop-key", str(key)).strip()
    token.write_text("of-a-file\n")
    secret.write_text("s3cret\n")
    issuer, shown = ProvenIssuer(), []

    def handler(request: Request) -> bytes:
        proof = read_proof(request.fields["dpop"])
        assert (proof.thumbprint, proof.claims["htm"]) == (thumbprint, request.method)
        shown.append((request.authorization, proof.claims["htu"], proof.claims.get("nonce")))
        if "nonce" not in proof.claims:
            return problem(401, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce="n1")
        assert proof.claims["ath"] == token_hash(request.authorization.removeprefix("DPoP "))
        return make_response(201, Location="/post/7")

    async with serving(issuer) as issuing, serving(handler) as server:
        issuer.url = issuing.url
        command = ("add", "x", "--url", server.url, "--dpop-key", str(key))
        assert await deferToThread(run, *command, "--bearer-file", str(token)) == "added 7\n"
        names = ("--client-id", "us", "--client-secret-file", str(secret))
        assert await deferToThread(run, *command, "--client-credentials", issuer.url, *names) == "added 7\n"
    assert shown == [
        (f"DPoP {one}", f"{server.url}/post", nonce) for one in ("of-a-file", "t1") for nonce in (None, "n1")
    ]


@pytest.mark.slow
def test_watch_continues_after_a_restart(tmp_path: Path) -> None:
    listen = f"tcp:{free_port()}:interface=127.0.0.1"
    with Daemon(tmp_path, listen=listen) as daemon:
        watching = Watching(tmp_path, "--url", daemon.url)
        as_json = Watching(_folder(tmp_path / "json"), "--url", daemon.url, "--json")
        number = 0
        # A client that is connected already gets the first event.
        while "added" not in watching.out or "added" not in as_json.out:
            number += 1
            run("add", HOSTILE, "--url", daemon.url)
            time.sleep(0.3)
        last = f"added {number}  a\\x1b[31m\\x09b\\x0a\\u202ec ü\n"
        watching.wait_for(last)
    with Daemon(tmp_path, listen=listen) as daemon:
        run("update", "1", "after", "--url", daemon.url)
        watching.wait_for("updated 1")  # a replay leaves it out after the next change
        as_json.wait_for("updated")
        run("delete", "1", "--url", daemon.url)
        watching.wait_for("deleted 1\n")
        as_json.wait_for("deleted")
        events = [json.loads(line) for line in as_json.out.splitlines()]
        assert events[-2:] == [
            {"event": "updated", "revision": number + 1, "id": 1, "post": "after"},
            {"event": "deleted", "revision": number + 2, "id": 1},
        ]
        assert watching.out.endswith(f"{last}updated 1  after\ndeleted 1\n")
        assert "postd: the server has ended the stream; trying again in" in watching.err
        for one in (watching, as_json):
            assert one.interrupt() == 130
            assert one.err.endswith("postd: interrupted\n")
            assert "Traceback" not in one.err


@ensureDeferred
async def test_watch_prints_resets_and_reports_the_end() -> None:
    events = b'id: 4\n\nevent: reset\nid: 9\ndata: {}\n\nevent: added\nid: 10\ndata: {"id":3,"post":"a\\u0007b"}\n\n'
    answers: list[bytes | Disconnect] = [Disconnect(EVENT_STREAM + events), problem(401, "The session has ended.")]
    async with serving(lambda _: answers.pop(0)) as server:
        command = [POSTD, "watch", "--url", server.url]
        result = await deferToThread(forking.run, command)
    assert result.stdout.decode() == "reset\nadded 3  a\\x07b\n"
    first, second = result.stderr.decode().splitlines()
    assert first.startswith("postd: the connection was lost; trying again in ")
    assert second == "postd: 401 Some Title: The session has ended."
    assert result.returncode == 1


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_list_ends_quietly_when_its_pipe_closes(open_daemon: Daemon) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run("add", "x", "--url", open_daemon.url)
    process = subprocess.Popen([POSTD, "list", "--url", open_daemon.url], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert process.communicate(timeout=WAIT_MAX_S)[1] == b""
    assert process.returncode == 1

"""Passwords changed by their owners and by links, and removed users, on two workers with each kind of store."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from postd.auth.user_file import decode_users, make_account, set_account
from postd.protocol.password import verify_password
from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.forking import run
from tests.integration.logins import POSTD, run_postd_user, see_home, sign_in
from tests.integration.test_workers import clients_of_each
from tests.redis_server import RedisServer

FIRST = "correct horse"
ROUNDS = 2

SETTINGS = """
store = "{store}"
users = "users"
workers = 2
public_url = "http://127.0.0.1:1"
[accounts]
change_password = true
[[page]]
path = "/token"
schemes = ["token"]
"""


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with two workers."""
    folder = tmp_path_factory.mktemp("daemon")
    content = b""
    for name in ("alice", "bob", "carol", "dave", "frank"):
        content = set_account(content, make_account(name, FIRST, "postd"))
    (folder / "users").write_bytes(content)
    (folder / "users").chmod(0o600)
    with ExitStack() as stack:
        url = "sqlite:postd.db" if request.param == "sqlite" else stack.enter_context(RedisServer(folder)).url
        (folder / "postd.toml").write_text(SETTINGS.format(store=url))
        yield stack.enter_context(Daemon(folder, "-c", "postd.toml"))


def change(client: httpx.Client, session: str, present: str, new: str) -> httpx.Response:
    form = {"present": present, "new": new, "again": new}
    return client.post("/account/password", data=form, headers={"Cookie": f"session={session}"})


def password_of(daemon: Daemon, name: str, *known: str) -> str:
    account = decode_users((daemon.folder / "users").read_bytes(), "users")[name]
    return next(text for text in known if verify_password(account.password_hash, text))


def make_link(daemon: Daemon, name: str) -> str:
    """Run `postd user reset`; return the path of the link."""
    done = run([POSTD, "user", "reset", name, "-c", "postd.toml"], daemon.folder)
    assert (done.returncode, done.stderr) == (0, b"")
    link = done.stdout.decode()
    assert re.fullmatch(r"http://127\.0\.0\.1:1/login/reset\?secret=[A-Za-z0-9_-]{43}\n", link)
    return link.strip().removeprefix("http://127.0.0.1:1")


def test_new_password_is_in_force_on_all_workers_at_once(daemon: Daemon) -> None:
    session, present = sign_in(daemon, "alice", FIRST).cookies["session"], FIRST
    with clients_of_each(daemon) as clients:
        for number in range(ROUNDS):
            here, there = clients if number % 2 else clients[::-1]
            other = there.post("/login", data={"username": "alice", "password": present}).cookies["session"]
            new = f"password {number}"
            assert change(here, session, present, new).status_code == 303
            for client in (there, here):
                client.cookies.clear()
                assert client.get("/home", headers={"Cookie": f"session={session}"}).text == "Success: alice\n"
                assert client.get("/home", headers={"Cookie": f"session={other}"}).status_code == 302
                assert client.post("/login", data={"username": "alice", "password": present}).status_code == 401
                assert client.post("/login", data={"username": "alice", "password": new}).status_code == 302
                client.cookies.clear()
            present = new
    assert see_home(daemon, session).text == "Success: alice\n"


def test_concurrent_edits_lose_nothing(daemon: Daemon) -> None:
    sessions = {name: sign_in(daemon, name, FIRST).cookies["session"] for name in ("bob", "carol")}
    jobs = [("bob", f"password {number}") for number in range(4)] + [("carol", "password of carol")]

    def work(job: tuple[str, str]) -> int:
        with httpx.Client(base_url=daemon.url, timeout=PATIENCE_S) as client:
            return change(client, sessions[job[0]], FIRST, job[1]).status_code

    with ThreadPoolExecutor(len(jobs) + 1) as threads:
        adding = threads.submit(run_postd_user, daemon.folder / "users", "add", "erin", "password of erin")
        statuses = [*threads.map(work, jobs)]
        adding.result()
    # The winner's session stays; the others' forms came with a password that was no longer the present one.
    assert statuses.count(303) == 2
    assert statuses[-1] == 303
    assert set(statuses) <= {303, 401, 409}
    known = [FIRST, *(new for _, new in jobs), "password of erin"]
    found = [password_of(daemon, name, *known) for name in ("bob", "carol", "erin")]
    assert found == [jobs[statuses.index(303)][1], "password of carol", "password of erin"]


def test_link_works_once_on_all_workers(daemon: Daemon) -> None:
    session = sign_in(daemon, "dave", FIRST).cookies["session"]
    dead, path = make_link(daemon, "dave"), make_link(daemon, "dave")
    secret = path.partition("=")[2]
    forms = [{"secret": secret, "new": new, "again": new} for new in ("password 1", "password 2")]
    with clients_of_each(daemon) as clients, ThreadPoolExecutor(2) as threads:
        for client in clients:
            assert [client.get(path).status_code, client.get(dead).status_code] == [200, 400]
        asked = [
            threads.submit(client.post, "/login/reset", data=form) for client, form in zip(clients, forms, strict=True)
        ]
        statuses = [one.result().status_code for one in asked]
        assert sorted(statuses) == [200, 400]
        new = forms[statuses.index(200)]["new"]
        for client in clients:
            assert client.get(path).status_code == 400
            assert client.get("/home", headers={"Cookie": f"session={session}"}).status_code == 302
            assert client.post("/login", data={"username": "dave", "password": new}).status_code == 302
    assert password_of(daemon, "dave", FIRST, "password 1", "password 2") == new
    daemon.wait_for('"POST /login/reset HTTP/1.1" 200 ')
    assert secret not in daemon.log
    assert "password 1" not in daemon.log


def test_removed_user_has_nothing_left_on_each_worker(daemon: Daemon) -> None:
    session, link = sign_in(daemon, "frank", FIRST).cookies["session"], make_link(daemon, "frank")
    text = run([POSTD, "token", "add", "frank", "-c", "postd.toml"], daemon.folder).stdout.decode().strip()

    def list_frank() -> list[list[str]]:
        shown = run([POSTD, "account", "list", "-c", "postd.toml"], daemon.folder).stdout.decode()
        return [line.split()[1:-2] for line in shown.splitlines() if line.startswith("frank ")]

    def statuses(client: httpx.Client) -> list[int]:
        paths = "/home", "/token", link
        fields = {"Cookie": f"session={session}", "Authorization": f"Bearer {text}"}
        return [client.get(path, headers=fields).status_code for path in paths]

    with clients_of_each(daemon) as clients:
        assert [statuses(client) for client in clients] == [[200, 200, 200]] * 2
        assert list_frank() == [["password,", "Digest", "1", "0", "1"]]
        removed = run([POSTD, "user", "remove", "frank", "-c", "postd.toml"], daemon.folder)
        assert (removed.stdout, removed.stderr) == (b"frank: removed; 1 session and 1 token ended\n", b"")
        assert [statuses(client) for client in clients] == [[302, 401, 400]] * 2
    assert list_frank() == []

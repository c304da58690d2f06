"""Personal access tokens on the real process: two workers, the command that makes and revokes them, and clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_session import postd
from tests.helpers import wait_until
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user
from tests.integration.test_workers import TWO, clients_of_each

SETTINGS = """
users = "users"
[api]
read = ["token", "basic", "session"]
write = ["token", "basic"]
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "postd.toml").write_text(SETTINGS)
    for name in ("alice", "bob"):
        run_postd_user(folder / "users", "add", name, "secret")
    with Daemon(folder, "-c", "postd.toml", *TWO) as daemon:
        yield daemon


def token(daemon: Daemon, *arguments: str) -> str:
    status, shown, error = postd(daemon.folder, "token", *arguments, "-c", "postd.toml")
    assert status == 0, error
    return shown.strip()


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_revoked_token_is_refused_by_each_worker_at_once(daemon: Daemon) -> None:
    text = token(daemon, "add", "alice", "--access", "write")
    with clients_of_each(daemon) as clients:
        for client in clients:
            assert client.post("/post", json={"post": "one"}, headers=bearer(text)).status_code == 201
            assert client.get("/post", auth=("alice", text)).status_code == 200
        listed = token(daemon, "list", "--account", "alice")
        assert "last used 20" in listed
        token(daemon, "revoke", listed.split()[0])
        for client in clients:
            refused = client.get("/post", headers=bearer(text))
            assert (refused.status_code, 'error="invalid_token"' in refused.headers["WWW-Authenticate"]) == (401, True)
    wait_until(lambda: daemon.log.count("scheme=token") == 6, lambda: daemon.log)
    assert daemon.log.count("login refused: token - from 127.0.0.1: it is unknown, or was revoked") == 2
    assert text[6:] not in daemon.log


def test_tokens_of_a_removed_account_are_refused(daemon: Daemon) -> None:
    text = token(daemon, "add", "bob")
    users = daemon.folder / "users"
    with clients_of_each(daemon) as clients:
        run_postd_user(users, "passwd", "bob", "other")
        for client in clients:
            assert client.get("/post", headers=bearer(text)).status_code == 200
        run_postd_user(users, "remove", "bob")
        for client in clients:
            wait_until(lambda: client.get("/post", headers=bearer(text)).status_code == 401)  # noqa: B023
        run_postd_user(users, "add", "bob", "other")
        fresh = token(daemon, "add", "bob")
        for client in clients:
            wait_until(lambda: client.get("/post", headers=bearer(fresh)).status_code == 200)  # noqa: B023
            assert client.get("/post", headers=bearer(text)).status_code == 401


def test_client_sends_a_token_from_a_file(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token(daemon, "add", "alice", "--access", "write") + "\n")
    for command in (["add", "by the client"], ["list"]):
        status, shown, error = postd(tmp_path, *command, "--url", daemon.url, "--bearer-file", "token")
        assert (status, error) == (0, "")
    assert "by the client" in shown

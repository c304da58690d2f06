"""`postd check`: its lines and its exit status."""

from datetime import timedelta
from pathlib import Path
from typing import cast

import bcrypt
import pytest
from click.testing import CliRunner
from twisted.internet import reactor

from postd.auth.user_file import make_account, set_account
from postd.cli.main import main
from postd.net.endpoints import NO_RESUMPTION
from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.helpers import locked, make_certificate
from tests.redis_server import RedisServer


@pytest.fixture
def folder(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(socket_folder)
    return socket_folder


def check(*arguments: str) -> tuple[int, list[str], str]:
    run = CliRunner().invoke(main, ["check", *arguments])
    return run.exit_code, run.stdout.splitlines(), run.stderr


def write_users(folder: Path, content: bytes, mode: int = 0o600) -> None:
    (folder / "users").write_bytes(content)
    (folder / "users").chmod(mode)


def alice(realm: str = "postd") -> bytes:
    return set_account(b"", make_account("alice", "secret", realm))


HOSTS = "hosts: ok, tcp:8080:interface=127.0.0.1 answers requests for localhost, *.localhost, loopback addresses"


def test_defaults_are_ok_and_create_nothing(folder: Path) -> None:
    assert check() == (
        0,
        [
            "settings: ok",
            "users: ok, none are set",
            f"store: ok, sqlite:{folder}/postd.db does not exist yet; the server creates it",
            HOSTS,
        ],
        "",
    )
    assert not list(folder.iterdir())


def test_empty_redis_is_ok(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        status, lines, error = check("--store", server.url)
    assert (status, error) == (0, "")
    assert lines[2] == f"store: ok, {server.url}/0: there is no postd store in this database; the server creates it"


def test_existing_store_and_users_are_ok(folder: Path) -> None:
    SqliteStore(str(folder / "postd.db"), reactor=cast(IReactor, reactor)).prepare()
    write_users(folder, alice())
    assert check("--users", "users") == (
        0,
        ["settings: ok", "users: ok, 1 user", f"store: ok, sqlite:{folder}/postd.db", HOSTS],
        "",
    )


def test_users_without_digest_or_with_weak_hash_are_named(folder: Path) -> None:
    weak = bcrypt.hashpw(b"secret", bcrypt.gensalt(5))
    write_users(folder, alice() + b"bob:" + weak + b"\n")
    status, lines, error = check("--users", "users")
    assert status == 1
    assert [line for line in lines if line.startswith("users: ")] == lines[1:3]
    assert "no Digest in the realm 'postd' for bob" in lines[1]
    assert "`postd user passwd NAME`" in lines[1]
    assert "the hash of bob is weak: " in lines[2]
    assert error == "postd: found 2 problems\n"


def test_h_a1_of_another_realm_does_not_count(folder: Path) -> None:
    write_users(folder, alice("elsewhere"))
    status, lines, _ = check("--users", "users")
    assert status == 1
    assert "no Digest in the realm 'postd' for alice" in lines[1]


def test_missing_h_a1_is_ok_without_a_digest_rule(folder: Path) -> None:
    write_users(folder, b"bob:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(10)) + b"\n")
    (folder / "postd.toml").write_text('users = "users"\n[[page]]\npath = "/a"\nschemes = ["basic"]\n')
    assert check("-c", "postd.toml")[0] == 0


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: None, "the user file does not exist yet: no user can sign in"),
        (lambda folder: write_users(folder, b"# empty\n"), "has no users: no user can sign in"),
        (lambda folder: write_users(folder, b"alice:plain\n"), "users: line 1: "),
        (lambda folder: write_users(folder, alice(), 0o644), "has mode 0644"),
        (lambda folder: (folder / "users").mkdir(), "users: "),
    ],
)
def test_bad_user_file_is_reported(folder: Path, prepare: object, words: str) -> None:
    assert callable(prepare)
    prepare(folder)
    status, lines, error = check("--users", "users")
    assert (status, error) == (1, "postd: found 1 problem\n")
    assert words in lines[1]


def test_rules_without_user_file_are_reported(folder: Path) -> None:
    (folder / "postd.toml").write_text('[api]\nwrite = ["basic"]\n')
    status, lines, _ = check("-c", "postd.toml")
    assert status == 1
    assert lines[1] == "users: users is not set: no password is accepted for write"


def test_invalid_settings_are_reported(folder: Path) -> None:
    (folder / "postd.toml").write_text('[[page]]\npath = "/a"\nschemes = ["basic"]\nfiles = "www"')
    status, lines, _ = check("-c", "postd.toml")
    assert status == 1
    assert lines[0] == f"settings: postd.toml: page[0].files: {folder}/www: the folder does not exist"
    (folder / "postd.toml").write_text("realms = 1")
    status, lines, error = check("-c", "postd.toml")
    assert (status, lines) == (1, [])
    assert error.startswith("postd: postd.toml: realms: unknown key (did you mean 'realm'?)")


def test_certificates_are_reported_by_the_share_of_their_lifetime(folder: Path) -> None:
    for number, (hours, good, words) in enumerate(
        ((10_000, True, "valid until 2"), (10, True, "is due for renewal"), (1, False, "expires soon"))
    ):
        key, cert = make_certificate(folder / str(number), ends_in=timedelta(hours=hours))
        listen = f"ssl:8443:interface=127.0.0.1:privateKey={key}:certKey={cert}"
        (folder / "postd.toml").write_text(f'listen = ["{listen}"]')
        status, lines, _ = check("-c", "postd.toml")
        (line,) = [line for line in lines if line.startswith("certificate: ")]
        assert (status, line.startswith("certificate: ok, ssl:8443")) == (1 - good, good)
        assert words in line


def test_certificate_without_resumption_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, cert = make_certificate(folder)
    (folder / "postd.toml").write_text(f'listen = ["ssl:8443:interface=127.0.0.1:privateKey={key}:certKey={cert}"]')
    line = f"certificate: ok, {NO_RESUMPTION}"
    assert line not in check("-c", "postd.toml")[1]
    monkeypatch.setattr("postd.net.tls.can_set_ticket_keys", lambda _: False)
    status, lines, _ = check("-c", "postd.toml")
    assert (status, line in lines) == (0, True)


def test_unusable_listeners_are_reported(folder: Path) -> None:
    for listen, more, words in (
        ("bogus", "", "'bogus' is not an endpoint such as"),
        ("tls:certificates:443", "", "'tls:certificates:443' is not an endpoint such as"),
        ("ssl:443:privateKey=none.pem:certKey=none.pem", "", "none.pem: No such file or directory"),
        ("tcp:8080", "", "tcp:8080: writes are open to other machines"),
        ("tcp6:8080:interface=\\\\:\\\\:", "", "writes are open to other machines"),
        ("haproxy:tcp:80", 'users = "u"\ninsecure = ["open-writes"]\n', "passwords would be sent in clear text"),
        (
            "unix:a.sock:mode=666",
            'trusted_proxies = ["unix"]\n',
            "a.sock:mode=666: every user of this machine can connect",
        ),
        ("haproxy:unix:a.sock:mode=606", "", "every user of this machine can connect to this socket"),
    ):
        (folder / "postd.toml").write_text(f'listen = ["{listen}"]\n{more}')
        status, lines, _ = check("-c", "postd.toml")
        assert status == 1
        assert lines[0].startswith("settings: postd.toml: listen: ")
        assert words in lines[0]
    (folder / "postd.toml").write_text('listen = ["tcp:1"]\n[admin]\nlisten = ["tcp:1"]')
    assert check("-c", "postd.toml")[2] == "postd: postd.toml: admin.listen[0]: tcp:1 occurs twice\n"
    for key in ("file", "access_file"):
        (folder / "postd.toml").write_text(f'[log]\n{key} = "nowhere/log"')
        words = f"postd.toml: log.{key}: {folder}/nowhere/log: its folder does not exist"
        assert check("-c", "postd.toml")[1][0] == f"settings: {words}"
    for listen in (
        "tcp:8080:interface=127.0.0.1",
        "tcp6:1:interface=\\\\:\\\\:1",
        "unix:a.sock",
        "unix:a.sock:mode=666",
        "systemd:domain=INET:index=0",
    ):
        (folder / "postd.toml").write_text(f'listen = ["{listen}"]')
        assert check("-c", "postd.toml")[1][0] == "settings: ok"


def test_hosts_of_each_listener_are_shown(folder: Path) -> None:
    local = "localhost, *.localhost, loopback addresses"
    loopback = "tcp:1:interface=127.0.0.1"
    endpoints = [loopback, "unix:a.sock", "haproxy:tcp:2:interface=127.0.0.1", "systemd:domain=INET:index=0"]
    endpoints.append("systemd:domain=UNIX:name=http")
    listen = f'listen = {endpoints}\n[admin]\nlisten = ["tcp:3:interface=127.0.0.1"]\n'

    def hosts_lines(settings: str) -> list[str]:
        (folder / "postd.toml").write_text(settings + listen)
        status, lines, _ = check("-c", "postd.toml")
        assert status == 0
        return [line.partition(" answers requests for ")[2] for line in lines if line.startswith("hosts: ok, ")]

    on_loopback = f"if its socket is on loopback, only for {local}"
    assert hosts_lines("") == [local, "any host", "any host", f"any host; {on_loopback}", "any host", local]
    assert hosts_lines('hosts = ["*"]\n') == ["any host"] * 6
    listed = hosts_lines('hosts = ["Posts.Example", "::1"]\npublic_url = "https://public.example:8443"\n')
    assert listed == [*["posts.example, ::1, public.example"] * 5, f"{local}, posts.example, ::1, public.example"]
    proxied = hosts_lines('trusted_proxies = ["127.0.0.1"]\npublic_url = "https://posts.example"\n')
    assert proxied[0] == f"{local}, posts.example; for any host from trusted proxies"


def test_unusable_store_is_reported(folder: Path) -> None:
    for url, words in (
        ("memory:", "memory: exists only in the process of the server"),
        ("sqlite:missing/postd.db", "its folder is not writable"),
        (f"sqlite:{folder}", "it is not a file"),
        ("mysql:x", "is not a store"),
    ):
        status, lines, _ = check("--store", url)
        assert status == 1
        assert lines[2].startswith("store: ")
        assert words in lines[2]
    path = folder / "postd.db"
    SqliteStore(str(path), reactor=cast(IReactor, reactor)).prepare()
    with locked(path, "EXCLUSIVE"):
        assert "locked" in check()[1][2]

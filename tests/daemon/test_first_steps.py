"""The address to open, and the command that adds an account."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import cast

import pytest
from twisted.internet import reactor
from twisted.internet.protocol import Factory

from postd.daemon.first_steps import address_to_open, no_accounts_notice
from postd.net import listening
from postd.reactor import IReactor
from postd.settings.loading import load_settings
from tests.cases import each
from tests.helpers import make_certificate, make_socket_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened(folder: Path, toml: str, listen: Sequence[str]) -> str | None:
    """Return the address to open, with PORT in place of the port of the listener."""
    (folder / "postd.toml").write_text(toml)
    settings = load_settings("postd.toml", {}, folder).settings
    listeners = listening.bind(listen, Factory(), where="listen", reactor=cast(IReactor, reactor))
    try:
        address = address_to_open(settings, listeners)
        ports = [str(getattr(listener.port.getHost(), "port", "")) for listener in listeners]
    finally:
        listening.unbind(listeners)
    for port in filter(None, ports):
        address = address and address.replace(f":{port}/", ":PORT/")
    return address


LOOPBACK = "tcp:0:interface=127.0.0.1"


@each(
    "toml, listen, address",
    [
        ("", [LOOPBACK], "http://127.0.0.1:PORT/board"),
        ("", [r"tcp6:0:interface=\:\:1"], "http://[::1]:PORT/board"),
        ("", ["tcp:0"], "http://localhost:PORT/board"),
        ("", ["tcp6:0"], "http://localhost:PORT/board"),
        ("[board]\nenabled = false", [LOOPBACK], "http://127.0.0.1:PORT/"),
        ('public_url = "https://posts.example"', [LOOPBACK], "https://posts.example/board"),
        ('public_url = "https://posts.example"\n[board]\nenabled = false', [LOOPBACK], "https://posts.example/"),
        ('hosts = ["posts.example", "127.0.0.1"]', [LOOPBACK], "http://127.0.0.1:PORT/board"),
        ('hosts = ["posts.example"]', [LOOPBACK], "http://posts.example:PORT/board"),
        ('hosts = ["::1"]', [LOOPBACK], "http://[::1]:PORT/board"),
        ('hosts = ["*"]', ["tcp:0"], "http://localhost:PORT/board"),
        ("", [f"haproxy:{LOOPBACK}", LOOPBACK], "http://127.0.0.1:PORT/board"),
        ("", [f"haproxy:{LOOPBACK}"], None),
    ],
)
def test_address_is_the_one_that_a_browser_can_open(
    folder: Path, toml: str, listen: Sequence[str], address: str | None
) -> None:
    assert opened(folder, toml, listen) == address


def test_tls_listener_has_https(folder: Path) -> None:
    key, certificate = make_certificate(folder)
    endpoint = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={certificate}"
    assert opened(folder, "", [endpoint, LOOPBACK]) == "https://127.0.0.1:PORT/board"


def test_unix_socket_is_not_opened_by_a_browser(folder: Path) -> None:
    with make_socket_folder() as sockets:
        endpoint = f"unix:{sockets}/p.sock"
        assert opened(folder, "", [endpoint]) is None
        assert opened(folder, "", [endpoint, LOOPBACK]) == "http://127.0.0.1:PORT/board"


@pytest.mark.parametrize(
    ("toml", "options"),
    [
        (None, {}),
        (None, {"users": "my users"}),
        ('users = "accounts"\nrealm = "a realm"', {}),
        ('realm = "a realm"', {}),
        ("", {"users": "accounts"}),
    ],
)
def test_command_adds_an_account_to_the_user_file_of_the_server(
    folder: Path, toml: str | None, options: dict[str, str]
) -> None:
    config = None
    if toml is not None:
        (folder / "etc").mkdir()
        (folder / "etc" / "postd.toml").write_text(toml)
        config = "etc/postd.toml"
    loaded = load_settings(config, options, folder)
    here, elsewhere = no_accounts_notice(loaded)
    assert elsewhere == "<p>There are no accounts yet, so no password is accepted.</p>\n"
    command, *restart = [unescape(part.partition("</code>")[0]) for part in here.split("<code>")[1:]]
    words = shlex.split(command)
    assert Path(words[0]).name == "postd"
    program = str(Path(sys.executable).with_name("postd"))
    subprocess.run(
        [program, *words[1:], "--password-stdin"], input=b"correct horse\n", capture_output=True, check=True, cwd=folder
    )
    if loaded.settings.users:
        assert restart == []
    else:
        loaded = load_settings(config, {"users": restart[0].removeprefix("-u ")}, folder)
    assert Path(loaded.settings.users).read_text().startswith("alice:$argon2id$")
    assert f"realm={loaded.settings.realm}\n" in Path(loaded.settings.users).read_text()

"""Texts for the first minute: the address to open, and the command that adds an account."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from postd.net.listening import Listener
from postd.protect.schemes.interface import SAMPLE_USER
from postd.protocol.host import normalize_host
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Settings

_NEW_FILE = "users"
"""The name of a user file, where the settings name none."""


def address_to_open(settings: Settings, listeners: Iterable[Listener]) -> str | None:
    """Return the URL of the first page for a browser, None if no browser can connect.

    It is `public_url`, or the first listener as bound: with a name if it is bound to all addresses, or if the settings
    allow only named hosts. Browsers cannot connect to UNIX sockets and `haproxy:` listeners.
    """
    page = "/board" if settings.board.enabled else "/"
    if settings.public_url:
        return settings.public_url + page
    url = next(filter(None, (listener.url_for_browsers for listener in listeners)), None)
    if url is None:
        return None
    parts = urlsplit(url)
    host = normalize_host(parts.netloc)
    host = "localhost" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - it is compared
    if settings.hosts and "*" not in settings.hosts and host not in settings.hosts:
        host = settings.hosts[0]
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}{page}"


def no_accounts_notice(loaded: LoadedSettings) -> tuple[str, str]:
    """Return the HTML that says how to add an account, for clients on this machine, and for all others.

    The command has paths of this machine, which other clients do not get.
    """
    options, restart = [*loaded.options], ""
    if not loaded.settings.users:
        options += ["-u", _NEW_FILE]
        restart = f"<p>Then stop the server, and start it with <code>-u {_NEW_FILE}</code> in addition.</p>\n"
    command = shlex.join([_program(), "user", "add", SAMPLE_USER, *options])
    none = "There are no accounts yet, so no password is accepted."
    how = f"<p>{none} This command adds one:</p>\n<pre><code>{escape(command)}</code></pre>\n{restart}"
    return how, f"<p>{none}</p>\n"


def _program() -> str:
    """Return the command `postd` of this installation, by its name alone if a shell finds it."""
    program = Path(sys.executable).with_name("postd")
    found = shutil.which("postd")
    if not program.exists() or (found is not None and program.samefile(found)):
        return "postd"
    below = os.path.relpath(program)
    return str(program) if below.startswith(os.pardir) else below

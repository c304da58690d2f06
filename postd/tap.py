"""`twistd postd`: its options, and the way from them to the service."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from twisted.application.service import IService
from twisted.python import usage

from postd import __version__
from postd.config import load_settings
from postd.errors import ConfigError
from postd.reactor import IReactor


class Options(usage.Options):
    """What may follow `twistd postd`; an option wins over the settings file."""

    synopsis = "[options]"
    longdesc = (
        "Keeps short text posts behind a JSON API. With no options at all it serves on http://127.0.0.1:8080/ and "
        "keeps the posts in postd.db in the current folder."
    )
    optParameters = [  # noqa: RUF012 - Twisted's way
        ["config", "c", None, "TOML file with the settings; an option given here wins over it."],
        [
            "store",
            "s",
            None,
            "Where posts are kept: sqlite:PATH, redis://HOST, memory: for a while … [default: sqlite:postd.db]",
        ],
        ["users", "u", None, "The user file, which `postd user` keeps. [default: none]"],
        ["workers", "w", None, "Worker processes that share the listening sockets; 0: one a core. [default: 1]"],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.listen: list[str] = []

    def opt_listen(self, endpoint: str) -> None:
        """Twisted server endpoint to listen on; repeatable. [default: tcp:8080:interface=127.0.0.1]"""
        self.listen.append(endpoint)

    opt_l = opt_listen

    def opt_version(self) -> None:
        """Display the version of postd and exit."""
        sys.stdout.write(f"postd {__version__}\n")
        raise SystemExit(0)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        # Stock twistd prints the whole help on stdout for a mistyped option.
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            raise _refusal(f"{error} (twistd postd --help shows the options)") from None


def makeService(options: Options) -> IService:
    """Make the service from parsed options; ends the process with one line if they cannot be used."""
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    from postd.service import make_service  # noqa: PLC0415 - imports Klein, which imports the reactor

    given: dict[str, object] = {"listen": options.listen} if options.listen else {}
    given |= {name: options[name] for name in ("store", "users", "workers") if options[name] is not None}
    try:
        loaded = load_settings(options["config"], given, Path.cwd())
        return make_service(loaded, reactor=cast("IReactor", reactor))
    except ConfigError as error:
        raise _refusal(str(error)) from None


def _refusal(why: str) -> SystemExit:
    """An end with status 1 and one line on stderr."""
    return SystemExit("postd: " + " ".join(why.split()))

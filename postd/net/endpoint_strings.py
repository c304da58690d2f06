"""Twisted's server endpoint strings as text: kinds, options, addresses and paths.

A colon ends an argument, an equals sign ends its name, a backslash escapes. Settings use this module, so it does not
import Twisted.
"""

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from postd.protocol.host import check_origin, is_loopback

KINDS = ("tcp", "tcp6", "ssl", "tls", "unix", "systemd", "haproxy")
"""The kinds of Twisted's endpoints that a server accepts."""

ALLOWED = f"an endpoint such as tcp:8080:interface=127.0.0.1; kinds: {', '.join(KINDS)}"
"""The allowed endpoints, for error messages."""

UNIX_MODE = "660"
"""The mode of a UNIX socket whose endpoint has no `mode=`, octal: for the daemon's user and group."""


def is_loopback_only(description: str) -> bool | None:
    """Predict `Listener.loopback_only` of an endpoint before it is bound; None for a port of systemd."""
    if is_proxied(description) or kinds_of(description)[-1] == "unix" or "domain=UNIX" in _split(description, ":"):
        return False
    return None if is_systemd(description) else names_loopback(description)


def names_loopback(description: str) -> bool:
    """Return whether the endpoint's `interface=` is a loopback address or `localhost`."""
    named = re.search(r":interface=((?:\\.|[^:\\])*)", description)
    return named is not None and is_loopback(re.sub(r"\\(.)", r"\1", named[1]))


def makes_world_writable_socket(description: str) -> bool:
    """Return whether a valid endpoint makes a UNIX socket that every user of this machine can connect to."""
    kinds = kinds_of(description)
    mode = unix_mode(description.removeprefix("haproxy:" * (len(kinds) - 1))) if kinds[-1] == "unix" else None
    return mode is not None and bool(int(mode, 8) & stat.S_IWOTH)


def origin_for_browsers(description: str) -> str | None:
    """Predict the origin of a valid endpoint in a browser on this machine; None if there is none, or it is not known.

    It is not known for a port of systemd and for a free port.
    """
    kind, *arguments = _split(description, ":")
    if kind not in {"tcp", "tcp6", "ssl", "tls"}:
        return None
    options = dict(_split(argument, "=") for argument in arguments if len(_split(argument, "=")) == 2)
    port = options.get("port") or next(filter(str.isdecimal, arguments), "0")
    host = re.sub(r"\\(.)", r"\1", options.get("interface", ""))
    if int(port) == 0:
        return None
    shown = "localhost" if host in {"", "0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104 - compared
    return check_origin(f"{'https' if has_tls(description) else 'http'}://{shown}:{int(port)}")


def is_systemd(description: str) -> bool:
    """Return whether the socket is bound and owned by systemd (socket activation)."""
    return kinds_of(description)[-1] == "systemd"


def has_tls(description: str) -> bool:
    """Return whether the endpoint's connections have TLS."""
    return kinds_of(description)[-1] in {"ssl", "tls"}


def is_proxied(description: str) -> bool:
    """Return whether connections begin with a PROXY header."""
    return kinds_of(description)[0] == "haproxy"


def kinds_of(description: str) -> list[str]:
    """Return the kinds of an endpoint, outermost first: `haproxy:tcp:80` is haproxy, then tcp."""
    kind, _, rest = description.partition(":")
    return [kind, *kinds_of(rest)] if kind == "haproxy" else [kind]


def unix_mode(description: str) -> str | None:
    """Return the `mode=` of a `unix:` endpoint, None if it has none."""
    options = dict(_split(argument, "=") for argument in _split(description, ":") if argument.startswith("mode="))
    return options.get("mode")


_PATHS: Mapping[str, Sequence[str]] = {
    "unix": ("address",),
    "ssl": ("privateKey", "certKey", "extraCertChain", "dhParameters"),
    "tls": ("path",),
}
"""The arguments that are paths, of each kind; the first argument of `unix` and `tls` may stand without its name."""


def absolute_endpoint(description: str, folder: Path) -> str:
    """Make the paths in an endpoint string absolute."""
    kind, *arguments = _split(description, ":")
    kind = kind.lower()
    if kind == "haproxy" and arguments:
        return "haproxy:" + absolute_endpoint(":".join(arguments), folder)
    return ":".join([kind, *_absolute_arguments(kind, arguments, folder)])


def _absolute_arguments(kind: str, arguments: Sequence[str], folder: Path) -> Iterator[str]:
    for position, argument in enumerate(arguments):
        name, *rest = _split(argument, "=")
        value = "=".join(rest)
        if not rest and position == 0 and kind in {"unix", "tls"}:
            name, value = _PATHS[kind][0], name
        if name in _PATHS.get(kind, ()) and value:
            escaped = re.sub(r"([\\:=])", r"\\\1", str(folder / re.sub(r"\\(.)", r"\1", value)))
            yield f"{name}={escaped}"
        else:
            yield argument


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators that no backslash escapes."""
    parts, escaped = [""], False
    for character in text:
        if character == separator and not escaped:
            parts.append("")
            continue
        parts[-1] += character
        escaped = character == "\\" and not escaped
    return parts

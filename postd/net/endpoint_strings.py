"""Twisted's server endpoint strings as text: kinds, options, addresses and paths.

A colon ends an argument, an equals sign ends its name, a backslash escapes. Settings use this module, so it does not
import Twisted.
"""

import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from postd.protocol.host import check_origin, is_loopback

KINDS = ("tcp", "tcp6", "ssl", "unix", "systemd", "haproxy")
"""The kinds of Twisted's endpoints that a server accepts."""

ALLOWED = f"an endpoint such as tcp:8080:interface=127.0.0.1; kinds: {', '.join(KINDS)}"
"""The allowed endpoints, for error messages."""

UNIX_MODE = "660"
"""The mode of a UNIX socket whose endpoint has no `mode=`, octal: for the daemon's user and group."""


def is_loopback_only(description: str) -> bool | None:
    """Predict `Listener.loopback_only` of an endpoint before it is bound; None for a port of systemd."""
    is_unix = kinds_of(description)[-1] == "unix" or arguments_of(description).get("domain") == "UNIX"
    if is_unix or is_proxied(description):
        return False
    return None if is_systemd(description) else names_loopback(description)


def names_loopback(description: str) -> bool:
    """Return whether the endpoint's `interface` is a loopback address or `localhost`."""
    return is_loopback(arguments_of(description).get("interface", ""))


def makes_world_writable_socket(description: str) -> bool:
    """Return whether a valid endpoint makes a UNIX socket that every user of this machine can connect to."""
    mode = arguments_of(description).get("mode", UNIX_MODE)
    return kinds_of(description)[-1] == "unix" and bool(int(mode, 8) & stat.S_IWOTH)


def origin_for_browsers(description: str) -> str | None:
    """Predict the origin of an endpoint in a browser on this machine; None if there is none, or it is not known.

    It is not known for a port of systemd and for a free port.
    """
    arguments = arguments_of(description)
    port, host = arguments.get("port", ""), arguments.get("interface", "")
    if is_proxied(description) or not port.isdecimal() or int(port) == 0:
        return None
    shown = "localhost" if host in {"", "0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104 - compared
    return check_origin(f"{'https' if has_tls(description) else 'http'}://{shown}:{int(port)}")


def is_systemd(description: str) -> bool:
    """Return whether the socket is bound and owned by systemd (socket activation)."""
    return kinds_of(description)[-1] == "systemd"


def has_tls(description: str) -> bool:
    """Return whether the endpoint's connections have TLS."""
    return kinds_of(description)[-1] == "ssl"


def is_proxied(description: str) -> bool:
    """Return whether connections begin with a PROXY header."""
    return kinds_of(description)[0] == "haproxy"


def kinds_of(description: str) -> list[str]:
    """Return the kinds of an endpoint, outermost first: `haproxy:tcp:80` is haproxy, then tcp."""
    kind, _, rest = description.partition(":")
    return [kind, *kinds_of(rest)] if kind == "haproxy" else [kind]


def arguments_of(description: str) -> Mapping[str, str]:
    """Return the values of an endpoint's arguments by their names, whether or not these are written."""
    kind, *arguments = _split(description, ":")
    if kind == "haproxy":
        return arguments_of(":".join(arguments))
    return {name: _unescape(value) for name, value in _named(kind, arguments)}


_ARGUMENTS: Mapping[str, Sequence[str]] = {
    "tcp": ("port", "interface", "backlog"),
    "tcp6": ("port", "backlog", "interface"),
    "unix": ("address", "mode", "backlog", "lockfile"),
    "ssl": ("port", "privateKey", "certKey", "sslmethod", "interface", "backlog", "extraCertChain", "dhParameters"),
    "systemd": ("domain", "index", "name"),
}
"""The arguments of each kind, in the order in which they may stand without their names."""

_PATHS = frozenset({"address", "privateKey", "certKey", "extraCertChain", "dhParameters"})
"""The arguments that are paths."""


def names_empty_path(description: str) -> bool:
    """Return whether a path in the endpoint is empty. Twisted accepts an empty socket, and leaves `.lock` behind."""
    kind, *arguments = _split(description, ":")
    return any(name in _PATHS and not value for name, value in _named(kind, arguments))


def absolute_endpoint(description: str, folder: Path) -> str:
    """Make the paths in an endpoint string absolute, and name them and all arguments but the first."""
    kind, *arguments = _split(description, ":")
    kind = kind.lower()
    if kind == "haproxy" and arguments:
        return "haproxy:" + absolute_endpoint(":".join(arguments), folder)
    return ":".join([kind, *_absolute_arguments(kind, arguments, folder)])


def split_tls_endpoint(description: str) -> tuple[str, Mapping[str, str]]:
    """Split an `ssl:` endpoint into the `tcp:` endpoint that it is without TLS, and its other arguments.

    Raises:
        ValueError: an argument is unknown, or given twice.
    """
    kind, *arguments = _split(description, ":")
    named = list(_named(kind, arguments))
    values = dict(named)
    if len(values) < len(named) or not values.keys() <= set(_ARGUMENTS["ssl"]):
        raise ValueError(description)
    below = [f"{name}={values.pop(name)}" for name in _ARGUMENTS["tcp"] if name in values]
    return ":".join(["tcp", *below]), {name: _unescape(value) for name, value in values.items()}


def _absolute_arguments(kind: str, arguments: Sequence[str], folder: Path) -> Iterator[str]:
    for position, (name, value) in enumerate(_named(kind, arguments)):
        if name in _PATHS and value:
            escaped = re.sub(r"([\\:=])", r"\\\1", str(folder / _unescape(value)))
            yield f"{name}={escaped}"
        else:
            yield f"{name}={value}" if name and position else arguments[position]


def _named(kind: str, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each argument; the name is "" if it has none, and there is none for its place."""
    names = iter(_ARGUMENTS.get(kind, ()))
    for argument in arguments:
        name, *rest = _split(argument, "=")
        yield (name, "=".join(rest)) if rest else (next(names, ""), name)


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value)


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

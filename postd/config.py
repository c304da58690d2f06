"""Settings: what may stand in the file and on the command line, and what it becomes.

Every value is decoded once, here, into frozen structs whose names carry the units. What cannot be used ends in a
`ConfigError`, one line that names the file, the key and what is allowed.
"""

import difflib
import re
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from postd.errors import ConfigError


class ByteCount(int):
    """A size, written `"16KiB"` or `"1MiB"`."""

    UNITS = types.MappingProxyType({"KiB": 1024, "MiB": 1024**2})
    WANTED = 'a size of at least one byte and at most 1024MiB, such as "16KiB" or "1MiB"'
    MIN, MAX = 1, 1024**3


class Seconds(float):
    """A duration, written `"500ms"`, `"10s"`, `"5m"`, `"12h"` or `"365d"`."""

    UNITS = types.MappingProxyType({"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400})
    WANTED = 'a duration of at least 1ms and at most 3650d, such as "500ms", "10s", "5m", "12h" or "365d"'
    MIN, MAX = 0.001, 3650 * 86400


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what one client may ask of the server."""

    max_body_bytes: ByteCount = field(default=ByteCount(16 * 1024), name="body")
    idle_s: Seconds = field(default=Seconds(60), name="idle_time")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings; paths in them are absolute."""

    listen: tuple[str, ...] = ("tcp:8080:interface=127.0.0.1",)
    store: str = "sqlite:postd.db"
    insecure: frozenset[Literal["open-writes"]] = frozenset()
    limits: Limits = field(default_factory=Limits)


class LoadedSettings(Struct, frozen=True):
    """Settings, and where each top-level key of them was given, for messages: `postd.toml: listen`, `--listen`."""

    settings: Settings
    where: Mapping[str, str]


def load_settings(path: str | None, options: Mapping[str, Any], folder: Path) -> LoadedSettings:
    """Read the settings file and put the command line's options over it.

    Args:
        path: the TOML file, None for none.
        options: settings given on the command line.
        folder: what relative paths in `options` and in the defaults are relative to. Those in the file are relative
            to the file's folder.

    Raises:
        ConfigError: the file cannot be read or holds something that cannot be used.
    """
    where = {key: f"{key} (default)" for key in Settings.__struct_fields__}
    values: dict[str, Any] = {"listen": list(Settings().listen), "store": Settings().store}
    values = _absolute(values, folder)
    if path is not None:
        if not path:
            raise ConfigError("--config", "is empty; give the path of a TOML file")
        file = folder / path
        found = _read_toml(file, path)
        _refuse_unknown(found, Settings, path)
        _convert(found, path)
        values |= _absolute(found, file.parent)
        where |= {key: f"{path}: {key}" for key in found}
    values |= _absolute(dict(options), folder)
    where |= {key: f"--{key}" for key in options}
    return LoadedSettings(_convert(values, "settings"), where)


_FILE_MAX_BYTES = 1024**2


def _read_toml(file: Path, name: str) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_MAX_BYTES + 1)
        if len(content) > _FILE_MAX_BYTES:
            raise ConfigError(name, "is no settings file: it has more than 1 MiB")
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(name, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(name, "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(name, f"is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(name, "is nested too deeply") from None


def _refuse_unknown(table: Mapping[str, Any], struct: type[Struct], name: str, path: str = "") -> None:
    """Refuse keys that we don't know, before their values are looked at."""
    fields = {info.encode_name: info for info in msgspec.structs.fields(struct)}
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            inside = f"in [{path.rstrip('.')}]" if path else "at the top level"
            raise ConfigError(f"{name}: {path}{key}", f"unknown key{meant}; allowed {inside}: {', '.join(fields)}")
        inner = fields[key].type
        if isinstance(inner, type) and issubclass(inner, Struct) and isinstance(value, dict):
            _refuse_unknown(value, inner, name, f"{path}{key}.")


def _convert(values: dict[str, Any], name: str) -> Settings:
    try:
        return msgspec.convert(values, Settings, dec_hook=_decode_unit)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$.")
        key = at.rstrip("`")
        wanted = _WANTED.get(key.partition("[")[0])
        raise ConfigError(f"{name}: {key}", f"{why}; allowed: {wanted}" if wanted else why) from None


def _decode_unit(kind: type, value: object) -> object:
    if not issubclass(kind, ByteCount | Seconds):
        raise TypeError(f"no setting has the type {kind}")
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([A-Za-z]+)", value) if isinstance(value, str) else None
    unit = kind.UNITS.get(match[2]) if match else None
    made = kind(float(match[1]) * unit) if match and unit else None
    if made is None or not kind.MIN <= made <= kind.MAX:
        raise ValueError(f"{value!r} is not {kind.WANTED}")
    return made


_WANTED = {
    "listen": 'a list of endpoints, such as ["tcp:8080:interface=127.0.0.1"]',
    "store": '"sqlite:PATH" or "memory:"',
    "insecure": 'a list that may have "open-writes" in it',
    "limits": "a table, [limits]",
}


def _absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the paths in store URLs and endpoint strings absolute."""
    made = dict(values)
    kind, _, path = str(values.get("store", "")).partition(":")
    if kind == "sqlite" and path not in {"", ":memory:"}:
        made["store"] = f"sqlite:{folder / path}"
    if "listen" in values:
        made["listen"] = [absolute_endpoint(description, folder) for description in values["listen"]]
    return made


_PATHS: Mapping[str, Sequence[str]] = {
    "unix": ("address",),
    "ssl": ("privateKey", "certKey", "extraCertChain", "dhParameters"),
    "tls": ("path",),
}
_FIRST_ARGUMENT = {"unix": "address", "tls": "path"}


def absolute_endpoint(description: str, folder: Path) -> str:
    r"""Make the paths in an endpoint string absolute.

    In Twisted's endpoint strings a colon ends an argument, an equals sign ends its name, a backslash quotes.
    """
    kind, *arguments = _split(description, ":")
    kind = kind.lower()
    if kind == "haproxy" and arguments:
        return "haproxy:" + absolute_endpoint(":".join(arguments), folder)
    return ":".join([kind, *_absolute_arguments(kind, arguments, folder)])


def _absolute_arguments(kind: str, arguments: Sequence[str], folder: Path) -> Iterator[str]:
    for position, argument in enumerate(arguments):
        name, *rest = _split(argument, "=")
        value = "=".join(rest)
        if not rest and position == 0 and kind in _FIRST_ARGUMENT:
            name, value = _FIRST_ARGUMENT[kind], name
        if name in _PATHS.get(kind, ()) and value:
            quoted = re.sub(r"([\\:=])", r"\\\1", str(folder / re.sub(r"\\(.)", r"\1", value)))
            yield f"{name}={quoted}"
        else:
            yield argument


def _split(text: str, separator: str) -> list[str]:
    """Split at the separators that no backslash quotes."""
    parts, quoted = [""], False
    for character in text:
        if character == separator and not quoted:
            parts.append("")
            continue
        parts[-1] += character
        quoted = character == "\\" and not quoted
    return parts

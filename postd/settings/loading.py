"""Load settings from the TOML file and the command line, and check them."""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from postd.errors import ConfigError
from postd.net.endpoint_strings import absolute_endpoint
from postd.protocol import sign_in
from postd.protocol.jwt import Algorithm, find_contradiction
from postd.scheme_names import SCHEMES
from postd.settings.schema import WORKERS_MAX, BearerSettings, Page, Settings, SignInSettings
from postd.settings.values import decode_value

StructT = TypeVar("StructT", bound=Struct)


class LoadedSettings(Struct, frozen=True):
    """Settings with their sources.

    Attributes:
        settings: the decoded settings.
        where: the source of each top-level key, for error messages: `postd.toml: listen`, `--listen`.
        values: the values before decoding, as in TOML, to send to another process as JSON.
        options: the options, as given, by which a command of `postd` gets the same settings file and user file.
    """

    settings: Settings
    where: Mapping[str, str]
    values: Mapping[str, Any]
    options: Sequence[str] = ()


def load_settings(path: str | None, options: Mapping[str, Any], folder: Path) -> LoadedSettings:
    """Read the settings file and override its settings with options of the command line.

    Args:
        path: the TOML file, None for none.
        options: settings from the command line.
        folder: the base of relative paths in `path` and `options`. Paths in the file, and the default of `store`, are
            relative to the file's folder; without a file to this one.

    Raises:
        ConfigError: the file cannot be read, or a setting is invalid.
    """
    where = {key: f"{key} (default)" for key in Settings.__struct_encode_fields__}
    values: dict[str, Any] = {"listen": list(Settings().listen), "store": Settings().store}
    if path is None:
        values = _make_absolute(values, folder)
    elif not path:
        raise ConfigError("--config", "is empty; give the path of a TOML file")
    else:
        file = folder / path
        found = _read_toml(file, path)
        refuse_unknown(found, Settings, path)
        _convert(found, path)
        values = _make_absolute(values | found, file.parent)
        where |= {key: f"{path}: {key}" for key in found}
    given = dict(options)
    if "workers" in given:
        written = given["workers"]
        if not re.fullmatch(r"[0-9]{1,9}", written, re.ASCII) or int(written) > WORKERS_MAX:
            raise ConfigError("--workers", f"{written!r} is not {ALLOWED['workers']}")
        given["workers"] = int(written)
    values |= _make_absolute(given, folder)
    where |= {key: f"--{key}" for key in options}
    repeated = [*(["-c", path] if path is not None else []), *(["-u", options["users"]] if "users" in options else [])]
    return settings_from(values, where, repeated)


def settings_from(values: Mapping[str, Any], where: Mapping[str, str], options: Sequence[str] = ()) -> LoadedSettings:
    """Return the settings of `LoadedSettings.values`, `where` and `options` that another process has sent."""
    return LoadedSettings(_convert(values, "settings"), where, values, options)


def keep_unreloadable(loaded: LoadedSettings, before: LoadedSettings) -> tuple[LoadedSettings, list[str]]:
    """Undo changes of settings that need a restart; return the settings for a reload, and the keys undone."""
    values, where, undone = dict(loaded.values), dict(loaded.where), list[str]()
    new, old = loaded.settings, before.settings
    for key in _RESTART_KEYS:
        if getattr(new, key) != getattr(old, key):
            undone.append("admin.listen" if key == "admin" else key)
            where[key] = before.where[key]
            values.pop(key, None)
            values |= {key: before.values[key]} if key in before.values else {}
    for key in _RESTART_KEYS_OF_LOG:
        if getattr(new.log, key) != getattr(old.log, key):
            undone.append(f"log.{key}")
            values["log"] = {**values.get("log", {}), key: getattr(old.log, key)}
    return settings_from(values, where, loaded.options), undone


def is_reloadable(name: str) -> bool:
    """Return whether a reload applies a change of a setting, named by table and key, such as `limits.body`."""
    table, _, key = name.rpartition(".")
    return (table or key) not in _RESTART_KEYS and not (table == "log" and key in _RESTART_KEYS_OF_LOG)


_RESTART_KEYS = ("listen", "store", "workers", "admin")
_RESTART_KEYS_OF_LOG = ("file", "format", "access_file")


def count_workers(loaded: LoadedSettings) -> int:
    """Return the number of worker processes.

    Raises:
        ConfigError: there are several, and they cannot share the store.
    """
    count = loaded.settings.workers or len(os.sched_getaffinity(0))
    if count > 1 and loaded.settings.store.startswith("memory:"):
        why = f"{count} workers cannot share the store memory:, which belongs to one process; allowed: 1"
        raise ConfigError(loaded.where["workers"], why)
    return count


def check_page_folders(loaded: LoadedSettings) -> None:
    """Check that the folders of pages exist.

    Raises:
        ConfigError: a folder does not exist.
    """
    for number, page in enumerate(loaded.settings.pages):
        if page.files and not Path(page.files).is_dir():
            raise ConfigError(f"{loaded.where['page']}[{number}].files", f"{page.files}: the folder does not exist")


def _make_absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return settings, as values of TOML, with all paths made absolute, also paths in store URLs and endpoints."""
    made = dict(values)
    if values.get("users"):
        made["users"] = str(folder / values["users"])
    endings = {"log": "file", "page": "files", "sign_in": "_file", **dict.fromkeys(SCHEMES, "_file")}
    made |= {name: _with_absolute_files(values[name], end, folder) for name, end in endings.items() if name in values}
    if isinstance(values.get("store"), str):
        made["store"] = _with_absolute_store(values["store"], folder)
    if "listen" in values:
        made["listen"] = [absolute_endpoint(endpoint, folder) for endpoint in values["listen"]]
    if values.get("admin", {}).get("listen"):
        listen = [absolute_endpoint(endpoint, folder) for endpoint in values["admin"]["listen"]]
        made["admin"] = {**values["admin"], "listen": listen}
    return made


def _with_absolute_files(table: Any, ending: str, folder: Path) -> Any:
    """Make the paths in a table, or in a list of tables, absolute: the values of keys that have the ending."""
    if isinstance(table, list):
        return [_with_absolute_files(entry, ending, folder) for entry in table]
    if not isinstance(table, dict):
        return table  # refused when it is decoded
    return {
        key: str(folder / value) if key.endswith(ending) and value and isinstance(value, str) else value
        for key, value in table.items()
    }


def _with_absolute_store(url: str, folder: Path) -> str:
    """Return a store URL with absolute paths; an invalid URL is returned unchanged, and refused when it is opened."""
    kind, _, path = url.partition(":")
    if kind == "sqlite":
        return url if path in {"", ":memory:"} else f"sqlite:{folder / path}"
    if not kind.startswith("redis"):
        return url
    place, question, query = url.partition("?")
    if kind == "redis+unix":
        place = re.sub(r"(?<=://)((?:[^/@]*@)?)(.+)", lambda found: found[1] + _joined(folder, found[2]), place)
    return place + question + re.sub(r"(?<=_file=)[^&]+", lambda found: _joined(folder, found[0]), query)


def _joined(folder: Path, path: str) -> str:
    """Join a folder and a percent-encoded path."""
    return quote(str(folder / unquote(path)))


_FILE_MAX_BYTES = 1024**2


def _read_toml(file: Path, name: str) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_MAX_BYTES + 1)
        if len(content) > _FILE_MAX_BYTES:
            raise ConfigError(name, "is larger than 1 MiB, the limit for a settings file")
        return tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(name, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(name, "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(name, f"is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(name, "is nested too deeply") from None


def refuse_unknown(table: Mapping[str, Any], struct: type[Struct], name: str, path: str = "") -> None:
    """Refuse unknown keys in a table and the tables in it, before any value is decoded.

    Args:
        table: values, as in TOML.
        struct: has the known keys.
        name: stands before a key in the error.
        path: the keys that lead to the table, each followed by a dot; `bearer[0].` for a table of a list.

    Raises:
        ConfigError: a key is unknown.
    """
    fields = {info.encode_name: info for info in msgspec.structs.fields(struct)}
    for key, value in table.items():
        if not path and key in SCHEMES and key not in fields:
            continue  # the table of a scheme, which decodes it (`decode_table`)
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            section = re.sub(r"\[[0-9]+\]", "", path).rstrip(".")
            inside = f"in [{section}]" if path else "at the top level"
            raise ConfigError(f"{name}: {path}{key}", f"unknown key{meant}; allowed {inside}: {', '.join(fields)}")
        for inner in (fields[key].type, *get_args(fields[key].type)):
            if isinstance(inner, type) and issubclass(inner, Struct):
                listed = value if isinstance(value, list) else [value]
                for number, one in enumerate(listed):
                    if isinstance(one, dict):
                        at = f"[{number}]" if listed is value else ""
                        refuse_unknown(one, inner, name, f"{path}{key}{at}.")


def decode_table(values: Mapping[str, Any], kind: type[StructT], name: str) -> StructT:
    """Return a table of the settings file as a struct of a kind; `name` stands before a key in errors.

    Raises:
        ConfigError: a value cannot be used.
    """
    try:
        return msgspec.convert(values, kind, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$.")
        key = at.rstrip("`")
        wanted = ALLOWED.get(re.sub(r"\[[0-9.]*\]", "", key)) if kind is Settings else None
        why = _in_words(why)
        raise ConfigError(f"{name}: {key}" if key else name, f"{why}; allowed: {wanted}" if wanted else why) from None


_TYPES = {
    "array": "a list",
    "bool": "a boolean",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "a string",
}
"""The types of msgspec's messages, as TOML's users name them."""


def _in_words(why: str) -> str:
    """Return a message of msgspec's, such as "Expected `int`, got `str`", in the words of TOML."""
    why = re.sub(r"^Object missing required field `(\w+)`", r"\1 is missing", why)
    why = re.sub(r"`([a-z| ]+)`", lambda found: " or ".join(_TYPES.get(s, s) for s in found[1].split(" | ")), why)
    return why.replace("Expected ", "expected ", 1)


def _convert(values: Mapping[str, Any], name: str) -> Settings:
    known = {key: value for key, value in values.items() if key in Settings.__struct_encode_fields__}
    settings = decode_table(known, Settings, name)
    for key, listed in (("api.cors_origins", settings.api.cors_origins), ("hosts", settings.hosts)):
        if "*" in listed and len(listed) > 1:
            raise ConfigError(f"{name}: {key}", f'"*" must be the only value; allowed: {ALLOWED[key]}')
    _refuse_same_listeners(settings, name)
    log = settings.log
    if log.file and log.access_file and Path(log.file) == Path(log.access_file):
        raise ConfigError(f"{name}: log.access_file", "is the file of log.file already; allowed: another path")
    for number, page in enumerate(settings.pages):
        key, why = _contradiction_of_page(page, settings, number)
        if why:
            raise ConfigError(f"{name}: page[{number}].{key}", why)
    for number, issuer in enumerate(settings.bearer):
        key, why = _contradiction(issuer, settings.bearer[:number])
        if why:
            raise ConfigError(f"{name}: bearer[{number}].{key}", why)
    for number, provider in enumerate(settings.sign_in):
        key, why = _contradiction_of_provider(provider, settings.sign_in[:number])
        if why:
            raise ConfigError(f"{name}: sign_in[{number}].{key}", why)
    return settings


def _refuse_same_listeners(settings: Settings, name: str) -> None:
    listening = set[str]()
    for key, descriptions in (("listen", settings.listen), ("admin.listen", settings.admin.listen)):
        for number, description in enumerate(descriptions):
            if description in listening and not _ANY_PORT.match(description):
                raise ConfigError(f"{name}: {key}[{number}]", f"{description} occurs twice")
            listening.add(description)


_ANY_PORT = re.compile(r"(?:haproxy:)*(?:tcp6?|ssl|tls):(?:port=)?0+(?::|$)")
"""Endpoints with port 0, each of which binds a port of its own."""


def _contradiction_of_page(page: Page, settings: Settings, number: int) -> tuple[str, str]:
    """Return the key of a page that contradicts other keys, and why; both empty if none does."""
    if any(page.path == other.path for other in settings.pages[:number]):
        return "path", f"{page.path} is the path of another page already"
    if page.forward and page.files:
        return "files", "a page with forward = true serves no files; leave out one of the two"
    if page.forward and not settings.trusted_proxies:
        return "forward", 'needs trusted_proxies: addresses or networks of the proxies that may ask, or "unix"'
    if settings.needs_named_host(page) and not settings.named_hosts:
        return "forward", (
            "before an issuer that accepts DPoP, a page needs the hosts that proofs may be for: name them in hosts, or "
            "set public_url"
        )
    return "", ""


def _contradiction(issuer: BearerSettings, others: Sequence[BearerSettings]) -> tuple[str, str]:
    """Return the key of an issuer's settings that contradicts another, and why; empty strings if none does."""
    if any(issuer.issuer == other.issuer for other in others):
        return "issuer", f"{issuer.issuer} has a table already; audience may be a list"
    return find_contradiction(
        audiences=issuer.audiences,
        required_claims=issuer.required_claims,
        client_id=issuer.client_id,
        client_secret_file=issuer.client_secret_file,
        introspect=issuer.introspect,
        introspection_endpoint=issuer.introspection_endpoint,
    )


def _contradiction_of_provider(provider: SignInSettings, others: Sequence[SignInSettings]) -> tuple[str, str]:
    """Return the key of a provider's settings that contradicts another, and why; empty strings if none does."""
    if any(provider.id == other.id for other in others):
        return "id", f"{provider.id} is the id of another table already"
    return sign_in.find_contradiction(
        client_id=provider.client_id,
        client_secret_file=provider.client_secret_file,
        client_key_file=provider.client_key_file,
        client_auth=provider.client_auth,
        scopes=provider.scopes,
    )


_SCHEMES = ", ".join(f'"{scheme}"' for scheme in SCHEMES)


_TABLES = ("api", "board", "session", "accounts", "digest", "throttle", "limits", "tls", "admin", "log")
_COUNTS = (
    "session.max_per_account",
    "throttle.failures",
    "throttle.address_failures",
    "throttle.account_failures",
    "limits.connections",
)

ALLOWED = {
    **{name: f"a table, [{name}]" for name in _TABLES},
    **dict.fromkeys(_COUNTS, "a whole number from 1 to 1000000"),
    "listen": 'a list of endpoints, such as ["tcp:8080:interface=127.0.0.1"]',
    "store": "the URL of a store, such as sqlite:PATH or redis://HOST",
    "users": "the path of a user file",
    "workers": f"a whole number from 0 to {WORKERS_MAX}; 0 is one a core",
    "insecure": 'a list that may have "open-writes" and "plaintext-passwords" in it',
    "trusted_proxies": 'a list of addresses and networks, and "unix"',
    "hosts": 'a list of host names and IP addresses, such as ["posts.example"], or ["*"] alone',
    **dict.fromkeys(("api.read", "api.write"), f'a list of one or more of "open", {_SCHEMES}'),
    "api.own": "true or false",
    "api.moderators": "a list of names",
    "api.show_authors": '"all" or "signed-in"',
    "api.cors_origins": 'a list of origins, such as ["https://app.example"], or ["*"] alone',
    "board.enabled": "true or false",
    "page": "tables, each under [[page]], with path and schemes",
    "page.schemes": f"a list of one or more of {_SCHEMES}",
    "page.files": "the path of a folder",
    "page.users": "a list of names",
    "page.forward": "true or false",
    "session.secure": '"auto", "always" or "never"',
    **dict.fromkeys(("accounts.change_password", "accounts.tokens", "accounts.passkeys"), "true or false"),
    "digest.algorithms": 'a list of "MD5" and "SHA-256", in the order of the challenges',
    "bearer": "tables, each under [[bearer]], with issuer and audience",
    "bearer.issuer": "the URL that the tokens have as iss, to the byte",
    "bearer.audience": 'a string, a list of strings, or "" together with required_claims',
    "bearer.algorithms": f"a list of one or more of {', '.join(get_args(Algorithm))}; none is symmetric",
    "bearer.token_types": 'a list of values of typ, such as ["at+jwt"]',
    "bearer.scope_claims": "a list of names of claims",
    "bearer.required_claims": 'a table of claims, each a value or a list of values, such as {azp = "my-client"}',
    **dict.fromkeys(("bearer.dpop", "bearer.mtls"), '"refuse", "accept" or "require"'),
    "bearer.id_tokens": '"refuse" or "accept"',
    "bearer.introspect": '"opaque" or "all"',
    "sign_in": "tables, each under [[sign_in]], with id, name, issuer and client_id",
    "sign_in.id": "lower-case letters, digits and hyphens",
    "sign_in.name": "the text on the button",
    "sign_in.issuer": "the URL that the tokens have as iss, to the byte",
    "sign_in.client_auth": ", ".join(f'"{method}"' for method in get_args(sign_in.ClientAuth)),
    "sign_in.scopes": 'a list of words, "openid" among them',
    "sign_in.algorithms": f"a list of one or more of {', '.join(get_args(Algorithm))}; none is symmetric",
    "sign_in.required_claims": 'a table of claims, each a value or a list of values, such as {groups = "staff"}',
    "sign_in.logout": '"local" or "provider"',
    "tls.client_certificates": '"no" or "ask"',
    "admin.listen": 'a list of endpoints, such as ["tcp:9180:interface=127.0.0.1"]',
    "log.file": 'the path of a file, or "": where twistd logs',
    "log.format": '"text" or "json"',
    "log.access": "true or false",
    "log.access_file": 'the path of a file, or "": the log itself',
}
"""The values of a setting in words, by table and key, for error messages and the reference of the settings."""

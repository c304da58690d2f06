"""Settings: what may stand in the file and on the command line, and what it becomes.

Every value is decoded once, here, into frozen structs whose names carry the units. What cannot be used ends in a
`ConfigError`, one line that names the file, the key and what is allowed.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta, Struct, field

from postd.errors import ConfigError
from postd.model import is_owner
from postd.protocol import jwt
from postd.protocol.bearer import decode_scope
from postd.protocol.digest import check_realm
from postd.protocol.discovery import check_issuer, check_url
from postd.protocol.host import check_host
from postd.protocol.jwt import Algorithm, Scalar
from postd.protocol.password import normalize


class ByteCount(int):
    """A size, written `"16KiB"` or `"1MiB"`."""

    WANTED = 'a size of at least one byte and at most 1024MiB, such as "16KiB" or "1MiB"'

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(_decode_quantity(value, {"KiB": 1024, "MiB": 1024**2}, 1, 1024**3, cls.WANTED))


class Seconds(float):
    """A duration, written `"500ms"`, `"10s"`, `"5m"`, `"12h"` or `"365d"`."""

    __slots__ = ()
    LEAST = 0.001
    WANTED = 'a duration of at least 1ms and at most 3650d, such as "500ms", "10s", "5m", "12h" or "365d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
        return cls(_decode_quantity(value, units, cls.LEAST, 3650 * 86400, cls.WANTED))


class Leeway(Seconds):
    """A duration that may be none."""

    __slots__ = ()
    LEAST = 0.0
    WANTED = 'a duration of at most 3650d, such as "30s" or "0s"'


class MaxAge(str):
    """A duration in whole seconds as a header has it, written `"365d"`; or nothing."""

    __slots__ = ()
    WANTED = '"", or a duration of at most 3650d, such as "365d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        try:
            return cls(f"{Leeway.decode(value):.0f}" if value else "")
        except ValueError:
            raise ValueError(f"{value!r} is not {cls.WANTED}") from None


def _decode_quantity(value: str, units: Mapping[str, float], least: float, most: float, wanted: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([A-Za-z]+)", value)
    unit = units.get(match[2]) if match else None
    amount = float(match[1]) * unit if match and unit else None
    if amount is None or not least <= amount <= most:
        raise ValueError(f"{value!r} is not {wanted}")
    return amount


class Realm(str):
    """The text of a protection realm, which every client can quote (`postd.protocol.digest.check_realm`)."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(check_realm(value))


class TrustedProxy(str):
    """An address or a network in its normal form, or `"unix"`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        try:
            return cls(value if value == "unix" else ipaddress.ip_network(value))
        except ValueError:
            raise ValueError(f"{value!r} is neither an address or a network, such as 10.0.0.0/8, nor unix") from None


class Origin(str):
    """An origin as browsers write it, in lower case without a slash at its end (RFC 6454 §6.2), or nothing."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        origin = value.lower().removesuffix("/")
        if origin and not re.fullmatch(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", origin):
            raise ValueError(f"{value!r} is not an origin, such as https://posts.example")
        return cls(origin.removesuffix(":443") if origin.startswith("https:") else origin.removesuffix(":80"))


class CorsOrigin(Origin):
    """An origin whose pages may use the API, or `"*"`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        if not value:
            raise ValueError("'' is not an origin, such as https://app.example")
        return cls(value) if value == "*" else super().decode(value)


class HostName(str):
    """A host name or an address, normalized (`postd.protocol.host`), or `"*"`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(value if value == "*" else check_host(value))


class PagePath(str):
    """The path of a page: whole segments, none of them ours."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        segments = value.split("/")[1:]
        plain = re.fullmatch(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+", value) and not {".", ".."} & set(segments)
        if not plain:
            raise ValueError(f"{value!r} is not a path such as /reports: plain segments, each after a slash")
        if segments[0] in OUR_SEGMENTS:
            raise ValueError(f"{value!r} is taken: {', '.join(f'/{own}' for own in OUR_SEGMENTS)} are our own")
        return cls(value)


class IssuerUrl(str):
    """An issuer's identifier, as `iss` has it."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(check_issuer(value))


class AskedUrl(str):
    """The URL of something at an issuer, or nothing."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(check_url(value) if value else "")


class ScopeText(str):
    """Words of a scope, or none."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        decode_scope(value)
        return cls(value)


OUR_SEGMENTS = ("post", "login", "home", "logout", "board", "docs", "openapi.json", ".well-known")
"""What no page's path may begin with; some of it is served by later versions only."""

Scheme = Literal["basic", "digest", "session", "bearer"]
"""How a client may say who it is."""

Rule = Annotated[tuple[Literal["open"] | Scheme, ...], Meta(min_length=1)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what one client may ask of the server."""

    max_body_bytes: ByteCount = field(default=ByteCount(16 * 1024), name="body")
    header_s: Seconds = field(default=Seconds(10), name="header_time")
    body_s: Seconds = field(default=Seconds(30), name="body_time")
    idle_s: Seconds = field(default=Seconds(60), name="idle_time")
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000


class Log(Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: where events are written to, and how; `access` is a line a request."""

    file: str = ""
    format: Literal["text", "json"] = "text"
    access: bool = True


class Admin(Struct, frozen=True, forbid_unknown_fields=True):
    """`[admin]`: where `/healthz`, `/readyz` and `/metrics` are served."""

    listen: tuple[str, ...] = ()


class Api(Struct, frozen=True, forbid_unknown_fields=True):
    """`[api]`: who may use the post API."""

    read: Rule = ("open",)
    write: Rule = ("open",)
    cors_origins: tuple[CorsOrigin, ...] = ()


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[page]]`: a protected page or a folder of files; `users` are the only ones to enter, none: all."""

    path: PagePath
    schemes: Annotated[tuple[Scheme, ...], Meta(min_length=1)]
    files: str = ""
    users: tuple[str, ...] = ()

    @property
    def allowed(self) -> frozenset[str]:
        """`users` as they are compared: a name of the user file is normalized, what a token says is not."""
        return frozenset(name if is_owner(name) else normalize(name) for name in self.users)


class SessionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[session]`: how long a sign-in by form lasts, and where its cookie travels."""

    idle_s: Seconds = field(default=Seconds(30 * 60), name="idle")
    lifetime_s: Seconds = field(default=Seconds(12 * 3600), name="lifetime")
    secure: Literal["auto", "always", "never"] = "auto"


class DigestSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[digest]`: what a challenge offers, and how long it is good for."""

    algorithms: Annotated[tuple[Literal["MD5", "SHA-256"], ...], Meta(min_length=1)] = ("MD5",)
    nonce_lifetime_s: Seconds = field(default=Seconds(5 * 60), name="nonce_lifetime")


Word = Annotated[str, Meta(min_length=1)]


class BearerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[bearer]]`: an issuer of access tokens, and which of them are accepted (`postd.protocol.jwt.TokenPolicy`)."""

    issuer: IssuerUrl
    audience: str | Annotated[tuple[Word, ...], Meta(min_length=1)]
    jwks_uri: AskedUrl = AskedUrl("")
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = jwt.ALGORITHMS
    token_types: Annotated[tuple[Word, ...], Meta(min_length=1)] = jwt.TOKEN_TYPES
    scope_claims: tuple[Word, ...] = jwt.SCOPE_CLAIMS
    read_scope: ScopeText = ScopeText("")
    write_scope: ScopeText = ScopeText("")
    user_claim: Word = jwt.USER_CLAIM
    required_claims: dict[str, Scalar | Annotated[tuple[Scalar, ...], Meta(min_length=1)]] = {}
    leeway_s: Leeway = field(default=Leeway(jwt.LEEWAY_S), name="leeway")
    ca_file: str = ""
    introspection_endpoint: AskedUrl = AskedUrl("")
    client_id: str = ""
    client_secret_file: str = ""

    @property
    def audiences(self) -> tuple[str, ...]:
        if isinstance(self.audience, str):
            return (self.audience,) if self.audience else ()
        return self.audience

    @property
    def accepted_claims(self) -> dict[str, tuple[Scalar, ...]]:
        return {name: value if isinstance(value, tuple) else (value,) for name, value in self.required_claims.items()}


Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class ThrottleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[throttle]`: how many failed logins a window has room for."""

    failures: Count = 10
    address_failures: Count = 50
    account_failures: Count = 100
    window_s: Seconds = field(default=Seconds(5 * 60), name="window")


WORKERS_MAX = 1024


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings; paths in them are absolute."""

    listen: tuple[str, ...] = ("tcp:8080:interface=127.0.0.1",)
    store: str = "sqlite:postd.db"
    users: str = ""
    realm: Realm = Realm("postd")
    workers: Annotated[int, Meta(ge=0, le=WORKERS_MAX)] = 1
    insecure: frozenset[Literal["open-writes", "plaintext-passwords"]] = frozenset()
    trusted_proxies: tuple[TrustedProxy, ...] = ()
    public_url: Origin = Origin("")
    hosts: tuple[HostName, ...] = ()
    hsts_s: MaxAge = field(default=MaxAge(""), name="hsts")
    shutdown_grace_s: Seconds = field(default=Seconds(10), name="shutdown_grace")
    api: Api = field(default_factory=Api)
    pages: tuple[Page, ...] = field(
        default=(Page(PagePath("/basic"), ("basic",)), Page(PagePath("/digest"), ("digest",))), name="page"
    )
    session: SessionSettings = field(default_factory=SessionSettings)
    digest: DigestSettings = field(default_factory=DigestSettings)
    bearer: tuple[BearerSettings, ...] = ()
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    limits: Limits = field(default_factory=Limits)
    admin: Admin = field(default_factory=Admin)
    log: Log = field(default_factory=Log)


class LoadedSettings(Struct, frozen=True):
    """Settings, and where each top-level key of them was given, for messages: `postd.toml: listen`, `--listen`.

    `values` are what the settings were made from: plain values, which can go to another process.
    """

    settings: Settings
    where: Mapping[str, str]
    values: Mapping[str, Any]


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
    where = {key: f"{key} (default)" for key in Settings.__struct_encode_fields__}
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
    given = dict(options)
    if "workers" in given:
        given["workers"] = _decode_workers(given["workers"])
    values |= _absolute(given, folder)
    where |= {key: f"--{key}" for key in options}
    return settings_from(values, where)


def settings_from(values: Mapping[str, Any], where: Mapping[str, str]) -> LoadedSettings:
    """Return the settings that another process has loaded: what it has as `values` and `where`."""
    return LoadedSettings(_convert(dict(values), "settings"), where, values)


def keep_fixed(loaded: LoadedSettings, before: LoadedSettings) -> tuple[LoadedSettings, list[str]]:
    """Leave out of new settings what a server cannot change while it runs; return them, and the keys that were."""
    values, where, left = dict(loaded.values), dict(loaded.where), list[str]()
    new, old = loaded.settings, before.settings
    for key in _FIXED:
        if getattr(new, key) != getattr(old, key):
            left.append("admin.listen" if key == "admin" else key)
            where[key] = before.where[key]
            values.pop(key, None)
            values |= {key: before.values[key]} if key in before.values else {}
    for key in _FIXED_OF_LOG:
        if getattr(new.log, key) != getattr(old.log, key):
            left.append(f"log.{key}")
            values["log"] = {**values.get("log", {}), key: getattr(old.log, key)}
    return settings_from(values, where), left


_FIXED = ("listen", "store", "workers", "admin")
_FIXED_OF_LOG = ("file", "format")


def count_workers(loaded: LoadedSettings) -> int:
    """Return how many processes are to serve.

    Raises:
        ConfigError: they are more than one, and could not share the store.
    """
    count = loaded.settings.workers or len(os.sched_getaffinity(0))
    if count > 1 and loaded.settings.store.startswith("memory:"):
        why = f"{count} workers cannot share the store memory:, which lives in one process; allowed with it: 1"
        raise ConfigError(loaded.where["workers"], why)
    return count


def check_folders(loaded: LoadedSettings) -> None:
    """Make sure that the folders of pages are there.

    Raises:
        ConfigError: one of them is not.
    """
    for number, page in enumerate(loaded.settings.pages):
        if page.files and not Path(page.files).is_dir():
            raise ConfigError(f"{loaded.where['page']}[{number}].files", f"{page.files}: there is no such folder")


def _decode_workers(written: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", written, re.ASCII) or int(written) > WORKERS_MAX:
        raise ConfigError("--workers", f"{written!r} is not {_WANTED['workers']}")
    return int(written)


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
        for inner in (fields[key].type, *get_args(fields[key].type)):
            if isinstance(inner, type) and issubclass(inner, Struct):
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, dict):
                        _refuse_unknown(one, inner, name, f"{path}{key}.")


def _convert(values: dict[str, Any], name: str) -> Settings:
    try:
        settings = msgspec.convert(values, Settings, dec_hook=decode_text)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$.")
        key = at.rstrip("`")
        wanted = _WANTED.get(re.sub(r"\[[0-9.]*\]", "", key))
        raise ConfigError(f"{name}: {key}", f"{why}; allowed: {wanted}" if wanted else why) from None
    _refuse_beside_any(settings, name)
    listening = set[str]()
    for key, descriptions in (("listen", settings.listen), ("admin.listen", settings.admin.listen)):
        for number, description in enumerate(descriptions):
            if description in listening and not _ANY_PORT.match(description):
                raise ConfigError(f"{name}: {key}[{number}]", f"{description} is listened on already")
            listening.add(description)
    paths = [page.path for page in settings.pages]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise ConfigError(f"{name}: page[{number}].path", f"{path} is the path of another page already")
    for number, issuer in enumerate(settings.bearer):
        key, why = _contradiction(issuer, settings.bearer[:number])
        if why:
            raise ConfigError(f"{name}: bearer[{number}].{key}", why)
    return settings


def _refuse_beside_any(settings: Settings, name: str) -> None:
    for key, listed in (("api.cors_origins", settings.api.cors_origins), ("hosts", settings.hosts)):
        if "*" in listed and len(listed) > 1:
            raise ConfigError(f"{name}: {key}", f'"*" is all of them; allowed: {_WANTED[key]}')


_ANY_PORT = re.compile(r"(?:haproxy:)*(?:tcp6?|ssl|tls):(?:port=)?0+(?::|$)")
"""Endpoints that are another port each time."""


def _contradiction(issuer: BearerSettings, others: Sequence[BearerSettings]) -> tuple[str, str]:
    """Return what of an issuer's settings does not go with the others, and why; nothing, if all does."""
    if any(issuer.issuer == other.issuer for other in others):
        return "issuer", f"{issuer.issuer} has a table already; audience may be a list"
    if not issuer.audiences and not issuer.required_claims:
        return "audience", 'may be "" only with required_claims: else a token for anybody would be good'
    if issuer.client_secret_file and not issuer.client_id:
        return "client_secret_file", "needs a client_id"
    return "", ""


def decode_text(kind: Any, value: object) -> object:
    """Decode what is written as a string and is more than one (msgspec's hook)."""
    if not isinstance(value, str):
        wanted = getattr(kind, "WANTED", "a string")
        raise ValueError(f"{value!r} is not {wanted}")  # noqa: TRY004 - msgspec takes a ValueError
    return kind.decode(value)


_SCHEMES = ", ".join(f'"{scheme}"' for scheme in get_args(Scheme))

_WANTED = {
    "listen": 'a list of endpoints, such as ["tcp:8080:interface=127.0.0.1"]',
    "store": "the URL of a store, such as sqlite:PATH or redis://HOST",
    "users": "the path of a user file",
    "workers": f"a whole number from 0 to {WORKERS_MAX}; 0 is one a core",
    "insecure": 'a list that may have "open-writes" and "plaintext-passwords" in it',
    "trusted_proxies": 'a list of addresses and networks, and "unix"',
    "hosts": 'a list of host names and IP addresses, such as ["posts.example"], or ["*"] alone',
    "api": "a table, [api]",
    "api.read": f'a list of one or more of "open", {_SCHEMES}',
    "api.write": f'a list of one or more of "open", {_SCHEMES}',
    "api.cors_origins": 'a list of origins, such as ["https://app.example"], or ["*"] alone',
    "page": "tables, each under [[page]], with path and schemes",
    "page.schemes": f"a list of one or more of {_SCHEMES}",
    "page.files": "the path of a folder",
    "page.users": "a list of names",
    "session": "a table, [session]",
    "session.secure": '"auto", "always" or "never"',
    "digest": "a table, [digest]",
    "digest.algorithms": 'a list of "MD5" and "SHA-256", in the order of the challenges',
    "bearer": "tables, each under [[bearer]], with issuer and audience",
    "bearer.issuer": "the URL that the tokens have as iss, to the byte",
    "bearer.audience": 'a string, a list of strings, or "" together with required_claims',
    "bearer.algorithms": f"a list of one or more of {', '.join(get_args(Algorithm))}; none is symmetric",
    "bearer.token_types": 'a list of values of typ, such as ["at+jwt"]',
    "bearer.scope_claims": "a list of names of claims",
    "bearer.required_claims": 'a table of claims, each a value or a list of values, such as {azp = "my-client"}',
    "throttle": "a table, [throttle]",
    "throttle.failures": "a whole number from 1 to 1000000",
    "throttle.address_failures": "a whole number from 1 to 1000000",
    "throttle.account_failures": "a whole number from 1 to 1000000",
    "limits": "a table, [limits]",
    "limits.connections": "a whole number from 1 to 1000000",
    "admin": "a table, [admin]",
    "admin.listen": 'a list of endpoints, such as ["tcp:9180:interface=127.0.0.1"]',
    "log": "a table, [log]",
    "log.file": 'the path of a file, or "": where twistd logs',
    "log.format": '"text" or "json"',
    "log.access": "true or false",
}


def _absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make all paths absolute, those in store URLs and endpoint strings too."""
    made = dict(values)
    if values.get("users"):
        made["users"] = str(folder / values["users"])
    if values.get("log", {}).get("file"):
        made["log"] = {**values["log"], "file": str(folder / values["log"]["file"])}
    if "page" in values:
        made["page"] = [
            {**page, "files": str(folder / page["files"])} if page.get("files") else page for page in values["page"]
        ]
    if "bearer" in values:
        made["bearer"] = [
            {**issuer, **{key: str(folder / issuer[key]) for key in _ISSUER_FILES if issuer.get(key)}}
            for issuer in values["bearer"]
        ]
    if isinstance(values.get("store"), str):
        made["store"] = absolute_store(values["store"], folder)
    if "listen" in values:
        made["listen"] = _absolute_endpoints(values["listen"], folder)
    if values.get("admin", {}).get("listen"):
        made["admin"] = {**values["admin"], "listen": _absolute_endpoints(values["admin"]["listen"], folder)}
    return made


def _absolute_endpoints(descriptions: Sequence[str], folder: Path) -> list[str]:
    return [absolute_endpoint(description, folder) for description in descriptions]


def absolute_store(url: str, folder: Path) -> str:
    """Make the paths in a store's URL absolute; what is not one is left as it is, for whoever opens it to refuse."""
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
    """Join a path as URLs have it."""
    return quote(str(folder / unquote(path)))


_ISSUER_FILES = ("ca_file", "client_secret_file")

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

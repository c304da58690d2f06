"""The settings file as types: one frozen struct for each table, with every key, its default and its unit."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from postd.model import has_issuer
from postd.protocol import jwt
from postd.protocol.jwt import Algorithm, Scalar
from postd.protocol.password import normalize
from postd.settings.values import (
    AskedUrl,
    ByteCount,
    CorsOrigin,
    HostName,
    IssuerUrl,
    Leeway,
    MaxAge,
    Origin,
    PagePath,
    Realm,
    ScopeText,
    Seconds,
    TrustedProxy,
)

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
        return frozenset(name if has_issuer(name) else normalize(name) for name in self.users)


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

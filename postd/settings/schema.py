"""The settings as types: one frozen struct for each table, with every key, its default and its unit."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from postd.defaults import (
    ACCOUNT_FAILURES,
    ADDRESS_FAILURES,
    FAILURE_WINDOW_S,
    FAILURES,
    NONCE_LIFETIME_S,
    SESSION_IDLE_S,
    SESSION_LIFETIME_S,
    SESSIONS_PER_ACCOUNT,
    TOKEN_LIFETIME_S,
)
from postd.protocol import jwt
from postd.protocol.bearer import has_issuer
from postd.protocol.host import normalize_host
from postd.protocol.jwt import Algorithm, Binding, IdTokens, Introspected, Scalar
from postd.protocol.password import normalize
from postd.protocol.sign_in import SCOPES, ClientAuth, Logout
from postd.settings.values import (
    ByteCount,
    CorsOrigin,
    HostName,
    IssuerUrl,
    Leeway,
    Lifetime,
    MaxAge,
    OptionalUrl,
    Origin,
    PagePath,
    Permission,
    ProviderId,
    ProviderName,
    Realm,
    SchemeName,
    ScopeText,
    Seconds,
    TrustedProxy,
)

Rule = Annotated[tuple[Permission, ...], Meta(min_length=1)]
"""The schemes that give access; `open` needs no credentials."""


Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: the size and time of requests, the number of connections, and the memory of responses."""

    max_body_bytes: ByteCount = field(default=ByteCount(16 * 1024), name="body")
    header_s: Seconds = field(default=Seconds(10), name="header_time")
    body_s: Seconds = field(default=Seconds(30), name="body_time")
    idle_s: Seconds = field(default=Seconds(60), name="idle_time")
    connections: Count = 10_000
    response_memory_bytes: ByteCount = field(default=ByteCount(256 * 1024 * 1024), name="response_memory")


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tls]`: whether the TLS listeners of `listen` ask for a client certificate."""

    client_certificates: Literal["no", "ask"] = "no"

    @property
    def asks_clients(self) -> bool:
        return self.client_certificates == "ask"


class Log(Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: the log file and its format; `access` adds a line for each request, to the log or to `access_file`."""

    file: str = ""
    format: Literal["text", "json"] = "text"
    access: bool = True
    access_file: str = ""

    @property
    def files(self) -> Mapping[str, str]:
        """The paths of the files that are written, by their keys."""
        written = {"file": self.file, "access_file": self.access_file if self.access else ""}
        return {key: path for key, path in written.items() if path}


class Admin(Struct, frozen=True, forbid_unknown_fields=True):
    """`[admin]`: the endpoints that serve `/healthz`, `/readyz` and `/metrics`."""

    listen: tuple[str, ...] = ()


class Api(Struct, frozen=True, forbid_unknown_fields=True):
    """`[api]`: access to the post API.

    With `own` a post may be changed only by its author and by `moderators`. `show_authors` says which clients see the
    names of authors.
    """

    read: Rule = (Permission("open"),)
    write: Rule = (Permission("open"),)
    own: bool = False
    moderators: tuple[str, ...] = ()
    show_authors: Literal["all", "signed-in"] = "all"
    cors_origins: tuple[CorsOrigin, ...] = ()


class Board(Struct, frozen=True, forbid_unknown_fields=True):
    """`[board]`: the board, which has the access rules of the API."""

    enabled: bool = True


def comparable_accounts(names: Iterable[str]) -> frozenset[str]:
    """Return accounts for comparison: names of the user file are normalized, users of an issuer stay as they are."""
    return frozenset(name if has_issuer(name) else normalize(name) for name in names)


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[page]]`: a protected page or folder of files; `users` may have access, all authenticated users if empty.

    `read_scope` and `write_scope` are the scopes that a token needs here, "" for the scopes of its issuer. With
    `forward` the page answers forward-authentication requests of proxies.
    """

    path: PagePath
    schemes: Annotated[tuple[SchemeName, ...], Meta(min_length=1)]
    files: str = ""
    users: tuple[str, ...] = ()
    read_scope: ScopeText = ScopeText("")
    write_scope: ScopeText = ScopeText("")
    forward: bool = False

    @property
    def allowed(self) -> frozenset[str]:
        """`users` for comparison."""
        return comparable_accounts(self.users)


class SessionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[session]`: the lifetime and number of sessions, the `Secure` attribute of their cookie, and their binding."""

    idle_s: Seconds = field(default=Seconds(SESSION_IDLE_S), name="idle")
    lifetime_s: Seconds = field(default=Seconds(SESSION_LIFETIME_S), name="lifetime")
    secure: Literal["auto", "always", "never"] = "auto"
    max_per_account: Count = SESSIONS_PER_ACCOUNT
    bind: Literal["no", "offer"] = "no"


class AccountSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[accounts]`: what users may change at `/account`, and the longest lifetime of their tokens."""

    change_password: bool = False
    tokens: bool = False
    token_lifetime_s: Lifetime = field(default=Lifetime(TOKEN_LIFETIME_S), name="token_lifetime")
    passkeys: bool = False


class DigestSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[digest]`: the algorithms of the challenges, and the lifetime of a nonce."""

    algorithms: Annotated[tuple[Literal["MD5", "SHA-256"], ...], Meta(min_length=1)] = ("MD5",)
    nonce_lifetime_s: Seconds = field(default=Seconds(NONCE_LIFETIME_S), name="nonce_lifetime")


Word = Annotated[str, Meta(min_length=1)]


class BearerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[bearer]]`: an issuer of access tokens, and which tokens are accepted (`postd.protocol.jwt.TokenPolicy`)."""

    issuer: IssuerUrl
    audience: str | Annotated[tuple[Word, ...], Meta(min_length=1)]
    jwks_uri: OptionalUrl = OptionalUrl("")
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = jwt.ALGORITHMS
    token_types: Annotated[tuple[Word, ...], Meta(min_length=1)] = jwt.TOKEN_TYPES
    scope_claims: tuple[Word, ...] = jwt.SCOPE_CLAIMS
    read_scope: ScopeText = ScopeText("")
    write_scope: ScopeText = ScopeText("")
    user_claim: Word = jwt.USER_CLAIM
    required_claims: dict[str, Scalar | Annotated[tuple[Scalar, ...], Meta(min_length=1)]] = {}
    leeway_s: Leeway = field(default=Leeway(jwt.LEEWAY_S), name="leeway")
    dpop: Binding = "refuse"
    mtls: Binding = "refuse"
    id_tokens: IdTokens = "refuse"
    ca_file: str = ""
    introspection_endpoint: OptionalUrl = OptionalUrl("")
    introspect: Introspected = "opaque"
    client_id: str = ""
    client_secret_file: str = ""

    @property
    def audiences(self) -> tuple[str, ...]:
        if isinstance(self.audience, str):
            return (self.audience,) if self.audience else ()
        return self.audience


class SignInSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[[sign_in]]`: an OpenID provider, where users sign in (`postd.protocol.id_token.IdTokenPolicy`)."""

    id: ProviderId
    name: ProviderName
    issuer: IssuerUrl
    client_id: str = ""
    client_secret_file: str = ""
    client_key_file: str = ""
    client_auth: ClientAuth = "auto"
    scopes: Annotated[tuple[Word, ...], Meta(min_length=1)] = SCOPES
    user_claim: Word = jwt.USER_CLAIM
    name_claim: str = ""
    required_claims: dict[str, Scalar | Annotated[tuple[Scalar, ...], Meta(min_length=1)]] = {}
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = jwt.ALGORITHMS
    ca_file: str = ""
    logout: Logout = "local"


class ThrottleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[throttle]`: the failed logins that are allowed in a window."""

    failures: Count = FAILURES
    address_failures: Count = ADDRESS_FAILURES
    account_failures: Count = ACCOUNT_FAILURES
    window_s: Seconds = field(default=Seconds(FAILURE_WINDOW_S), name="window")


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
    board: Board = field(default_factory=Board)
    pages: tuple[Page, ...] = field(
        default=(Page(PagePath("/basic"), (SchemeName("basic"),)), Page(PagePath("/digest"), (SchemeName("digest"),))),
        name="page",
    )
    session: SessionSettings = field(default_factory=SessionSettings)
    accounts: AccountSettings = field(default_factory=AccountSettings)
    digest: DigestSettings = field(default_factory=DigestSettings)
    bearer: tuple[BearerSettings, ...] = ()
    sign_in: tuple[SignInSettings, ...] = ()
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    limits: Limits = field(default_factory=Limits)
    tls: Tls = field(default_factory=Tls)
    admin: Admin = field(default_factory=Admin)
    log: Log = field(default_factory=Log)

    @property
    def access_rules(self) -> dict[str, tuple[str, ...]]:
        """The schemes of each access rule, by "read", "write" and the path of each page."""
        return {"read": self.api.read, "write": self.api.write, **{str(page.path): page.schemes for page in self.pages}}

    @property
    def named_hosts(self) -> frozenset[str]:
        """The hosts that `hosts` and `public_url` name, normalized; `"*"` names none."""
        own = [normalize_host(self.public_url.partition("://")[2])] if self.public_url else []
        return frozenset([*self.hosts, *own]) - {"*"}

    def needs_named_host(self, page: Page) -> bool:
        """Return whether a page with `forward` accepts DPoP proofs, for which the settings have to name the host."""
        return page.forward and "bearer" in page.schemes and any(issuer.dpop != "refuse" for issuer in self.bearer)

    def described_hosts(self, page: Page) -> frozenset[str] | None:
        """Return the hosts that a proxy may describe to a page with `forward`, None for any (reference: Hosts)."""
        is_listed = bool(self.hosts) and "*" not in self.hosts
        return self.named_hosts if is_listed or self.needs_named_host(page) else None

    def uses_scheme(self, name: str) -> bool:
        """Return whether an access rule has a scheme."""
        return any(name in schemes for schemes in self.access_rules.values())

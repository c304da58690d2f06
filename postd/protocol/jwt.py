"""Decodes access tokens that are JWTs, and checks their claims (RFC 7519, 7515, 8725, 9068).

Signatures are verified by `postd.protocol.jwk`. This module checks what libraries leave open: canonical Base64,
duplicate names, `crit`, `typ`, and the types of all values it uses. The reason in an error (its `str()`) is for the log
and has no content of the token, but for the names of its algorithm and its type.
"""

import json
import math
import re
from binascii import a2b_base64
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NoReturn

from msgspec import Struct
from msgspec.structs import force_setattr

from postd.protocol.base64url import TO_STANDARD, decode_base64url
from postd.protocol.members import member, present

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures with a public key. With a symmetric one, every server that verifies tokens could forge them."""

ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
"""The algorithms accepted by default."""

TOKEN_TYPES = ("at+jwt", "JWT")
SCOPE_CLAIMS = ("scope", "scp")
USER_CLAIM = "sub"
LEEWAY_S = 30.0
"""The default clock skew, in seconds."""

USER_MAX_CHARS = 255
"""The longest user name in a token (OpenID Connect Core §2 has 255 for `sub`)."""

_DATE_MAX = 2**53
_CONTAINERS_MAX = 500
_ID_TOKEN_CLAIMS = ("nonce", "at_hash", "c_hash", "s_hash", "auth_time")
"""Claims of ID tokens (OpenID Connect Core §2, §3.3.2.11); some access tokens have them, too."""

_CLIENT_CLAIMS = ("azp", "client_id", "cid", "appid")
"""Claims that name the client of an access token (RFC 9068 §2.2; `cid` of Okta, `appid` of Entra ID)."""

_ED25519 = frozenset({"EdDSA", "Ed25519"})
_SHORT_NAME = re.compile(r"[A-Za-z0-9+./_-]{1,32}")

Scalar = str | int | float | bool

Binding = Literal["refuse", "accept", "require"]
"""Whether tokens that are bound to a key of the client are refused, accepted beside bearer tokens, or required."""

IdTokens = Literal["refuse", "accept"]
"""Whether tokens that have claims of ID tokens, and nothing that tells them apart from ID tokens, are accepted."""

Introspected = Literal["opaque", "all"]
"""Which tokens are sent to the introspection endpoint."""


class TokenError(ValueError):
    """A token that is not accepted."""


class NotJwtError(TokenError):
    """The token is not a JWT, so it may be an opaque token."""


class EncryptedError(TokenError):
    """The token is an encrypted JWT."""


class ExpiredTokenError(TokenError):
    """A token that was accepted before it expired."""


class Jwt(Struct, frozen=True):
    """A decoded JWT, not verified; `alg`, `kid`, `typ` and `iss` have the right types. `signed` is the signed text."""

    header: Mapping[str, object]
    claims: Mapping[str, object]
    signed: bytes
    signature: bytes

    @property
    def algorithm(self) -> str:
        return str(self.header["alg"])

    @property
    def key_id(self) -> str | None:
        key_id: str | None = member(self.header, "kid")
        return key_id

    @property
    def issuer(self) -> str:
        return str(self.claims["iss"])


class AccessToken(Struct, frozen=True):
    """The contents of an accepted token.

    Args:
        user: the name of its owner.
        scopes: its scopes.
        expires_at: in seconds since the epoch; None if it does not expire.
        claims_json: all its claims, as a JSON object.
        key_thumbprint: of the key that it is bound to by DPoP (`cnf.jkt`, RFC 9449 §6.1); empty if it is not.
        certificate_thumbprint: of the client certificate that it is bound to (`cnf.x5t#S256`, RFC 8705 §3.1); empty if
            it is not.
    """

    user: str
    scopes: frozenset[str]
    expires_at: float | None = None
    claims_json: bytes = b"{}"
    key_thumbprint: str = ""
    certificate_thumbprint: str = ""

    def __repr__(self) -> str:
        return f"AccessToken({self.user!r}, {set(self.scopes)}, expires_at={self.expires_at})"  # claims may be secret


def find_contradiction(  # noqa: PLR0913 - the options that depend on each other
    *,
    audiences: Collection[str],
    required_claims: Collection[str],
    client_id: str,
    client_secret_file: str,
    introspect: Introspected,
    introspection_endpoint: str,
) -> tuple[str, str]:
    """Return the option of an issuer that contradicts another option, and why; both empty if none does."""
    if not audiences and not required_claims:
        return "audience", 'may be "" only with required_claims: else tokens for any audience would be accepted'
    if client_secret_file and not client_id:
        return "client_secret_file", "needs a client_id"
    if introspect == "all" and not introspection_endpoint:
        return "introspect", 'may be "all" only with an introspection_endpoint'
    return "", ""


def with_both_names(algorithms: Collection[str]) -> frozenset[str]:
    """Return algorithms, and of Ed25519 both names: `EdDSA` and `Ed25519` (RFC 9864 §2.2)."""
    named = frozenset(algorithms)
    return named if named.isdisjoint(_ED25519) else named | _ED25519


def describe(name: str) -> str:
    """Return a colon and a name from a token if it is safe to log: short, and of letters, digits and `+./_-`."""
    return f": {name}" if _SHORT_NAME.fullmatch(name) else ""


def hint_at(expected: Iterable[str], names: Iterable[str]) -> str:
    """Return a note on the expected URI that a name differs from by its case or a slash at its end only, or ""."""
    alike = {name.rstrip("/").lower() for name in names}
    near = sorted(uri for uri in expected if uri.rstrip("/").lower() in alike)
    return f' (it differs from "{near[0]}" by case or a slash at the end only)' if near else ""


class TokenPolicy(Struct, frozen=True):
    """Which tokens of an issuer are accepted.

    Args:
        issuer: the value of `iss`, to the byte (RFC 8414 §2).
        audiences: `aud` must name an audience of this list; if empty, `aud` is ignored (Cognito sends none), and
            `required_claims` must identify the audience.
        algorithms: the accepted signature algorithms, named as in RFC 7518 §3.1, RFC 8037 and RFC 9864; Ed25519 is
            accepted by both of its names.
        token_types: the accepted values of `typ`; no `typ` counts as `"JWT"` (RFC 9068 §2.1; RFC 8725 §3.11).
        scope_claims: the claims that hold scopes, as a string or a list; they are combined.
        user_claim: the claim with the user's name.
        required_claims: the accepted values by claim; of a list, one element must be among them.
        leeway_s: the clock skew allowed, in seconds.
        dpop: the policy for tokens that are bound to a key by DPoP (RFC 9449).
        mtls: the policy for tokens that are bound to a client certificate (RFC 8705).
        id_tokens: the policy for tokens with claims of ID tokens that cannot be told apart from ID tokens.

    Raises:
        ValueError: there are neither audiences nor required claims: tokens for any audience would be accepted.
    """

    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[Algorithm] = frozenset(ALGORITHMS)
    token_types: frozenset[str] = frozenset(TOKEN_TYPES)
    scope_claims: tuple[str, ...] = SCOPE_CLAIMS
    user_claim: str = USER_CLAIM
    required_claims: Mapping[str, tuple[Scalar, ...]] = MappingProxyType({})
    leeway_s: float = LEEWAY_S
    dpop: Binding = "refuse"
    mtls: Binding = "refuse"
    id_tokens: IdTokens = "refuse"

    def __post_init__(self) -> None:
        if not self.audiences and not self.required_claims:
            raise ValueError("without an audience, required_claims must identify the recipient of a token")
        force_setattr(self, "algorithms", with_both_names(self.algorithms))

    def check_header(self, jwt: Jwt) -> None:
        """Check a token's header, before its key is looked up.

        Raises:
            TokenError: its algorithm or its type is not accepted.
        """
        check_algorithm(jwt, self.algorithms)
        self.check_type(jwt)

    def check_type(self, jwt: Jwt) -> None:
        """Check a token's type.

        Raises:
            TokenError: it is not accepted.
        """
        if not any(is_type(jwt, kind) for kind in self.token_types):
            raise TokenError(f"typ is not accepted here{describe(type_of(jwt))}")

    def check_claims(self, jwt: Jwt, now: float) -> AccessToken:
        """Check the claims of a token with a verified signature, at `now`, in seconds since the epoch.

        Sources: RFC 7519 §4.1, RFC 9068 §4.

        Raises:
            ExpiredTokenError: it has expired.
            TokenError: it is for another audience, not valid yet, or a claim has the wrong type.
        """
        # RFC 9068 §2.2 requires sub of a token of its own type; any other has to have the user_claim alone.
        required = ("iss", "exp", "sub") if is_type(jwt, "at+jwt") else ("iss", "exp")
        for name in required:
            if member(jwt.claims, name) is None:
                raise TokenError(f"{name} is missing")
        accepted = self._check(jwt.claims, now)
        self._refuse_other_kinds(jwt, jwt.claims, accepted.scopes)
        return accepted

    def check_introspection(self, answer: Mapping[str, object], now: float, jwt: Jwt | None = None) -> AccessToken:
        """Check an issuer's answer about a token (RFC 7662 §2.2).

        `iss`, `aud` and the times may be missing from it: the issuer checks them for the authenticated caller (§4).

        Args:
            answer: the answer.
            now: seconds since the epoch.
            jwt: the token, if it is a JWT: the answer says that its claims are true, and may add to them.

        Raises:
            ExpiredTokenError: it has expired by this server's clock.
            TokenError: it is not active, or for another audience.
        """
        if answer.get("active") is not True:
            raise TokenError("the issuer says that it is not active")
        # Refresh tokens are active as well.
        kind = str(member(answer, "token_type", "bearer")).lower()
        if kind not in {"bearer", "access_token", "dpop"}:
            raise TokenError("token_type is not that of an access token")
        claims = answer if jwt is None else {**jwt.claims, **present(answer)}
        accepted = self._check(claims, now, introspected=True)
        if jwt is not None and member(answer, "token_type") is None:
            self._refuse_other_kinds(jwt, claims, accepted.scopes)
        if kind == "dpop" and not accepted.key_thumbprint:
            raise TokenError("token_type is DPoP, and cnf names no key")
        return accepted

    def ends_at(self, token: AccessToken) -> float:
        """Return until when a token is accepted, in seconds since the epoch; infinity if it never expires."""
        return math.inf if token.expires_at is None else token.expires_at + self.leeway_s

    def _check(self, claims: Mapping[str, object], now: float, *, introspected: bool = False) -> AccessToken:
        if member(claims, "iss", self.issuer) != self.issuer:
            raise TokenError("iss is another issuer")
        key, certificate = self._binding_of(claims)
        if member(claims, "aud") is not None or not introspected:
            self._check_audience(claims)
        expires_at = check_times(claims, now, self.leeway_s)
        for name, values in self.required_claims.items():
            if not has_one_of(claims.get(name), values):
                raise TokenError(f"{name} is not accepted here")
        user = self._user_of(claims, introspected=introspected)
        return AccessToken(
            user, self._scopes_of(claims), expires_at, json.dumps(claims).encode(), key or "", certificate or ""
        )

    def _binding_of(self, claims: Mapping[str, object]) -> tuple[str | None, str | None]:
        """Return the thumbprints of the key and of the certificate that a token is bound to (RFC 7800 §3.1)."""
        confirmation = member(claims, "cnf", {})
        members = present(confirmation) if isinstance(confirmation, dict) else None
        if members is None or members.keys() - {"jkt", "x5t#S256"}:
            raise TokenError("cnf does not bind it to a key or a certificate in a way that is known here")
        for name, rule in (("jkt", self.dpop), ("x5t#S256", self.mtls)):
            if name not in members:
                if rule == "require":
                    raise TokenError(f"it is not bound (cnf.{name})")
            elif rule == "refuse":
                raise TokenError(f"it is bound (cnf.{name}), which is not accepted here")
            elif not isinstance(members[name], str):
                raise TokenError(f"cnf.{name} is not a thumbprint")
        return members.get("jkt"), members.get("x5t#S256")

    def _check_audience(self, claims: Mapping[str, object]) -> None:
        if not self.audiences:
            return  # required_claims identify the audience instead
        audience = member(claims, "aud")
        named = [audience] if isinstance(audience, str) else audience
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise TokenError("aud is missing, or neither a string nor a list of strings")
        if self.audiences.isdisjoint(named):
            expected = " or ".join(f'"{name}"' for name in sorted(self.audiences))
            raise TokenError(f"aud is another audience (expected {expected}){hint_at(self.audiences, named)}")

    def _user_of(self, claims: Mapping[str, object], *, introspected: bool) -> str:
        # In an answer, sub is optional (RFC 7662 §2.2); a client's own token has no username either.
        names = ("sub", "username", "client_id") if introspected and self.user_claim == "sub" else (self.user_claim,)
        found = [name for name in names if member(claims, name) is not None]
        if not found:
            raise TokenError("sub, username and client_id are missing" if len(names) > 1 else f"{names[0]} is missing")
        for name in ("sub", found[0]):
            value = member(claims, name)
            if value is not None and not is_name(value):
                raise TokenError(f"{name} is not a valid name")
        return str(claims[found[0]])

    def _refuse_other_kinds(self, jwt: Jwt, claims: Mapping[str, object], scopes: Collection[str]) -> None:
        """Refuse ID tokens and security events: JWTs of the same issuer, signed with the same keys.

        An ID token is for the client that signed the user in, so its audience is a client, and its scope, if it has
        one, has `openid`. The claims of Keycloak and Cognito that name the kind of a token are believed.
        """
        if not is_type(jwt, "JWT"):
            return
        if member(claims, "events") is not None:  # RFC 8417 §2.2, as of logout tokens
            raise TokenError("it is a security event")
        found = [name for name in _ID_TOKEN_CLAIMS if member(claims, name) is not None]
        named = claims.get("typ") == "Bearer" or claims.get("token_use") == "access"
        if not found or named or self.id_tokens == "accept":
            return
        if not scopes and found != ["auth_time"]:
            why = "no scope"
        elif "openid" in scopes:
            why = "the scope openid"
        elif _is_for_a_client(claims):
            why = "a client as its audience"
        else:
            return
        raise TokenError(f"it looks like an ID token: it has {', '.join(found)}, and {why} (id_tokens)")

    def _scopes_of(self, claims: Mapping[str, object]) -> frozenset[str]:
        scopes: set[str] = set()
        for name in self.scope_claims:
            value = member(claims, name, [])
            words = value.split(" ") if isinstance(value, str) else value
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise TokenError(f"{name} is neither a string nor a list of strings")
            scopes.update(words)
        return frozenset(scopes - {""})


def decode_jwt(token: str) -> Jwt:
    """Decode a JWT without verifying it (RFC 7515 §5.2, RFC 7519 §7.2).

    Raises:
        NotJwtError: it does not look like a JWT.
        TokenError: it is malformed, encrypted, or uses extensions.
    """
    # Non-ASCII characters are refused with all else that is not Base64.
    jwt = decode_signed(token.encode("utf-8", "surrogatepass"))
    if not isinstance(member(jwt.claims, "iss"), str):
        raise TokenError("iss is missing, or not a string")
    return jwt


def decode_signed(text: bytes) -> Jwt:
    """Decode a signed JSON object with any members, without verifying it (RFC 7515 §5.2).

    Raises:
        NotJwtError: it does not look like a JWT.
        TokenError: it is malformed, encrypted, or uses extensions.
    """
    parts = text.split(b".")
    if len(parts) not in {3, 5} or not _begins_as_object(parts[0]):
        raise NotJwtError("it is not a JWT")
    if len(parts) == 5:
        raise EncryptedError("it is encrypted (JWE)")
    try:
        header, claims = _decode_object(parts[0]), _decode_object(parts[1])
        signature = decode_base64url(parts[2])
    except ValueError:
        raise TokenError("malformed: not three parts of canonical Base64, of which two are JSON objects") from None
    # No extension is supported; an empty crit is forbidden (RFC 7515 §4.1.11), and b64 requires crit (RFC 7797 §6).
    for name in ("crit", "b64"):
        if header.get(name) is not None:
            raise TokenError(f"its header has {name}")
    for name in ("alg", "kid", "typ"):
        if not isinstance(member(header, name, ""), str):
            raise TokenError(f"{name} in its header is not a string")
    if member(header, "alg") is None:
        raise TokenError("alg is missing")
    return Jwt(header, claims, parts[0] + b"." + parts[1], signature)


def _begins_as_object(text: bytes) -> bool:
    """Return whether the first part of a token begins like the header of a JWT."""
    try:
        return a2b_base64(text.translate(TO_STANDARD) + b"==").lstrip().startswith(b"{")
    except ValueError:
        return False


def _decode_object(text: bytes) -> dict[str, object]:
    decoded = decode_base64url(text).decode("utf-8")
    if decoded.count("{") + decoded.count("[") > _CONTAINERS_MAX:
        raise ValueError("nested too deeply, or too much")  # json's own limit depends on Python's version
    value = _JSON.decode(decoded)
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - callers catch ValueError
    return value


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object from its members, whose names must be unique (RFC 7515 §4, RFC 7519 §4)."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a duplicate name")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)


def is_type(jwt: Jwt, name: str) -> bool:
    """Return whether a JWT is of a type (RFC 7515 §4.1.9)."""
    return _normalize_type(type_of(jwt)) == _normalize_type(name)


def type_of(jwt: Jwt) -> str:
    """Return the type of a JWT (RFC 7515 §4.1.9); without `typ` it is a `JWT`."""
    return str(member(jwt.header, "typ", "JWT"))


def _normalize_type(name: str) -> str:
    """Return a `typ` normalized for comparison (RFC 7515 §4.1.9: a media type, "application/" may be omitted)."""
    return name.lower().removeprefix("application/")


def check_algorithm(jwt: Jwt, accepted: Collection[str]) -> None:
    """Check that a token is signed with an accepted algorithm.

    Raises:
        TokenError: it is not.
    """
    if jwt.algorithm not in accepted:
        raise TokenError(f"alg is not accepted here{describe(jwt.algorithm)}")


def check_times(claims: Mapping[str, object], now: float, leeway_s: float) -> float | None:
    """Check `exp`, `nbf` and `iat` at `now`, in seconds since the epoch; return `exp`, None if it is absent.

    Raises:
        ExpiredTokenError: the token has expired.
        TokenError: it is not valid yet, or a claim is not a date.
    """
    expires_at = decode_date(claims, "exp")
    # The edges: "on or after" for exp (RFC 7519 §4.1.4), "before" for nbf (§4.1.5).
    if expires_at is not None and now >= expires_at + leeway_s:
        raise ExpiredTokenError("it has expired")
    for name in ("nbf", "iat"):
        date = decode_date(claims, name)
        if date is not None and now < date - leeway_s:
            raise TokenError(f"{name} is in the future")
    return expires_at


def decode_date(claims: Mapping[str, object], name: str) -> float | None:
    """Return a NumericDate (RFC 7519 §2), None if the claim is absent.

    Raises:
        TokenError: it is another value.
    """
    value = member(claims, name)
    if value is None:
        return None
    # The range excludes NaN and infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _DATE_MAX:
        raise TokenError(f"{name} is not a date")
    return float(value)


def is_name(value: object) -> bool:
    """Return whether a value is a user name: a short text without control characters."""
    return isinstance(value, str) and len(value) <= USER_MAX_CHARS and value.isprintable()


def _is_for_a_client(claims: Mapping[str, object]) -> bool:
    """Return whether the audience is a client: the one that the token names, or of a token that names none, no URI.

    The audience of an access token is a resource, which is a URI (RFC 8707 §2).
    """
    audience = claims.get("aud")
    audiences = [name for name in (audience if isinstance(audience, list) else [audience]) if isinstance(name, str)]
    clients = [claims[name] for name in _CLIENT_CLAIMS if member(claims, name) is not None]
    return any(client in audiences for client in clients) if clients else not any(":" in name for name in audiences)


def has_one_of(value: object, accepted: tuple[Scalar, ...]) -> bool:
    """Return whether a claim, or an element of it if it is a list, is an accepted value."""
    values = value if isinstance(value, list) else [value]
    # Compare types, too: True == 1 in Python, but not in JSON.
    return any(type(value) is type(good) and value == good for value in values for good in accepted)

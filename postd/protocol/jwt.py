"""Access tokens in the form of a JWT (RFC 7519, 7515, 8725, 9068): what one says, and whether that is good enough.

A signature is `postd.protocol.jwk`'s business. Here stands what libraries leave open: canonical Base64, names that are
there twice, `crit`, `typ`, and the types of all that is looked at. A reason (`str()` of an error) is for the log, and
has nothing in it that was in the token.
"""

import json
import math
from binascii import a2b_base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from msgspec import Struct

from postd.protocol.base64url import TO_STANDARD, decode_base64url

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
"""Signatures that are to be had with a public key; a symmetric one would make forgers of all who can verify it."""

ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
"""Those that are taken unless it is told otherwise."""

TOKEN_TYPES = ("at+jwt", "JWT")
SCOPE_CLAIMS = ("scope", "scp")
USER_CLAIM = "sub"
LEEWAY_S = 30.0
"""How far clocks may differ."""

USER_MAX_CHARS = 255
"""The longest name of a token's owner (OpenID Connect Core §2 has 255 for `sub`)."""

_DATE_MAX = 2**53
_CONTAINERS_MAX = 500
_NOT_IN_ACCESS_TOKENS = frozenset({"nonce", "at_hash", "c_hash", "s_hash", "events"})
"""Of ID tokens (OpenID Connect Core §2, §3.3.2.11), and of security events, such as logout tokens (RFC 8417 §2.2)."""

Scalar = str | int | float | bool


class TokenError(ValueError):
    """A token that is not accepted."""


class NotJwtError(TokenError):
    """What is no JWT at all, so that it may be an opaque token."""


class ExpiredTokenError(TokenError):
    """A token that was good."""


class Jwt(Struct, frozen=True):
    """A JWT, taken apart, and not verified. Well-typed are `alg`, `kid` and `typ` of its header, and `iss`."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    """What the signature is of."""
    signature: bytes

    @property
    def algorithm(self) -> str:
        return str(self.header["alg"])

    @property
    def key_id(self) -> str | None:
        return self.header.get("kid")

    @property
    def issuer(self) -> str:
        return str(self.claims["iss"])


class AccessToken(Struct, frozen=True):
    """What an accepted token says: whose it is, what it is for, and until when (seconds since the epoch)."""

    user: str
    scopes: frozenset[str]
    expires_at: float | None = None


class TokenPolicy(Struct, frozen=True):
    """Which tokens of an issuer are accepted.

    Args:
        issuer: what `iss` is, to the byte (RFC 8414 §2).
        audiences: one of them must be in `aud`; with none, `aud` is not looked at (Cognito sends none), and
            `required_claims` must tell for whom a token is.
        algorithms: those of signatures that are accepted, names of RFC 7518 §3.1, RFC 8037 and RFC 9864.
        token_types: those of `typ`; no `typ` counts as `"JWT"` (RFC 9068 §2.1; RFC 8725 §3.11).
        scope_claims: where scopes stand, as words in a string or as a list; all of them count.
        user_claim: whose value is the owner's name.
        required_claims: by claim, the values that are accepted; of a claim that is a list, one element must be.
        leeway_s: how far clocks may differ, in seconds.

    Raises:
        ValueError: there are neither audiences nor required claims: a token for anybody would be good.
    """

    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[Algorithm] = frozenset(ALGORITHMS)
    token_types: frozenset[str] = frozenset(TOKEN_TYPES)
    scope_claims: tuple[str, ...] = SCOPE_CLAIMS
    user_claim: str = USER_CLAIM
    required_claims: Mapping[str, tuple[Scalar, ...]] = MappingProxyType({})
    leeway_s: float = LEEWAY_S

    def __post_init__(self) -> None:
        if not self.audiences and not self.required_claims:
            raise ValueError("without an audience, required_claims must tell for whom a token is")

    def check_header(self, jwt: Jwt) -> None:
        """Look at what a token says of itself, before any key is looked for.

        Raises:
            TokenError: an algorithm or a type that is not accepted.
        """
        if jwt.algorithm not in self.algorithms:
            raise TokenError("alg is none that is accepted here")
        if _type_of(jwt.header.get("typ", "JWT")) not in map(_type_of, self.token_types):
            raise TokenError("typ is none that is accepted here")

    def check_claims(self, jwt: Jwt, now: float) -> AccessToken:
        """Return what a token says whose signature is right (RFC 7519 §4.1, RFC 9068 §4).

        Args:
            jwt: the token.
            now: seconds since the epoch.

        Raises:
            ExpiredTokenError: it was accepted once.
            TokenError: it is not for us, not valid yet, or ill-typed.
        """
        claims = jwt.claims
        for name in ("iss", "exp", "sub"):
            if claims.get(name) is None:
                raise TokenError(f"{name} is missing")
        accepted = self._check(claims, now)
        typed = _type_of(jwt.header.get("typ", "JWT")) != "jwt"
        # ID tokens are JWTs of the same issuer, signed with the same keys (OpenID Connect Core §2). What asks for a
        # scope or for certain claims has told them apart already: Dex's access tokens have at_hash, too.
        if not typed and not accepted.scopes and not self.required_claims and _NOT_IN_ACCESS_TOKENS & claims.keys():
            raise TokenError("it looks like an ID token or a security event, and names no scope")
        return accepted

    def check_introspection(self, answer: Mapping[str, Any], now: float) -> AccessToken:
        """Return what an issuer tells of an opaque token (RFC 7662 §2.2). What it does not tell of `iss`, `aud` and the
        times, it has looked at itself: it knows who asks (§4).

        Raises:
            ExpiredTokenError: it is not active any more by our clock.
            TokenError: it is not active, or not for us.
        """
        if answer.get("active") is not True:
            raise TokenError("the issuer says that it is not active")
        told = {name: value for name, value in answer.items() if value is not None}
        # A refresh token is active, too, and so is one that has to be shown with a proof.
        if str(told.get("token_type", "bearer")).lower() not in {"bearer", "access_token"}:
            raise TokenError("token_type is none that can be shown as a bearer token")
        return self._check(told, now, introspected=True)

    def ends_at(self, token: AccessToken) -> float:
        """Return until when an accepted token is accepted, in seconds since the epoch; infinity, if it has no end."""
        return math.inf if token.expires_at is None else token.expires_at + self.leeway_s

    def _check(self, claims: Mapping[str, Any], now: float, *, introspected: bool = False) -> AccessToken:
        if claims.get("iss", self.issuer) != self.issuer:
            raise TokenError("iss is another one")
        if "cnf" in claims:  # RFC 9449 §7.2: to be shown with a proof; so are those bound to a certificate (RFC 8705)
            raise TokenError("it is bound to a key of its owner (cnf), and was shown as a bearer token")
        if "aud" in claims or not introspected:
            self._check_audience(claims)
        expires_at = self._check_times(claims, now)
        for name, values in self.required_claims.items():
            if not _has_one_of(claims.get(name), values):
                raise TokenError(f"{name} is none that is accepted here")
        return AccessToken(self._user_of(claims, introspected=introspected), self._scopes_of(claims), expires_at)

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if not self.audiences:
            return  # required_claims tell for whom it is, whatever RFC 7519 §4.1.3 has for those who look at aud
        audience = claims.get("aud")
        named = [audience] if isinstance(audience, str) else audience
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise TokenError("aud is missing, or neither a string nor a list of strings")
        if self.audiences.isdisjoint(named):
            raise TokenError("aud is another one")

    def _check_times(self, claims: Mapping[str, Any], now: float) -> float | None:
        expires_at = _date(claims, "exp")
        # The edges: "on or after" for exp (RFC 7519 §4.1.4), "before" for nbf (§4.1.5).
        if expires_at is not None and now >= expires_at + self.leeway_s:
            raise ExpiredTokenError("it has expired")
        for name in ("nbf", "iat"):
            date = _date(claims, name)
            if date is not None and now < date - self.leeway_s:
                raise TokenError(f"{name} is still to come")
        return expires_at

    def _user_of(self, claims: Mapping[str, Any], *, introspected: bool) -> str:
        name = self.user_claim
        if introspected and name == USER_CLAIM and name not in claims:
            name = "client_id"  # a client's own token: sub is optional here (RFC 7662 §2.2)
        for wanted in {"sub", name} & claims.keys() | {name}:
            value = claims.get(wanted)
            if not isinstance(value, str) or not 0 < len(value) <= USER_MAX_CHARS or not value.isprintable():
                raise TokenError(f"{wanted} is missing, or nobody's name")
        return str(claims[name])

    def _scopes_of(self, claims: Mapping[str, Any]) -> frozenset[str]:
        scopes: set[str] = set()
        for name in self.scope_claims:
            value = claims.get(name, [])
            words = value.split(" ") if isinstance(value, str) else value
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise TokenError(f"{name} is neither a string nor a list of strings")
            scopes.update(words)
        return frozenset(scopes - {""})


def decode_jwt(token: str) -> Jwt:
    """Take a token apart (RFC 7515 §5.2, RFC 7519 §7.2).

    Raises:
        NotJwtError: it is none, and does not try to be one.
        TokenError: it is malformed, encrypted, or of a kind that nobody should accept.
    """
    # What is no ASCII is refused with all else that is no Base64.
    parts = token.encode("utf-8", "surrogatepass").split(b".")
    if len(parts) not in {3, 5} or not _begins_as_object(parts[0]):
        raise NotJwtError("it is no JWT")
    if len(parts) == 5:
        raise TokenError("it is encrypted (JWE)")
    try:
        header, claims = _decode_object(parts[0]), _decode_object(parts[1])
        signature = decode_base64url(parts[2])
    except ValueError:
        raise TokenError("malformed: not three parts of canonical Base64, of which two are JSON objects") from None
    _check_critical(header)
    for name in ("alg", "kid", "typ"):
        if not isinstance(header.get(name, ""), str):
            raise TokenError(f"{name} in its header is no string")
    if "alg" not in header:
        raise TokenError("alg is missing")
    if not isinstance(claims.get("iss"), str):
        raise TokenError("iss is missing, or no string")
    return Jwt(header, claims, parts[0] + b"." + parts[1], signature)


def _check_critical(header: Mapping[str, Any]) -> None:
    # We know no extension; an empty crit is forbidden (RFC 7515 §4.1.11), and b64 has to be in it (RFC 7797 §6).
    for name in ("crit", "b64"):
        if name in header:
            raise TokenError(f"its header has {name}")


def _begins_as_object(text: bytes) -> bool:
    """Tell whether the first part of a token is, or tries to be, the header of a JWT."""
    try:
        return a2b_base64(text.translate(TO_STANDARD) + b"==").lstrip().startswith(b"{")
    except ValueError:
        return False


def _decode_object(text: bytes) -> dict[str, Any]:
    decoded = decode_base64url(text).decode("utf-8")
    if decoded.count("{") + decoded.count("[") > _CONTAINERS_MAX:
        raise ValueError("nested too deeply, or too much")  # else how deep it may be would hang on Python's version
    value = _JSON.decode(decoded)
    if not isinstance(value, dict):
        raise ValueError("no object")  # noqa: TRY004 - to whoever reads a token it is a value
    return value


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members, whose names must be unique (RFC 7515 §4, RFC 7519 §4)."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name is there twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_refuse_twice, parse_constant=_refuse_constant)


def _type_of(name: str) -> str:
    """Return a `typ` as it is compared (RFC 7515 §4.1.9: a media type, of which "application/" may be left out)."""
    return name.lower().removeprefix("application/")


def _date(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a NumericDate (RFC 7519 §2), None if it is not there."""
    value = claims.get(name)
    if name not in claims:
        return None
    # Neither NaN nor infinity is in the range.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _DATE_MAX:
        raise TokenError(f"{name} is no date")
    return float(value)


def _has_one_of(value: object, accepted: tuple[Scalar, ...]) -> bool:
    values = value if isinstance(value, list) else [value]
    # Of the same type: True is 1 to Python, and not to JSON.
    return any(type(one) is type(good) and one == good for one in values for good in accepted)

"""Checks ID tokens, UserInfo and logout tokens (OpenID Connect Core 1.0 §3.1.3.7 and §5.3, Back-Channel Logout 1.0).

Signatures are verified by `postd.protocol.jwk`. A claim that is null or empty counts as absent
(`postd.protocol.members`). The reason in an error is for the log, and has no content of a token.
"""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import force_setattr

from postd.protocol.base64url import encode_base64url
from postd.protocol.jwt import (
    ALGORITHMS,
    LEEWAY_S,
    USER_CLAIM,
    Algorithm,
    Jwt,
    Scalar,
    TokenError,
    check_algorithm,
    check_times,
    decode_date,
    describe,
    has_one_of,
    is_name,
    is_type,
    type_of,
    with_both_names,
)
from postd.protocol.members import present

NAME_CLAIMS = ("name", "preferred_username", "email")
"""The claims with a name for people, in order, where the settings name none."""

LOGOUT_TOKEN_AGE_MAX_S = 600.0
"""The age of a logout token, in seconds (Back-Channel Logout 1.0 §2.6: "recently")."""

_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_LOGOUT_TYPES = ("logout+jwt", "JWT")
_VERIFIED = "email_verified"
_ED25519 = ("sha512", "sha256")
"""Providers take either for Ed25519: the specification names a hash for algorithms with a size in their name alone."""


class Person(Struct, frozen=True):
    """Who has signed in.

    Args:
        name: the name of the account at the issuer.
        shown_name: the name for people.
        subject: the user at the provider (`sub`).
        sid: the session at the provider, empty if it names none.
        claims: the claims of the ID token, and of UserInfo where it was needed.
        authenticated: when the user has authenticated, by the ID token; 0 if it does not say.
    """

    name: str
    shown_name: str
    subject: str
    sid: str
    claims: Mapping[str, object]
    authenticated: float = 0.0


class LogoutToken(Struct, frozen=True):
    """The contents of a logout token that is valid if it was not used before.

    Args:
        subject: the user whose sessions end, empty for any.
        sid: the session at the provider that ends, empty for all of the user.
        id: the hash that a store remembers.
        expires: when it may be forgotten, in seconds since the epoch.
    """

    subject: str
    sid: str
    id: bytes
    expires: float


class IdTokenPolicy(Struct, frozen=True):
    """Which ID tokens of a provider are accepted.

    Args:
        issuer: the value of `iss`, to the byte.
        client_id: this server at the provider: the audience.
        algorithms: the accepted signature algorithms.
        user_claim: the claim with the name of the account. An `email` has to be verified.
        name_claim: the claim with the name for people; "" for the first of `NAME_CLAIMS`.
        required_claims: the accepted values by claim; of a list, one element must be among them.
        leeway_s: the clock skew allowed, in seconds.
    """

    issuer: str
    client_id: str
    algorithms: frozenset[Algorithm] = frozenset(ALGORITHMS)
    user_claim: str = USER_CLAIM
    name_claim: str = ""
    required_claims: Mapping[str, tuple[Scalar, ...]] = MappingProxyType({})
    leeway_s: float = LEEWAY_S

    def __post_init__(self) -> None:
        force_setattr(self, "algorithms", with_both_names(self.algorithms))

    @property
    def fingerprint(self) -> bytes:
        """What identifies the accounts: sessions with another fingerprint are not valid."""
        parts = json.dumps([self.issuer, self.client_id, self.user_claim])
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).digest()

    def check_header(self, jwt: Jwt) -> None:
        """Check a token's header, before its key is looked up. `typ` and `kid` may be absent.

        Raises:
            TokenError: its algorithm is not accepted.
        """
        check_algorithm(jwt, self.algorithms)

    def check(
        self, jwt: Jwt, *, nonce: str, access_token: str, now: float, authenticated_since: float | None = None
    ) -> dict[str, object]:
        """Check the claims of an ID token with a verified signature; return those that are there.

        Args:
            jwt: the token.
            nonce: that of the request.
            access_token: that of the same response, empty if it has none.
            now: seconds since the epoch.
            authenticated_since: the user has to have authenticated since then; None for any time.

        Raises:
            TokenError: it is not accepted.
        """
        claims = present(jwt.claims)
        kind = type_of(jwt)
        if kind.lower().endswith("+jwt"):  # of a kind of its own, such as at+jwt (RFC 8725 §3.11)
            raise TokenError(f"typ is not that of an ID token{describe(kind)}")
        self._check_issue(claims, now)
        if not is_name(claims.get("sub")):
            raise TokenError("sub is missing, or not a valid name")
        audience = claims.get("aud")
        if isinstance(audience, list) and len(audience) > 1 and "azp" not in claims:
            raise TokenError("aud names several, and azp is missing")
        if claims.get("azp", self.client_id) != self.client_id:
            raise TokenError("azp is another client")
        if claims.get("nonce") != nonce:
            raise TokenError("nonce is missing, or that of another sign-in")
        if "at_hash" in claims and claims["at_hash"] not in _half_hashes(access_token, jwt.algorithm):
            raise TokenError("at_hash is that of another access token")
        authenticated = decode_date(claims, "auth_time")
        if authenticated_since is not None and (
            authenticated is None or authenticated < authenticated_since - self.leeway_s
        ):
            raise TokenError("auth_time is missing, or before this sign-in (max_age=0)")
        return claims

    def needs_user_info(self, claims: Mapping[str, object]) -> bool:
        """Return whether claims have to be fetched from UserInfo (OpenID Connect Core §5.3)."""
        names = (self.name_claim,) if self.name_claim else NAME_CLAIMS
        needed = {self.user_claim, *self.required_claims} | ({_VERIFIED} if self.user_claim == "email" else set())
        return not needed <= claims.keys() or claims.keys().isdisjoint(names)

    def add_user_info(self, claims: Mapping[str, object], answer: Mapping[str, object]) -> dict[str, object]:
        """Return the claims of an ID token with those of UserInfo in addition.

        An address and whether it is verified come from the same of the two.

        Raises:
            TokenError: it is the answer about another user (OpenID Connect Core §5.3.2).
        """
        found = present(answer)
        if found.get("sub") != claims["sub"]:
            raise TokenError("sub of UserInfo is missing, or another user")
        pair = {"email", _VERIFIED}
        source = claims if pair <= claims.keys() or "email" not in found else found
        others = {name: value for name, value in {**found, **claims}.items() if name not in pair}
        return others | {name: source[name] for name in pair & source.keys()}

    def find_person(self, claims: Mapping[str, object]) -> Person:
        """Return who has signed in, from all claims.

        Raises:
            TokenError: a claim is missing, or not accepted.
        """
        for name, values in self.required_claims.items():
            if not has_one_of(claims.get(name), values):
                raise TokenError(f"{name} is not accepted here" if name in claims else f"{name} is missing")
        user = claims.get(self.user_claim)
        if not is_name(user):
            why = "is missing" if self.user_claim not in claims else "is not a valid name"
            raise TokenError(f"{self.user_claim} {why}")
        if self.user_claim == "email" and claims.get(_VERIFIED) is not True:
            raise TokenError("email is not verified (email_verified)")
        names = (self.name_claim,) if self.name_claim else NAME_CLAIMS
        shown = next((value for name in names if is_name(value := claims.get(name)) and str(value).strip()), user)
        sid = claims.get("sid", "")
        return Person(str(user), str(shown), str(claims["sub"]), sid if isinstance(sid, str) else "", claims)

    def check_logout(self, jwt: Jwt, now: float) -> LogoutToken:
        """Check the header and the claims of a logout token with a verified signature (Back-Channel Logout 1.0 §2.6).

        Raises:
            TokenError: it is not accepted.
        """
        claims = present(jwt.claims)
        if not any(is_type(jwt, kind) for kind in _LOGOUT_TYPES):
            raise TokenError(f"typ is not that of a logout token{describe(type_of(jwt))}")
        issued_at, expires_at = self._check_issue(claims, now)
        if now - issued_at > LOGOUT_TOKEN_AGE_MAX_S + self.leeway_s:
            raise TokenError("iat is more than 10 minutes ago")
        events = claims.get("events")
        if not isinstance(events, dict) or not isinstance(events.get(_LOGOUT_EVENT), dict):
            raise TokenError("events has no back-channel logout")
        if "nonce" in claims:
            raise TokenError("it has a nonce, as an ID token has")
        named = [claims.get(name, "") for name in ("sub", "sid", "jti")]
        if not all(isinstance(value, str) for value in named):
            raise TokenError("sub, sid or jti is not a string")
        subject, sid, token_id = map(str, named)
        if not subject and not sid:
            raise TokenError("sub and sid are missing")
        if not token_id:
            raise TokenError("jti is missing")
        identified = f"logout token\n{self.issuer}\n{self.client_id}\n{token_id}"
        expires = min(expires_at, issued_at + LOGOUT_TOKEN_AGE_MAX_S) + self.leeway_s
        return LogoutToken(subject, sid, hashlib.sha256(identified.encode("utf-8", "surrogatepass")).digest(), expires)

    def _check_issue(self, claims: Mapping[str, object], now: float) -> tuple[float, float]:
        """Check who has issued a token, for whom and when; return `iat` and `exp`."""
        if claims.get("iss") != self.issuer:
            raise TokenError("iss is another issuer")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if self.client_id not in named or not all(isinstance(name, str) for name in named):
            raise TokenError("aud is missing, or another client")
        expires_at, issued_at = check_times(claims, now, self.leeway_s), decode_date(claims, "iat")
        if expires_at is None or issued_at is None:
            raise TokenError("exp or iat is missing")
        return issued_at, expires_at


def _half_hashes(access_token: str, algorithm: str) -> list[str]:
    """Return the accepted values of `at_hash` (OpenID Connect Core §3.1.3.6): the hash is that of the signature."""
    names = _ED25519 if algorithm.startswith("Ed") else (f"sha{algorithm[2:]}",)
    digests = (hashlib.new(name, access_token.encode("utf-8", "surrogatepass")).digest() for name in names)
    return [encode_base64url(digest[: len(digest) // 2]) for digest in digests] if access_token else []

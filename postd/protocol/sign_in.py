"""Sign-in at an OpenID provider: the request to it, its answer, and the proof of who asks for the token.

Sources: OpenID Connect Core 1.0 §3.1.2, RFC 6749 §4.1 and §2.3, RFC 7636 (PKCE), RFC 9207 (`iss`), RFC 7523 §2.2.
`postd.protocol.id_token` checks the ID token.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Literal, Self
from urllib.parse import quote_plus, urlencode

import msgspec
import orjson
from msgspec import Struct

from postd.protocol.base64url import encode_base64url
from postd.protocol.members import member

PENDING_S = 600.0
"""How long a browser has to come back from the provider, in seconds."""

PENDING_MAX, PENDING_MAX_BYTES = 8, 8 * 1024
"""How many sign-ins a browser may have begun at a provider, and the size of their cookies: half of a request's head."""

NAME_MAX_CHARS = 64
"""The longest name on a button."""

SECRET_BYTES = 32
"""The random bytes of `state`, of `nonce` and of the code verifier (RFC 7636 §7.1)."""

NAME_BYTES = 12
"""The characters of a state that name its cookie."""

ASSERTION_S = 60
"""How long an assertion of the client is valid, in seconds."""

SCOPES = ("openid", "profile")

ClientAuth = Literal["auto", "client_secret_basic", "client_secret_post", "private_key_jwt", "none"]
"""How this server authenticates at the token endpoint; "auto" chooses by the provider's metadata."""

Logout = Literal["local", "provider"]
"""Whether signing out ends the session here alone, or goes on to the provider."""

RESERVED_IDS = ("bind", "passkey", "reset", "session")
"""Ids that providers must not have: `/login/<id>` is another page's."""

_ID = re.compile(r"[a-z0-9-]{1,64}")
_SCOPE_WORD = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def check_id(value: str) -> str:
    """Return the id of a provider if it is valid.

    Raises:
        ValueError: it has other characters, or is reserved.
    """
    if not _ID.fullmatch(value):
        raise ValueError(f"{value!r} is not an id: lower-case letters, digits and hyphens, at most 64")
    if value in RESERVED_IDS:
        raise ValueError(f"{value!r} is reserved: {', '.join(RESERVED_IDS)}")
    return value


def check_button(value: str) -> str:
    """Return the name of a provider on its button if it is valid.

    Raises:
        ValueError: it is empty, too long, or has unprintable characters.
    """
    if not value.strip() or len(value) > NAME_MAX_CHARS or not value.isprintable():
        raise ValueError(f"{value!r} is not a name: a text of 1 to {NAME_MAX_CHARS} printable characters")
    return value


def find_contradiction(
    *,
    client_id: str,
    client_secret_file: str,
    client_key_file: str,
    client_auth: ClientAuth,
    scopes: Sequence[str],
) -> tuple[str, str]:
    """Return the option of a provider that is wrong together with another, and why; both empty if none is."""
    needs_secret, needs_key = client_auth.startswith("client_secret"), client_auth == "private_key_jwt"
    has_both = client_auth == "none" and bool(client_secret_file or client_key_file)
    wrong = {
        ("client_id", "is empty: the provider gives it when this server is registered there"): not client_id,
        ("scopes", 'need "openid": without it the provider gives no ID token'): "openid" not in scopes,
        ("scopes", "are words of printable ASCII, without spaces, quotes and backslashes"): not all(
            map(_SCOPE_WORD.fullmatch, scopes)
        ),
        ("client_auth", f"{client_auth} needs client_secret_file"): needs_secret and not client_secret_file,
        ("client_auth", f"{client_auth} needs client_key_file"): needs_key and not client_key_file,
        ("client_auth", "none uses no client_secret_file and no client_key_file: leave them out"): has_both,
    }
    return next((found for found, is_wrong in wrong.items() if is_wrong), ("", ""))


class CallbackError(ValueError):
    """An answer that belongs to no sign-in of this browser, or that another provider may have sent."""


class PendingSignIn(Struct, frozen=True, array_like=True):
    """A sign-in that a browser has begun: what the callback needs. The browser keeps it, encrypted.

    Args:
        state, nonce, verifier: secrets of this sign-in (RFC 6749 §10.12, OpenID Connect Core §15.5.2, RFC 7636 §4.1).
        redirect_uri: that of the request.
        next: the path to redirect to after the sign-in, empty for none.
        fresh: whether the user has to authenticate now, not earlier.
        begun: when it was begun, in seconds since the epoch.
    """

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str
    fresh: bool
    begun: float

    @classmethod
    def begin(cls, redirect_uri: str, back: str, now: float, *, fresh: bool) -> Self:
        """Return a new one."""
        state, nonce, verifier = (secrets.token_urlsafe(SECRET_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, redirect_uri, back, fresh, now)

    @classmethod
    def decode(cls, content: bytes) -> Self | None:
        """Decode the result of `encode`; None if it is another version's."""
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError:
            return None

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def __repr__(self) -> str:
        return f"PendingSignIn(begun={self.begun})"

    def is_live(self, now: float) -> bool:
        """Return whether the browser may still come back; a node's clock may be behind that of another."""
        return -PENDING_S < now - self.begun < PENDING_S

    @property
    def expires(self) -> float:
        """When its state may be forgotten, in seconds since the epoch."""
        return self.begun + PENDING_S

    @property
    def id(self) -> bytes:
        """The hash that a store remembers, so that the state is used once."""
        return hashlib.sha256(b"sign-in state " + self.state.encode()).digest()


def cookie_name_of(state: str) -> str:
    """Return the name of the cookie with a sign-in: each has a cookie of its own, for tabs that begin one each."""
    return f"sign-in-{state[:NAME_BYTES]}"


def make_authorization_url(endpoint: str, client_id: str, scopes: Sequence[str], pending: PendingSignIn) -> str:
    """Return the URL that begins a sign-in at the provider (OpenID Connect Core §3.1.2.1).

    It has neither `prompt` nor `response_mode`: providers implement their defaults alone.
    """
    parameters = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": pending.redirect_uri,
        "scope": " ".join(scopes),
        "state": pending.state,
        "nonce": pending.nonce,
        "code_challenge": encode_base64url(hashlib.sha256(pending.verifier.encode("ascii")).digest()),
        "code_challenge_method": "S256",
    }
    if pending.fresh:
        parameters["max_age"] = "0"
    # The endpoint may have a query, which is kept (RFC 6749 §3.1).
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"


class Callback(Struct, frozen=True):
    """The provider's answer, by way of the browser: a code, or an error. Empty parameters count as absent."""

    state: str
    code: str = ""
    error: str = ""
    issuer: str = ""

    def __repr__(self) -> str:
        return f"Callback(error={self.error!r}, issuer={self.issuer!r})"

    def check_state(self, pending: PendingSignIn | None, now: float) -> PendingSignIn:
        """Return the sign-in that the answer belongs to.

        Raises:
            CallbackError: it belongs to none, or to one that has expired.
        """
        if pending is None or not hmac.compare_digest(pending.state.encode(), self.state.encode()):
            raise CallbackError("state is not that of a sign-in of this browser")
        if not pending.is_live(now):
            raise CallbackError(f"it has taken longer than {PENDING_S / 60:.0f} minutes")
        return pending

    def check_issuer(self, issuer: str, metadata: Mapping[str, object]) -> None:
        """Check that the answer is the provider's (RFC 9207 §2.4): a code of another must not be sent to this one.

        Raises:
            CallbackError: it is another issuer's, or lacks `iss`, which the provider announces.
        """
        if self.issuer and self.issuer != issuer:
            raise CallbackError("iss is another issuer")
        if not self.issuer and metadata.get("authorization_response_iss_parameter_supported") is True:
            raise CallbackError("iss is missing, which the provider announces")


def decode_callback(parameters: Mapping[str, Sequence[str]]) -> Callback:
    """Decode the query of the callback (RFC 6749 §4.1.2, RFC 9207 §2).

    Raises:
        CallbackError: a parameter is there twice, or there is no state, or neither a code nor an error.
    """
    values = {}
    for name in ("state", "code", "error", "iss"):
        found = parameters.get(name, ())
        if len(found) > 1:
            raise CallbackError(f"{name} is there twice")
        values[name] = found[0] if found else ""
    if not values["state"]:
        raise CallbackError("state is missing")
    if bool(values["code"]) == bool(values["error"]):
        raise CallbackError("it needs either code or error")
    return Callback(values["state"], values["code"], values["error"], values["iss"])


def choose_client_auth(
    configured: ClientAuth, metadata: Mapping[str, object], *, secret: bool, key: bool
) -> ClientAuth:
    """Return how to authenticate at the token endpoint.

    Args:
        configured: the setting; "auto" for the first method that the provider announces, Basic before others.
        metadata: the provider's; without `token_endpoint_auth_methods_supported` it has Basic (OpenID Connect
            Discovery 1.0 §3).
        secret: whether there is a secret.
        key: whether there is a key.
    """
    if configured != "auto":
        return configured
    usable: list[ClientAuth] = []
    if secret:
        usable += ["client_secret_basic", "client_secret_post"]
    if key:
        usable.append("private_key_jwt")
    announced = member(metadata, "token_endpoint_auth_methods_supported", ["client_secret_basic"])
    known = announced if isinstance(announced, list) else []
    return next((method for method in usable if method in known), usable[0] if usable else "none")


def basic_auth(client_id: str, client_secret: str) -> tuple[str, str]:
    """Return name and password of Basic for a client, which are form-encoded first (RFC 6749 §2.3.1)."""
    return quote_plus(client_id), quote_plus(client_secret)


def make_token_form(client_id: str, code: str, pending: PendingSignIn) -> dict[str, str]:
    """Return the form that exchanges a code (RFC 6749 §4.1.3, RFC 7636 §4.5)."""
    return {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": pending.redirect_uri,
        "client_id": client_id,
        "code_verifier": pending.verifier,
    }


def assertion_claims(client_id: str, issuer: str, now: float) -> bytes:
    """Return the claims by which a client proves that it has its key (RFC 7523 §3); the audience is the issuer."""
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": secrets.token_urlsafe(16),
        "iat": int(now),
        "exp": int(now) + ASSERTION_S,
    }
    return orjson.dumps(claims)


def assertion_form(assertion: str) -> dict[str, str]:
    """Return the fields of an assertion in a form (RFC 7523 §2.2)."""
    return {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}


def make_sign_out_url(endpoint: str, client_id: str, id_token: str, back: str) -> str:
    """Return the URL that signs a user out at the provider (OpenID Connect RP-Initiated Logout 1.0 §2)."""
    parameters = {"id_token_hint": id_token, "client_id": client_id, "post_logout_redirect_uri": back}
    sent = {name: value for name, value in parameters.items() if value}
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(sent)}"

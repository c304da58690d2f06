"""The faults of a `Provider`: each breaks one rule of a specification, at one stage of a sign-in or a logout."""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from joserfc.jwk import ECKey
from msgspec import Struct

from postd.protocol.base64url import encode_base64url
from postd.testing.endpoints import Answer

LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"

_OTHER = "https://other.example"
_DAY_S = 86_400
_LONG = "x" * 1_000_000

Pairs = list[tuple[str, str]]
"""Parameters of a form or a query, in their order."""


def make_key() -> ECKey:
    """Return a new signature key."""
    return ECKey.generate_key("P-256", {"alg": "ES256", "use": "sig"}, auto_kid=True)


class Token(Struct):
    """A JWT that is not encoded yet; members of the header and claims that are None are left out.

    Args:
        header: with `alg`: ES256, HS256 or none.
        claims: the payload.
        key: the key of ES256.
        secret: the key of HS256.
        payload_end: further members of the payload, encoded, each after a comma.
        rewrite: changes the encoded token.
    """

    header: dict[str, object]
    claims: dict[str, object]
    key: ECKey
    secret: bytes
    payload_end: bytes = b""
    rewrite: Callable[[str], str] = str

    def encode(self) -> str:
        header, claims = (
            orjson.dumps({name: value for name, value in members.items() if value is not None})
            for members in (self.header, self.claims)
        )
        payload = claims[:-1] + self.payload_end + b"}"
        signed = f"{encode_base64url(header)}.{encode_base64url(payload)}"
        return self.rewrite(f"{signed}.{encode_base64url(self._sign(signed.encode('ascii')))}")

    def _sign(self, signed: bytes) -> bytes:
        match self.header["alg"]:
            case "none":
                return b""
            case "HS256":
                return hmac.digest(self.secret, signed, "sha256")
            case _:
                signature = cast(EllipticCurvePrivateKey, self.key.private_key).sign(signed, ECDSA(SHA256()))
                return b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(signature))


class Grant(Struct):
    """What belongs to an authorization code.

    Args:
        asked: the parameters of the authentication request.
        sub: the user.
        sid: the session at the provider.
        challenge: the code challenge; "" to skip the check of the verifier.
    """

    asked: Mapping[str, str]
    sub: str
    sid: str
    challenge: str


Change = Callable[[Any], None]
"""Changes what a stage has made: an `Answer`, a `Token`, a `Grant` or `Pairs`."""


def _member(name: str, value: object) -> Change:
    """Replace a member of a JSON object, or remove it (None)."""

    def change(answer: Answer) -> None:
        answer.body = {key: kept for key, kept in {**answer.body, name: value}.items() if kept is not None}

    return change


def _answer(status: int, body: object = b"", **headers: str) -> Change:
    def change(answer: Answer) -> None:
        answer.status, answer.body = status, body
        answer.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    return change


def _silence(answer: Answer) -> None:
    answer.is_sent = False


def _claims(**claims: object) -> Change:
    return lambda token: token.claims.update(claims)


def _dates(**offsets_s: int) -> Change:
    return lambda token: token.claims.update({name: int(time.time()) + offset for name, offset in offsets_s.items()})


def _header(**members: object) -> Change:
    return lambda token: token.header.update(members)


def _sign_by_other_key(token: Token) -> None:
    token.key = make_key()


def _sign_by_key_in_header(token: Token) -> None:
    token.key = make_key()
    token.header.update(kid=token.key.kid, jwk=token.key.as_dict(private=False))


def _sign_by_public_key(token: Token) -> None:
    token.header["alg"] = "HS256"
    token.secret = token.key.as_pem(private=False)


def _repeat_sub(token: Token) -> None:
    token.payload_end = b',"sub":"mallory"'


def _rewrite(rewrite: Callable[[str], str]) -> Change:
    def change(token: Token) -> None:
        token.rewrite = rewrite

    return change


def _flip(token: str) -> str:
    """Change the first character of the signature."""
    signed, _, signature = token.rpartition(".")
    return f"{signed}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"


def _replace(name: str, *values: str) -> Change:
    """Give a parameter other values: none, one or several."""

    def change(pairs: Pairs) -> None:
        pairs[:] = [pair for pair in pairs if pair[0] != name] + [(name, value) for value in values]

    return change


def _repeat(name: str) -> Change:
    return lambda pairs: pairs.extend([pair for pair in pairs if pair[0] == name])


def _skip_verifier(grant: Grant) -> None:
    grant.challenge = ""


_DISCOVERY = "OpenID Connect Discovery 1.0, 4"
_VALIDATION = "OpenID Connect Core 1.0, 3.1.3.7"
_ISS = "RFC 9207, 2.4"
_STATE = "RFC 6749, 4.1.2"
_RESPONSE = "OpenID Connect Core 1.0, 3.1.3.3"
_USERINFO = "OpenID Connect Core 1.0, 5.3"
_LOGOUT = "OpenID Connect Back-Channel Logout 1.0, 2.6"
_JWT = "RFC 8725, 3"

FAULTS: Mapping[str, tuple[str, Change]] = {
    # Metadata and keys
    "metadata: issuer of another provider": (f"{_DISCOVERY}.3", _member("issuer", _OTHER)),
    "metadata: issuer with a slash": (
        f"{_DISCOVERY}.3",
        lambda answer: _member("issuer", answer.body["issuer"] + "/")(answer),
    ),
    "metadata: authorization_endpoint missing": (f"{_DISCOVERY}.2", _member("authorization_endpoint", None)),
    "metadata: authorization_endpoint over http": (
        f"{_DISCOVERY}.2",
        _member("authorization_endpoint", "http://other.example/"),
    ),
    "metadata: authorization_endpoint is a script": (
        f"{_DISCOVERY}.2",
        _member("authorization_endpoint", "javascript:alert(1)"),
    ),
    "metadata: token_endpoint missing": (f"{_DISCOVERY}.2", _member("token_endpoint", None)),
    "metadata: not JSON": (f"{_DISCOVERY}.2", _answer(200, b"<html>")),
    "metadata: status 404": (f"{_DISCOVERY}.2", _answer(404)),
    "metadata: status 500": (f"{_DISCOVERY}.2", _answer(500)),
    "metadata: no response": (f"{_DISCOVERY}.2", _silence),
    "keys: none": (f"{_VALIDATION} (6)", _member("keys", [])),
    "keys: not JSON": (f"{_VALIDATION} (6)", _answer(200, b"<html>")),
    "keys: status 500": (f"{_VALIDATION} (6)", _answer(500)),
    # Authorization response
    "authorization: iss missing": (_ISS, _replace("iss")),
    "authorization: iss of another provider": (_ISS, _replace("iss", _OTHER)),
    "authorization: iss twice": ("RFC 6749, 3.1", _repeat("iss")),
    "authorization: state missing": (_STATE, _replace("state")),
    "authorization: other state": (_STATE, _replace("state", "x" * 43)),
    "authorization: state twice": ("RFC 6749, 3.1", _repeat("state")),
    "authorization: code missing": (_STATE, _replace("code")),
    "authorization: code empty": (_STATE, _replace("code", "")),
    "authorization: code twice": ("RFC 6749, 3.1", _repeat("code")),
    "authorization: unknown code": ("RFC 6749, 5.2", _replace("code", "unknown")),
    # Token endpoint
    "grant: verifier is not checked": ("RFC 7636, 4.6", _skip_verifier),
    "token: no id_token": (_RESPONSE, _member("id_token", None)),
    "token: id_token is null": (_RESPONSE, lambda answer: answer.body.update(id_token=None)),
    "token: id_token is a number": (_RESPONSE, _member("id_token", 1)),
    "token: id_token is not a JWT": (_RESPONSE, _member("id_token", "opaque")),
    "token: no access_token": ("RFC 6749, 5.1", _member("access_token", None)),
    "token: other token_type": (_RESPONSE, _member("token_type", "mac")),
    "token: a list": (_RESPONSE, _answer(200, [])),
    "token: not JSON": (_RESPONSE, _answer(200, b"<html>")),
    "token: empty": (_RESPONSE, _answer(200)),
    "token: a megabyte": (_RESPONSE, _member("padding", _LONG)),
    "token: invalid_grant": (
        "RFC 6749, 5.2",
        _answer(400, {"error": "invalid_grant", "error_description": "<b>used</b>"}),
    ),
    "token: invalid_client": ("RFC 6749, 5.2", _answer(401, {"error": "invalid_client"})),
    "token: redirect": ("RFC 6749, 3.2", _answer(302, Location=f"{_OTHER}/token")),
    "token: status 429": ("RFC 6585, 4", _answer(429, Retry_After="7")),
    "token: status 500": ("RFC 6749, 5.2", _answer(500)),
    "token: status 503": ("RFC 9110, 15.6.4", _answer(503)),
    "token: no response": ("RFC 6749, 5.1", _silence),
    # ID token
    "id_token: iss of another provider": (f"{_VALIDATION} (2)", _claims(iss=_OTHER)),
    "id_token: iss with a slash": (
        f"{_VALIDATION} (2)",
        lambda token: token.claims.update(iss=token.claims["iss"] + "/"),
    ),
    "id_token: iss missing": (f"{_VALIDATION} (2)", _claims(iss=None)),
    "id_token: aud of another client": (f"{_VALIDATION} (3)", _claims(aud="other")),
    "id_token: aud missing": (f"{_VALIDATION} (3)", _claims(aud=None)),
    "id_token: aud empty": (f"{_VALIDATION} (3)", _claims(aud=[])),
    "id_token: several aud without azp": (
        f"{_VALIDATION} (4)",
        lambda token: token.claims.update(aud=[token.claims["aud"], "other"]),
    ),
    "id_token: several aud, azp of another client": (
        f"{_VALIDATION} (5)",
        lambda token: token.claims.update(aud=[token.claims["aud"], "other"], azp="other"),
    ),
    "id_token: azp of another client": (f"{_VALIDATION} (5)", _claims(azp="other")),
    "id_token: signature": (f"{_VALIDATION} (6)", _rewrite(_flip)),
    "id_token: no signature": (f"{_VALIDATION} (6)", _rewrite(lambda token: token.rpartition(".")[0] + ".")),
    "id_token: key of another provider": (f"{_VALIDATION} (6)", _sign_by_other_key),
    "id_token: unknown kid": (f"{_VALIDATION} (6)", _header(kid="unknown")),
    "id_token: key in its header": ("RFC 7515, 4.1.3", _sign_by_key_in_header),
    "id_token: alg none": (f"{_VALIDATION} (7)", _header(alg="none")),
    "id_token: HS256 with the client secret": (f"{_VALIDATION} (8)", _header(alg="HS256")),
    "id_token: HS256 with the public key": (f"{_JWT}.1", _sign_by_public_key),
    "id_token: critical extension": ("RFC 7515, 4.1.11", _header(crit=["b64"], b64=True)),
    "id_token: encrypted": ("RFC 7516, 3.1", _rewrite(lambda token: f"{token}.x.x")),
    "id_token: typ of an access token": (f"{_JWT}.11", _header(typ="at+jwt")),
    "id_token: typ of a logout token": (f"{_JWT}.11", _header(typ="logout+jwt")),
    "id_token: exp in the past": (f"{_VALIDATION} (9)", _dates(exp=-_DAY_S)),
    "id_token: exp missing": (f"{_VALIDATION} (9)", _claims(exp=None)),
    "id_token: exp is text": (f"{_VALIDATION} (9)", lambda token: token.claims.update(exp=str(token.claims["exp"]))),
    "id_token: iat in the future": (f"{_VALIDATION} (10)", _dates(iat=_DAY_S, exp=2 * _DAY_S)),
    "id_token: iat missing": ("OpenID Connect Core 1.0, 2", _claims(iat=None)),
    "id_token: nbf in the future": ("RFC 7519, 4.1.5", _dates(nbf=_DAY_S)),
    "id_token: nonce missing": (f"{_VALIDATION} (11)", _claims(nonce=None)),
    "id_token: other nonce": (f"{_VALIDATION} (11)", _claims(nonce="other")),
    "id_token: auth_time missing": (f"{_VALIDATION} (13)", _claims(auth_time=None)),
    "id_token: auth_time in the past": (f"{_VALIDATION} (13)", _dates(auth_time=-_DAY_S)),
    "id_token: at_hash of another token": (
        "OpenID Connect Core 1.0, 3.1.3.8",
        _claims(at_hash=encode_base64url(bytes(16))),
    ),
    "id_token: at_hash is a number": ("OpenID Connect Core 1.0, 3.1.3.8", _claims(at_hash=1)),
    "id_token: sub missing": ("OpenID Connect Core 1.0, 2", _claims(sub=None)),
    "id_token: sub empty": ("OpenID Connect Core 1.0, 2", _claims(sub="")),
    "id_token: sub is a number": ("OpenID Connect Core 1.0, 2", _claims(sub=1)),
    "id_token: claim twice": ("RFC 7519, 4", _repeat_sub),
    # UserInfo
    "userinfo: sub of another user": (f"{_USERINFO}.2", _member("sub", "mallory")),
    "userinfo: sub missing": (f"{_USERINFO}.2", _member("sub", None)),
    "userinfo: not JSON": (f"{_USERINFO}.2", _answer(200, b"<html>")),
    "userinfo: status 401": (f"{_USERINFO}.3", _answer(401)),
    "userinfo: status 500": (f"{_USERINFO}.3", _answer(500)),
    "userinfo: no response": (f"{_USERINFO}.3", _silence),
    # Logout token
    "logout_token: typ of an access token": (f"{_JWT}.11", _header(typ="at+jwt")),
    "logout_token: signature": (f"{_LOGOUT} (2)", _rewrite(_flip)),
    "logout_token: key of another provider": (f"{_LOGOUT} (2)", _sign_by_other_key),
    "logout_token: alg none": (f"{_LOGOUT} (2)", _header(alg="none")),
    "logout_token: HS256 with the client secret": (f"{_LOGOUT} (2)", _header(alg="HS256")),
    "logout_token: iss of another provider": (f"{_LOGOUT} (3)", _claims(iss=_OTHER)),
    "logout_token: iss missing": (f"{_LOGOUT} (3)", _claims(iss=None)),
    "logout_token: aud of another client": (f"{_LOGOUT} (3)", _claims(aud="other")),
    "logout_token: aud missing": (f"{_LOGOUT} (3)", _claims(aud=None)),
    "logout_token: iat missing": (f"{_LOGOUT} (3)", _claims(iat=None)),
    "logout_token: iat in the past": (f"{_LOGOUT} (3)", _dates(iat=-_DAY_S)),
    "logout_token: iat in the future": (f"{_LOGOUT} (3)", _dates(iat=_DAY_S, exp=2 * _DAY_S)),
    "logout_token: exp missing": (f"{_LOGOUT} (3)", _claims(exp=None)),
    "logout_token: exp in the past": (f"{_LOGOUT} (3)", _dates(exp=-_DAY_S)),
    "logout_token: neither sub nor sid": (f"{_LOGOUT} (4)", _claims(sub=None, sid=None)),
    "logout_token: sub is a number": (f"{_LOGOUT} (4)", _claims(sub=1)),
    "logout_token: sid is a number": (f"{_LOGOUT} (4)", _claims(sid=1)),
    "logout_token: events missing": (f"{_LOGOUT} (5)", _claims(events=None)),
    "logout_token: events without the event": (f"{_LOGOUT} (5)", _claims(events={})),
    "logout_token: events is a list": (f"{_LOGOUT} (5)", _claims(events=[LOGOUT_EVENT])),
    "logout_token: event is text": (f"{_LOGOUT} (5)", _claims(events={LOGOUT_EVENT: ""})),
    "logout_token: nonce": (f"{_LOGOUT} (6)", _claims(nonce="n")),
    "logout_token: jti missing": (f"{_LOGOUT} (7)", _claims(jti=None)),
    "logout_token: jti is a number": (f"{_LOGOUT} (7)", _claims(jti=1)),
    "logout: no logout_token": ("OpenID Connect Back-Channel Logout 1.0, 2.5", _replace("logout_token")),
    "logout: logout_token twice": ("OpenID Connect Back-Channel Logout 1.0, 2.5", _repeat("logout_token")),
    "logout: not a JWT": ("OpenID Connect Back-Channel Logout 1.0, 2.5", _replace("logout_token", "opaque")),
    "logout: a megabyte": ("OpenID Connect Back-Channel Logout 1.0, 2.5", _replace("logout_token", _LONG)),
}
"""For each fault its rule, and the change of what is made at the stage that the name begins with."""

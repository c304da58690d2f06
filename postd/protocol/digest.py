"""Digest access authentication, the arithmetic and the syntax (RFC 7616; qop=auth only).

Text is hashed as UTF-8 (RFC 7616 §4: what a client that was told no charset sends today).
"""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from postd.protocol.base64url import decode_base64url
from postd.protocol.challenge import Challenge, unquote_string
from postd.protocol.percent import percent_decode

HASHES: Mapping[str, Any] = MappingProxyType({"MD5": hashlib.md5, "SHA-256": hashlib.sha256})
"""The algorithms there are, in their canonical spelling (RFC 7616 §6.1). Neither MD5 nor SHA-256 is a password hash;
what they make of a password must be kept as secret as the password."""


def h_a1(algorithm: str, username: str, realm: str, password: str) -> str:
    """Return H(A1) in lower-case hex: what a server keeps in place of a password (RFC 7616 §3.4.2)."""
    return _hash(algorithm, f"{username}:{realm}:{password}".encode())


@lru_cache(maxsize=1024)
def _h_a2(algorithm: str, method: str, uri: str) -> str:
    return _hash(algorithm, f"{method}:{uri}".encode(errors="surrogateescape"))


def _hash(algorithm: str, data: bytes) -> str:
    hashed: str = HASHES[algorithm](data, usedforsecurity=False).hexdigest()
    return hashed


def check_realm(realm: str) -> str:
    """Return a protection realm's text if every client can quote it.

    Raises:
        ValueError: it cannot stand in a challenge, or only escaped, which requests, httpx, wget and urllib get wrong.
    """
    if not realm or not realm.isascii() or not realm.isprintable() or set(realm) & set('"\\'):
        raise ValueError(f'{realm!r} is not a realm: printable ASCII characters without " and \\, at least one')
    return realm


class DigestSyntaxError(ValueError):
    """Digest credentials that are none; `str()` of it says why, for the log."""


class DigestResponse(Struct, frozen=True):
    """What a client sends to prove that it knows a password (RFC 7616 §3.4).

    `nc` and `cnonce` are as sent: both are hashed, and echoed in `Authentication-Info`. Text holds bytes that are not
    UTF-8 as surrogate escapes. `algorithm` is a key of `HASHES`.
    """

    username: str
    realm: str
    nonce: str
    uri: str
    response: str
    algorithm: str
    cnonce: str
    nc: str

    def __repr__(self) -> str:
        return f"DigestResponse({self.username!r}, realm={self.realm!r}, uri={self.uri!r}, nc={self.nc!r})"


def response_hash(shown: DigestResponse, ha1: str, method: str) -> str:
    """Return what proves that a client knows the password (RFC 7616 §3.4.1), in lower-case hex.

    With the empty string for `method` it is `rspauth`, what proves it of the server (§3.5; spec: Digest).

    Args:
        shown: what the client sent, or is about to send; its own `response` plays no part.
        ha1: H(A1).
        method: the method of the request.
    """
    ha2 = _h_a2(shown.algorithm, method, shown.uri)
    data = f"{ha1}:{shown.nonce}:{shown.nc}:{shown.cnonce}:auth:{ha2}"
    return _hash(shown.algorithm, data.encode(errors="surrogateescape"))


_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_PLAIN = r'[^"\\\x00-\x08\x0a-\x1f\x7f]*+'
_WITH_PAIRS = rf"{_PLAIN}(?:\\[^\x00-\x08\x0a-\x1f\x7f]{_PLAIN})*"
# What is no parameter is taken whole: a search for the next one in a long word would try each place of it.
_PARAMETER, _PARAMETER_WITH_PAIRS = (
    re.compile(rf'[ \t,]*+(?:({_WORD})[ \t]*+=[ \t]*+(?:"({quoted})"|({_WORD}))[ \t]*+(?:,|$)|[\s\S]+)')
    for quoted in (_PLAIN, _WITH_PAIRS)
)
_COUNT = re.compile(r"[0-9A-Fa-f]{8}")
_EXTENDED = re.compile(r"UTF-8'[A-Za-z0-9-]*'((?:%[0-9A-Fa-f]{2}|[!#$&+.^_`|~0-9A-Za-z-])*)", re.IGNORECASE)

_ENCODED = re.compile(rb"(?:%[89A-Fa-f][0-9A-Fa-f])+")

_required = itemgetter("realm", "nonce", "uri", "response", "cnonce", "nc", "qop")


def decode_digest_response(value: bytes) -> DigestResponse:
    """Decode what follows the scheme's name in `Authorization` (RFC 7616 §3.4, RFC 9110 §11.4).

    Quoted where it should not be, or not quoted where it should: both are taken, for clients differ (requests quotes
    `qop` and `nc`). An absent `algorithm` is MD5.

    Raises:
        DigestSyntaxError: a parameter is missing, twice or malformed, or asks for what we do not offer.
    """
    parameters = _decode_parameters(value)
    try:
        realm, nonce, uri, response, cnonce, nc, qop = _required(parameters)
    except KeyError as error:
        raise DigestSyntaxError(f"no {error.args[0]}") from None
    algorithm = parameters.get("algorithm", "MD5").upper()
    if algorithm not in HASHES:
        raise DigestSyntaxError("an algorithm that we do not have")
    if qop.lower() != "auth":
        raise DigestSyntaxError("another qop than auth")
    if not _COUNT.fullmatch(nc) or nc == "00000000":
        raise DigestSyntaxError("nc is not a count of eight hex digits")
    if parameters.get("userhash", "false").lower() != "false":
        raise DigestSyntaxError("userhash, which is not offered")
    username = parameters.get("username")
    if username is None or "username*" in parameters:
        username = _decode_extended_username(parameters)
    return DigestResponse(username, realm, nonce, uri, response, algorithm, cnonce, nc)


def decode_encoded_username(username: str) -> str:
    """Return a username with the octets decoded that are percent-encoded and not ASCII, as it is if that is no UTF-8.

    curl sends names so from 8.22 on, and computes the response with the name itself. No RFC says so.
    """
    encoded = username.encode("utf-8", "surrogateescape")
    try:
        return _ENCODED.sub(lambda escapes: percent_decode(escapes[0]), encoded).decode("utf-8")
    except UnicodeDecodeError:
        return username


def _decode_parameters(value: bytes) -> dict[str, str]:
    text = value.rstrip(b" \t,").decode("utf-8", "surrogateescape")
    has_pairs = "\\" in text
    # Only few have quoted pairs, and to look for them takes as long as all the rest.
    found = (_PARAMETER_WITH_PAIRS if has_pairs else _PARAMETER).findall(text)
    parameters = {name.lower(): quoted or word for name, quoted, word in found}
    if "" in parameters:
        raise DigestSyntaxError("not a list of parameters")
    if len(parameters) < len(found):
        raise DigestSyntaxError("a parameter is there twice")
    if has_pairs:
        parameters = {name: unquote_string(quoted) for name, quoted in parameters.items()}
    return parameters


def _decode_extended_username(parameters: Mapping[str, str]) -> str:
    match = _EXTENDED.fullmatch(parameters.get("username*", ""))
    if match is None or "username" in parameters:
        raise DigestSyntaxError("no username, or username* beside it or malformed")
    try:
        return percent_decode(match[1].encode()).decode("utf-8")
    except UnicodeDecodeError:
        raise DigestSyntaxError("username* is not UTF-8") from None


class DigestChallenge(Struct, frozen=True):
    """What a server asks a client to answer (RFC 7616 §3.3). `algorithm` is a key of `HASHES`."""

    realm: str
    nonce: str
    algorithm: str = "MD5"
    opaque: str | None = None
    stale: bool = False


_STRENGTH = ("MD5", "SHA-256")
"""The algorithms, the weakest first (RFC 7616 §3.7: a client takes the strongest that it has)."""


def choose_challenge(challenges: Iterable[Challenge]) -> DigestChallenge | None:
    """Return the challenge to answer: the first of those with the strongest algorithm that we have.

    Challenges that do not offer `qop="auth"` are passed over: without it an answer is good for any body and any time.
    """
    usable = [usable for one in challenges if (usable := _read_challenge(one)) is not None]
    return max(usable, key=lambda one: _STRENGTH.index(one.algorithm), default=None)


def _read_challenge(challenge: Challenge) -> DigestChallenge | None:
    told = challenge.parameters
    algorithm = told.get("algorithm", "MD5").upper()
    offers_auth = "auth" in [word.strip().lower() for word in told.get("qop", "").split(",")]
    if challenge.scheme != "digest" or algorithm not in HASHES or not offers_auth or not {"realm", "nonce"} <= {*told}:
        return None
    stale = told.get("stale", "").lower() == "true"
    return DigestChallenge(told["realm"], told["nonce"], algorithm, told.get("opaque"), stale)


def answer_challenge(  # noqa: PLR0913 - so many things are hashed
    challenge: DigestChallenge, username: str, ha1: str, *, method: str, uri: str, count: int, cnonce: str
) -> DigestResponse:
    """Return what proves to a server that we know the password (RFC 7616 §3.4).

    Args:
        challenge: what it asked.
        username: whose password it is.
        ha1: H(A1) with the challenge's realm and algorithm.
        method: that of the request.
        uri: the target of the request as it stands in its first line.
        count: how often we have used the nonce, with this time.
        cnonce: some text of ours that the server could not foresee.
    """
    nc = f"{count:08x}"
    shown = DigestResponse(username, challenge.realm, challenge.nonce, uri, "", challenge.algorithm, cnonce, nc)
    return replace(shown, response=response_hash(shown, ha1, method))


def encode_digest_response(shown: DigestResponse, opaque: str | None) -> bytes:
    """Return the value of `Authorization`. A user's name is sent in UTF-8, as curl and browsers do."""
    parameters = {
        "username": _quote(shown.username),
        "realm": _quote(shown.realm),
        "nonce": _quote(shown.nonce),
        "uri": _quote(shown.uri),
        "response": _quote(shown.response),
        "algorithm": shown.algorithm,
        "cnonce": _quote(shown.cnonce),
        "nc": shown.nc,
        "qop": "auth",
    }
    if opaque is not None:
        parameters["opaque"] = _quote(opaque)
    return f"Digest {', '.join(f'{name}={value}' for name, value in parameters.items())}".encode()


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ServerNotProvenError(ValueError):
    """A server does not know the password, or its answer is to another request."""


def check_info(value: bytes, shown: DigestResponse, ha1: str) -> str | None:
    """Check that an `Authentication-Info` is by somebody who knows the password; return the nonce to use next, if any.

    `rspauth` need not be there (RFC 7616 §3.5), but what is there has to be right.

    Raises:
        ServerNotProvenError: it is not.
    """
    try:
        told = _decode_parameters(value)
    except DigestSyntaxError as error:
        raise ServerNotProvenError(f"its Authentication-Info is malformed: {error}") from None
    if "rspauth" in told:
        expected = {"rspauth": response_hash(shown, ha1, ""), "cnonce": shown.cnonce, "nc": shown.nc, "qop": "auth"}
        for name, value_of in expected.items():
            # Some servers leave out what we know anyhow; rspauth is made of it.
            if not hmac.compare_digest(told.get(name, value_of).lower().encode(), value_of.lower().encode()):
                raise ServerNotProvenError(f"its {name} is wrong")
    return told.get("nextnonce")


class Nonce(Struct, frozen=True):
    """A nonce of ours: what tells it from others, and when it ends, in seconds since the epoch."""

    identity: bytes
    expires: float


_STAMP_BYTES, _RANDOM_BYTES, _MAC_BYTES = 8, 9, 16  # 33 bytes: a multiple of three needs no padding in base64
_SIGNED_BYTES = _STAMP_BYTES + _RANDOM_BYTES


def make_nonce(key: bytes, *, expires: float) -> str:
    """Make a nonce that whoever has the key knows for ours, without having kept it (RFC 7616 §3.3).

    It carries its end, not its beginning: a nonce that has died stays dead, whatever the settings become.

    Args:
        key: a secret.
        expires: when it ends, in seconds since the epoch.
    """
    signed = round(expires * 1000).to_bytes(_STAMP_BYTES) + secrets.token_bytes(_RANDOM_BYTES)
    return urlsafe_b64encode(signed + _mac(key, signed)).decode("ascii")


@lru_cache(maxsize=1024)
def check_nonce(key: bytes, text: str) -> Nonce | None:
    """Return the nonce that `make_nonce` made with this key, None if it did not make this one."""
    try:
        raw = decode_base64url(text.encode("ascii"))
    except ValueError:
        return None
    signed, mac = raw[:_SIGNED_BYTES], raw[_SIGNED_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, signed)):
        return None
    return Nonce(signed[_STAMP_BYTES:], int.from_bytes(signed[:_STAMP_BYTES]) / 1000)


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")[:_MAC_BYTES]

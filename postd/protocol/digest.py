"""Digest access authentication: hashes, syntax and nonces (RFC 7616; qop=auth only).

Text is hashed as UTF-8, as today's clients do without a `charset` parameter (RFC 7616 §4), also by clients that send
the user name in ISO-8859-1.
"""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from postd.protocol.base64url import decode_base64url
from postd.protocol.challenge import Challenge, unquote_string
from postd.protocol.password import decode_text
from postd.protocol.percent import percent_decode


def allowed_hash(constructor: Any) -> Any:
    """Return a constructor of hashes; if FIPS 140 forbids it, one that says that no security depends on the hash."""
    try:
        constructor()
    except ValueError:
        return partial(constructor, usedforsecurity=False)
    return constructor  # without the argument, a hash takes two thirds of the time


HASHES: Mapping[str, Any] = MappingProxyType({"MD5": allowed_hash(hashlib.md5), "SHA-256": hashlib.sha256})
"""The supported algorithms by their registered names (RFC 7616 §6.1), the weakest first. Neither MD5 nor SHA-256 is a
password hash: an H(A1) must be kept as secret as the password."""

ALGORITHMS_BY_DIGITS: Mapping[int, str] = MappingProxyType(
    {2 * constructor().digest_size: name for name, constructor in HASHES.items()}
)
"""The algorithms by the number of hex digits of their hashes."""


def h_a1(algorithm: str, username: str, realm: str, password: str) -> str:
    """Return H(A1) in lower-case hex, which a server stores in place of the password (RFC 7616 §3.4.2)."""
    return _hash(algorithm, f"{username}:{realm}:{password}".encode())


@lru_cache(maxsize=1024)
def _h_a2(algorithm: str, method: str, uri: str) -> bytes:
    return _hash(algorithm, f"{method}:{uri}".encode(errors="surrogateescape")).encode("ascii")


def _hash(algorithm: str, data: bytes) -> str:
    hashed: str = HASHES[algorithm](data).hexdigest()
    return hashed


def check_realm(realm: str) -> str:
    """Return a protection realm if every client handles it.

    Raises:
        ValueError: a challenge cannot hold it, or only with escapes, which requests, httpx, wget and urllib get wrong.
    """
    if not realm or not realm.isascii() or not realm.isprintable() or set(realm) & set('"\\'):
        raise ValueError(f'{realm!r} is not a realm: printable ASCII characters without " and \\, at least one')
    return realm


class DigestSyntaxError(ValueError):
    """Malformed or unsupported Digest credentials; `str()` gives the reason, for the log."""


class DigestResponse(Struct, frozen=True):
    """The parameters of a client's `Authorization: Digest` (RFC 7616 §3.4).

    `nc` and `cnonce` are kept as sent, because both are hashed and echoed in `Authentication-Info`. Bytes that are not
    UTF-8 are surrogate escapes, but in `username` (`decode_text`). `algorithm` is a key of `HASHES`.
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


def response_hash(parameters: DigestResponse, ha1: str, method: str) -> str:
    """Return the `response` that proves knowledge of the password (RFC 7616 §3.4.1), in lower-case hex.

    With an empty `method` it is `rspauth`, the server's proof (§3.5; spec: Digest).

    Args:
        parameters: the parameters of the field that was sent or is to be sent; `response` among them is not used.
        ha1: H(A1).
        method: the method of the request.
    """
    ha2 = _h_a2(parameters.algorithm, method, parameters.uri)
    return _hash(parameters.algorithm, _before_ha2(parameters, ha1) + ha2)


def response_hashes(parameters: DigestResponse, ha1: str, method: str) -> tuple[str, str]:
    """Return the `response` of a client that knows the password, and the server's `rspauth` (`response_hash`)."""
    algorithm, uri, before = parameters.algorithm, parameters.uri, _before_ha2(parameters, ha1)
    make = HASHES[algorithm]
    expected = make(before + _h_a2(algorithm, method, uri)).hexdigest()
    return expected, make(before + _h_a2(algorithm, "", uri)).hexdigest()


def _before_ha2(parameters: DigestResponse, ha1: str) -> bytes:
    text = f"{ha1}:{parameters.nonce}:{parameters.nc}:{parameters.cnonce}:auth:"
    return text.encode(errors="surrogateescape")


_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_PLAIN = r'[^"\\\x00-\x08\x0a-\x1f\x7f]*+'
_WITH_PAIRS = rf"{_PLAIN}(?:\\[^\x00-\x08\x0a-\x1f\x7f]{_PLAIN})*"
# The last branch takes all that is not a parameter at once: searching a long word would try each position.
_PARAMETER, _PARAMETER_WITH_PAIRS = (
    re.compile(rf'[ \t,]*+(?:({_WORD})[ \t]*+=[ \t]*+(?:"({quoted})"|({_WORD}))[ \t]*+(?:,|$)|[\s\S]+)')
    for quoted in (_PLAIN, _WITH_PAIRS)
)
_COUNT = re.compile(r"[0-9A-Fa-f]{8}")
_RESPONSE = re.compile("|".join(f"[0-9A-Fa-f]{{{digits}}}" for digits in ALGORITHMS_BY_DIGITS))
_EXTENDED = re.compile(r"UTF-8'[A-Za-z0-9-]*'((?:%[0-9A-Fa-f]{2}|[!#$&+.^_`|~0-9A-Za-z-])*)", re.IGNORECASE)

_ENCODED = re.compile(rb"(?:%[89A-Fa-f][0-9A-Fa-f])+")

_FIRST = "00000001"
_VALUES = re.compile(r'[!#-\[\]-~]+"[0-9A-Fa-f]+')  # what any quoted string may have, unescaped, and hex digits

KEPT_CLIENTS_MAX, KEPT_RESPONSE_MAX_BYTES = 1024, 1024
"""How many clients a `DigestDecoder` keeps, and the longest response of one."""

_required = itemgetter("realm", "nonce", "uri", "response", "cnonce", "nc", "qop")


def decode_digest_response(value: bytes) -> DigestResponse:
    """Decode what follows the scheme's name in `Authorization` (RFC 7616 §3.4, RFC 9110 §11.4).

    Each parameter may be quoted or not, because clients differ (requests quotes `qop` and `nc`). Without `algorithm`,
    it is MD5.

    Raises:
        DigestSyntaxError: a parameter is missing, duplicate, malformed or not supported.
    """
    parameters = _decode_parameters(value)
    try:
        realm, nonce, uri, response, cnonce, nc, qop = _required(parameters)
    except KeyError as error:
        raise DigestSyntaxError(f"no {error.args[0]}") from None
    algorithm = parameters.get("algorithm", "MD5").upper()
    if algorithm not in HASHES:
        raise DigestSyntaxError("an unsupported algorithm")
    if qop.lower() != "auth":
        raise DigestSyntaxError("another qop than auth")
    if not _COUNT.fullmatch(nc):
        raise DigestSyntaxError("nc is not a count of eight hex digits")
    if not _RESPONSE.fullmatch(response):
        raise DigestSyntaxError("response is not a hash in hex digits")
    if parameters.get("userhash", "false").lower() != "false":
        raise DigestSyntaxError("userhash, which is not supported")
    username = parameters.get("username")
    if username is None or "username*" in parameters:
        username = _decode_extended_username(parameters)
    elif not username.isascii():
        username = decode_text(username.encode("utf-8", "surrogateescape"))
    return DigestResponse(username, realm, nonce, uri, response, algorithm, cnonce, nc)


class _KeptResponse(Struct, frozen=True):
    """A decoded response, to decode others of its client: they have other values in the same places.

    Args:
        response: the response.
        length: the length of the whole text, which has a character for each byte.
        same: the text without those values.
        places: where the values of `cnonce`, `nc` and `response` begin and end, in this order.
        cuts: all these numbers, in ascending order.
    """

    response: DigestResponse
    length: int
    same: str
    places: tuple[int, ...]
    cuts: tuple[int, ...]


class DigestDecoder:
    """Decodes responses; the last one of each client is kept, because the next differs in a few values only.

    These are `cnonce`, `nc` and `response`. A response with other differences is decoded like the first one. The first
    one to a nonce is not kept: many clients use each nonce once.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _KeptResponse] = {}  # by the text up to `uri`, which most clients send before them

    def decode(self, value: bytes) -> DigestResponse:
        """Decode a response, as `decode_digest_response`."""
        text = value.decode("latin-1")
        client = text[: text.find('"', text.find('uri="') + len('uri="'))]
        kept = self._kept.get(client)
        if kept is not None and kept.length == len(text):
            a, b, c, d, e, f = kept.cuts
            if f"{text[:a]}{text[b:c]}{text[d:e]}{text[f:]}" == kept.same:
                a, b, c, d, e, f = kept.places
                cnonce, nc, response = text[a:b], text[c:d], text[e:f]
                if _VALUES.fullmatch(f'{cnonce}"{nc}{response}'):
                    last = kept.response
                    return DigestResponse(
                        last.username, last.realm, last.nonce, last.uri, response, last.algorithm, cnonce, nc
                    )
        decoded = decode_digest_response(value)
        if decoded.nc != _FIRST and len(value) <= KEPT_RESPONSE_MAX_BYTES:
            keeping = _keep(text, decoded)
            if keeping is not None:
                if len(self._kept) >= KEPT_CLIENTS_MAX:
                    self._kept.clear()
                self._kept[client] = keeping
        return decoded


def _keep(text: str, decoded: DigestResponse) -> _KeptResponse | None:
    """Return a response to decode others like it; None if it does not show where its values are.

    `text` is the response with a character for each byte.
    """
    values = decoded.cnonce, decoded.nc, decoded.response
    # Without quoted pairs each value stands in the text as it is. Where it stands once, that is its place.
    if "\\" in text or not decoded.cnonce.isascii() or any(text.count(value) != 1 for value in values):
        return None
    places = [at for value in values for at in (text.index(value), text.index(value) + len(value))]
    if text[places[0] - 1 : places[0]] != '"':  # a word may have fewer characters
        return None
    a, b, c, d, e, f = cuts = sorted(places)
    same = f"{text[:a]}{text[b:c]}{text[d:e]}{text[f:]}"
    return _KeptResponse(decoded, len(text), same, tuple(places), tuple(cuts))


def decode_encoded_username(username: str) -> str:
    """Return a user name with its percent-encoded non-ASCII octets decoded (`decode_text`).

    curl from 8.22 on percent-encodes names so, and hashes the name itself; no RFC specifies this.
    """
    return decode_text(_ENCODED.sub(lambda escapes: percent_decode(escapes[0]), username.encode()))


def _decode_parameters(value: bytes) -> dict[str, str]:
    text = value.rstrip(b" \t,").decode("utf-8", "surrogateescape")
    has_pairs = "\\" in text
    # Quoted pairs are rare, and looking for them would double the time.
    found = (_PARAMETER_WITH_PAIRS if has_pairs else _PARAMETER).findall(text)
    parameters = {name.lower(): quoted or word for name, quoted, word in found}
    if "" in parameters:
        raise DigestSyntaxError("not a list of parameters")
    if len(parameters) < len(found):
        raise DigestSyntaxError("a duplicate parameter")
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
    """A server's Digest challenge (RFC 7616 §3.3). `algorithm` is a key of `HASHES`."""

    realm: str
    nonce: str
    algorithm: str = "MD5"
    opaque: str | None = None
    stale: bool = False


def choose_challenge(challenges: Iterable[Challenge]) -> DigestChallenge | None:
    """Return the first challenge with the strongest supported algorithm (RFC 7616 §3.7), None if there is none.

    Challenges without `qop="auth"` are skipped: a response to them could be replayed.
    """
    usable = [usable for challenge in challenges if (usable := _read_challenge(challenge)) is not None]
    return max(usable, key=lambda one: [*HASHES].index(one.algorithm), default=None)


def _read_challenge(challenge: Challenge) -> DigestChallenge | None:
    parameters = challenge.parameters
    algorithm = parameters.get("algorithm", "MD5").upper()
    offers_auth = "auth" in [word.strip().lower() for word in parameters.get("qop", "").split(",")]
    is_complete = {"realm", "nonce"} <= {*parameters}
    if challenge.scheme != "digest" or algorithm not in HASHES or not offers_auth or not is_complete:
        return None
    stale = parameters.get("stale", "").lower() == "true"
    return DigestChallenge(parameters["realm"], parameters["nonce"], algorithm, parameters.get("opaque"), stale)


def answer_challenge(  # noqa: PLR0913 - all of them are hashed
    challenge: DigestChallenge, username: str, ha1: str, *, method: str, uri: str, count: int, cnonce: str
) -> DigestResponse:
    """Return the response of a client to a challenge (RFC 7616 §3.4).

    Args:
        challenge: the server's.
        username: the user's name.
        ha1: H(A1) with the challenge's realm and algorithm.
        method: the method of the request.
        uri: the request target as in the request line.
        count: the number of uses of the nonce, including this one.
        cnonce: the client's nonce, unpredictable to the server.
    """
    nc = f"{count:08x}"
    unsigned = DigestResponse(username, challenge.realm, challenge.nonce, uri, "", challenge.algorithm, cnonce, nc)
    return replace(unsigned, response=response_hash(unsigned, ha1, method))


_UNQUOTED = frozenset({"algorithm", "nc", "qop"})
"""Parameters that must not be quoted (RFC 7616 §3.4)."""


def encode_digest_response(response: DigestResponse, opaque: str | None) -> bytes:
    """Return the value of `Authorization`. The user name is sent in UTF-8, as by curl and browsers."""
    parameters = {**asdict(response), "qop": "auth"} | ({} if opaque is None else {"opaque": opaque})
    sent = (f"{name}={value if name in _UNQUOTED else _quote(value)}" for name, value in parameters.items())
    return f"Digest {', '.join(sent)}".encode()


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ServerAuthenticationError(ValueError):
    """A server's `Authentication-Info` does not prove that it knows the password, or is for another request."""


def check_authentication_info(value: bytes, sent: DigestResponse, ha1: str) -> str | None:
    """Verify the `rspauth` of an `Authentication-Info`; return `nextnonce`, None if there is none.

    `rspauth` is optional (RFC 7616 §3.5).

    Raises:
        ServerAuthenticationError: it is malformed, or `rspauth` is wrong.
    """
    try:
        parameters = _decode_parameters(value)
    except DigestSyntaxError as error:
        raise ServerAuthenticationError(f"its Authentication-Info is malformed: {error}") from None
    if "rspauth" in parameters:
        expected = {"rspauth": response_hash(sent, ha1, ""), "cnonce": sent.cnonce, "nc": sent.nc, "qop": "auth"}
        for name, right in expected.items():
            # Some servers omit cnonce, nc and qop; rspauth covers them.
            if not hmac.compare_digest(parameters.get(name, right).lower().encode(), right.lower().encode()):
                raise ServerAuthenticationError(f"its {name} is wrong")
    return parameters.get("nextnonce")


class Nonce(Struct, frozen=True):
    """A verified nonce: its random identity, and its expiry in seconds since the epoch."""

    identity: bytes
    expires: float


_EXPIRY_BYTES, _RANDOM_BYTES, _MAC_BYTES = 8, 9, 16  # 33 bytes: a multiple of three needs no padding in base64
_SIGNED_BYTES = _EXPIRY_BYTES + _RANDOM_BYTES


def make_nonce(key: bytes, *, expires: float) -> str:
    """Return a new signed nonce, which any holder of the key can verify without storing it (RFC 7616 §3.3).

    It holds its expiry rather than its start, so that a changed lifetime does not revive an expired nonce.

    Args:
        key: the signing key, a secret.
        expires: its expiry, in seconds since the epoch.
    """
    signed = round(expires * 1000).to_bytes(_EXPIRY_BYTES) + secrets.token_bytes(_RANDOM_BYTES)
    return urlsafe_b64encode(signed + _mac(key, signed)).decode("ascii")


@lru_cache(maxsize=1024)
def check_nonce(key: bytes, text: str) -> Nonce | None:
    """Return a nonce made by `make_nonce` with this key, None for any other text."""
    try:
        raw = decode_base64url(text.encode("ascii"))
    except ValueError:
        return None
    signed, mac = raw[:_SIGNED_BYTES], raw[_SIGNED_BYTES:]
    if not hmac.compare_digest(mac, _mac(key, signed)):
        return None
    return Nonce(signed[_EXPIRY_BYTES:], int.from_bytes(signed[:_EXPIRY_BYTES]) / 1000)


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")[:_MAC_BYTES]

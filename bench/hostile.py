"""Hostile input: each field that a server reads or logs, filled with patterns of the delimiters that parsers know.

A pattern repeats one character, alternates two, puts one before many of another, or nests them. Such texts take a
backtracking regular expression, or a loop that starts anew at each delimiter, more than linear time.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

from bench.soaking.logins import FORM, basic_field, digest_field
from bench.soaking.server import PASSWORD, USERS
from bench.soaking.wire import encode_request

SEPARATORS = '=?&;#,:/@"\\%. '
"""Delimiters of request targets, header fields, credentials and JSON; there is a pattern for each pair."""

UNITS = (
    *"!$'()*+-<>[]^_`{|}~\t0a\xff",
    "a=",
    "a,",
    'a"',
    "%25",
    "%3F",
    "\\u0000",
    "\xc3\xa9",
    "\xcc\x80\xcc\x96",
    "eyJ.",
)
"""Further texts to repeat. The last but one is two combining characters, which Unicode normalization has to sort."""

NESTS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))

_JSON = "Content-Type: application/json"
_WRITER = basic_field(USERS[0], PASSWORD)
_BOUND = "Authorization: DPoP eyJhbGciOiJFUzI1NiJ9.e30.AAAA"


def _field(name: str, method: str = "GET", target: str = "/post/1", *others: str) -> Callable[[str], bytes]:
    return lambda text: encode_request(method, target, [*others, f"{name}{text}"])


def _login(form: str) -> Callable[[str], bytes]:
    return lambda text: encode_request("POST", "/login", [FORM], form.replace("TEXT", text).encode("latin-1"))


def _body(body: str) -> Callable[[str], bytes]:
    return lambda text: encode_request("POST", "/post", [_JSON, _WRITER], body.replace("TEXT", text).encode("latin-1"))


def _digest(text: str) -> bytes:
    return encode_request("GET", "/any", [digest_field((text, PASSWORD), "GET", "/any", "0", 1)[0]])


def _basic(text: str) -> bytes:
    user_pass = base64.b64encode(text.encode("latin-1")).decode()
    # Cut to the same length: Base64 is a third longer.
    return encode_request("GET", "/any", [f"Authorization: Basic {user_pass[: len(text)]}"])


def _logged(text: str) -> bytes:
    part = text[: len(text) // 3]
    return encode_request("GET", f"/post/1?{part}", [f"Referer: {part}", f"User-Agent: {part}"])


def _chunks(text: str) -> bytes:
    fields = [_JSON, _WRITER, "Transfer-Encoding: chunked"]
    return encode_request("POST", "/post", fields) + f"1;{text[:4000]}\r\n{{\r\n0\r\n\r\n".encode("latin-1")


LOGGED: Mapping[str, Callable[[str], bytes]] = {
    "path": lambda text: encode_request("GET", f"/{text}"),
    "query": lambda text: encode_request("GET", f"/post/1?{text}"),
    "Referer": _field("Referer: "),
    "User-Agent": _field("User-Agent: "),
    "all that is logged": _logged,
}
"""Functions that make a request with a text in a field, by the name of the field: those of the access log."""

FIELDS: Mapping[str, Callable[[str], bytes]] = {
    **LOGGED,
    "limit": lambda text: encode_request("GET", f"/post?limit={text}"),
    "field name": _field(""),
    "Host": _field("Host: "),
    "X-Request-Id": _field("X-Request-Id: "),
    "X-Forwarded-For": _field("X-Forwarded-For: ", "GET", "/any"),
    "X-Forwarded-Proto": _field("X-Forwarded-Proto: ", "GET", "/any"),
    "Accept": _field("Accept: ", "GET", "/any"),
    "Accept-Encoding": _field("Accept-Encoding: ", "GET", "/post"),
    "If-None-Match": _field("If-None-Match: "),
    "If-Match": _field("If-Match: ", "DELETE", "/post/0", _WRITER),
    "Idempotency-Key": _field("Idempotency-Key: ", "POST", "/post", _WRITER, _JSON),
    "Content-Type": _field("Content-Type: ", "POST", "/post", _WRITER),
    "Last-Event-ID": _field("Last-Event-ID: ", "HEAD", "/post/events"),
    "Origin": _field("Origin: ", "POST", "/logout"),
    "Cookie": _field("Cookie: ", "GET", "/home"),
    "session": _field("Cookie: session=", "GET", "/home"),
    "Authorization": _field("Authorization: ", "GET", "/any"),
    "Basic": _field("Authorization: Basic ", "GET", "/any"),
    "Basic name": _basic,
    "Digest": _field("Authorization: Digest ", "GET", "/any"),
    "Digest name": _digest,
    "Bearer": _field("Authorization: Bearer ", "GET", "/any"),
    "Bearer JWT": _field("Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.", "GET", "/any"),
    "DPoP": _field("DPoP: ", "GET", "/any", _BOUND),
    "DPoP claims": _field("DPoP: eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2In0.", "GET", "/any", _BOUND),
    "form": _login("TEXT"),
    "form name": _login("username=TEXT"),
    "body": _body("TEXT"),
    "post": _body('{"post": "TEXT"}'),
    "chunk extension": _chunks,
}
"""As `LOGGED`, for all fields that a server with the settings of the soak test reads or logs."""


def patterns(size: int) -> Iterator[tuple[str, str]]:
    """Yield each pattern's name, and its text of `size` characters, each a byte in ISO 8859-1."""
    for unit in (*SEPARATORS, *UNITS):
        yield f"{unit!r} repeated", (unit * size)[:size]
    for first, second in permutations(SEPARATORS, 2):
        yield f"{first!r} and {second!r} in turn", ((first + second) * size)[:size]
        yield f"{first!r} before {second!r} repeated", first + second * (size - 1)
    for opening, closing in NESTS:
        yield f"{opening + closing!r} nested", opening * (size // 2) + closing * (size - size // 2)


def harmless(size: int) -> str:
    """Return a text of the same size without delimiters."""
    return ("abcdefghijklmnopqrstuvwxyz" * size)[:size]

"""The CPU time for input of a peer grows linearly with its length (reference: Safe by default).

Each parser and pattern that sees bytes of a peer gets a family of inputs: a character repeated, two that alternate,
after prefixes that are valid, and with a suffix that is not.
"""

import importlib
import itertools
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.logger import LogEvent

import postd
from postd.cli.post_lines import LINE_MAX_BYTES, decode_post
from postd.client.responses import decode_problem
from postd.daemon.log import FORMATS
from postd.net.proxy_protocol import ProxyProtocolEndpoint
from postd.protocol.cbor import measure_cbor
from postd.protocol.certificate import decode_client_cert
from postd.protocol.challenge import decode_challenges
from postd.protocol.digest import (
    ServerAuthenticationError,
    check_authentication_info,
    choose_challenge,
    decode_digest_response,
)
from postd.protocol.discovery import freshness_s
from postd.protocol.dpop import ProofError, decode_proof
from postd.protocol.event_stream import EventDecoder, EventStreamError
from postd.protocol.http1.chunked import EXTENSIONS_MAX_BYTES, ChunkedDecoder
from postd.protocol.http1.head import PartialHead
from postd.protocol.http1.syntax import HEAD_MAX_BYTES, HttpSyntaxError
from postd.protocol.jwk import KeySetError, decode_key_set
from postd.protocol.jwt import TokenError, decode_jwt
from postd.protocol.password import PASSWORD_MAX_CHARS, normalize
from postd.protocol.webauthn import RelyingParty, WebAuthnError, decode_assertion
from tests.cases import each
from tests.helpers import IS_THOROUGH, InMemoryApi
from tests.issuer import Key, Prover, b64
from tests.linear import HARMLESS_MAX, Input, check_linear, quietly
from tests.web.clients import Proof, basic, make_api
from tests.web.wire import FORM, Exchange
from tests.web.wire import begin as ask

KIB = 1024
DELIMITERS = '",;=&%/ '
OTHERS = [
    b"!",
    b"(",
    b"+",
    b"-",
    b".",
    b":",
    b"?",
    b"@",
    b"[",
    b"\\",
    b"{",
    b"~",
    b"\t",
    b"a",
    b"0",
    b"\xff",
    b"\xc3\xa9",
][:: 1 if IS_THOROUGH else 3]
PAIRS = [f"{one}{two}".encode() for one, two in itertools.permutations(DELIMITERS, 2)][:: 1 if IS_THOROUGH else 15]


def family(begins: Sequence[bytes] = (), units: Sequence[bytes] = ()) -> Iterator[Input]:
    delimiters = [one.encode() for one in DELIMITERS]
    for begin in (b"", *begins):
        yield from (Input(begin, unit) for unit in (*units, *delimiters, *OTHERS, *PAIRS))
        yield from (Input(begin, unit, b"a") for unit in (*units, *delimiters))


# Requests

SETTINGS = """\
trusted_proxies = ["127.0.0.1"]
[api]
read = ["open"]
cors_origins = ["https://a.example"]
[[page]]
path = "/all"
schemes = ["digest", "bearer", "basic", "session"]
[[page]]
path = "/files"
schemes = ["basic"]
files = "FILES"
[[page]]
path = "/gate"
schemes = ["session"]
forward = true
[[bearer]]
issuer = "https://idp.example"
audience = "https://posts.example"
dpop = "accept"
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InMemoryApi]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "file").write_bytes(b"x" * 1000)
    api = make_api(folder, SETTINGS.replace("FILES", str(folder)))
    api.add("one")
    yield api
    api.close()


def answer(api: InMemoryApi, asked: Exchange) -> None:
    assert asked.has_begun or api.clock.getDelayedCalls()
    api.clock.advance(1)  # the access log, too
    asked.disconnect()


def with_field(api: InMemoryApi, path: str, name: str, fields: Mapping[str, Any], text: bytes) -> None:
    answer(api, ask(api, "GET", path, headers={**fields, name: text}))


FIELDS: Sequence[tuple[str, str, Sequence[bytes]]] = (
    ("/post", "Accept", (b"text/html;q=0.",)),
    ("/post", "Accept-Encoding", (b"gzip;q=0.", b"gzip ")),
    ("/post", "Access-Control-Request-Method", ()),
    ("/post", "Connection", (b"close,",)),
    ("/post", "Cookie", (b"session=", b"session=a; ")),
    ("/post", "Expect", ()),
    ("/post", "Host", (b"[", b"a:")),
    ("/post", "If-Match", (b'"a"', b'W/"a" ,')),
    ("/post", "If-None-Match", (b'"a"', b'W/"a" ,')),
    ("/post", "Origin", (b"https://",)),
    ("/post", "Referer", (b"http://x/", b"http://")),
    ("/post", "Sec-Fetch-Site", ()),
    ("/post", "Transfer-Encoding", (b"chunked,", b"chunked ")),
    ("/post", "Content-Length", (b"0",)),
    ("/post", "User-Agent", (b"curl/8 ", b"a/1.")),
    ("/post", "X-Anything", ()),
    ("/post", "X-Forwarded-For", (b"[",)),
    ("/post", "X-Forwarded-Proto", ()),
    ("/post", "X-Request-Id", (b"eyJ",)),
    ("/post/events", "Last-Event-ID", (b"0",)),
    ("/all", "Accept", (b"text/html;q=0.", b"text/html;", b"text/html ")),
    ("/all", "Cookie", (b"session=",)),
    ("/files/file", "Range", (b"bytes=", b"bytes=0-1", b"bytes=0-1,")),
    ("/files/file", "If-Range", ()),
    ("/files/file", "If-Modified-Since", ()),
    ("/gate", "Accept", (b"text/html;q=0.", b"text/html;", b"text/html ")),
    ("/gate", "X-Forwarded-Host", (b"[", b"a:")),
    ("/gate", "X-Forwarded-Method", ()),
    ("/gate", "X-Forwarded-Uri", (b"/", b"/?")),
)
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "/files/file": basic(),
    "/gate": {"Accept": "text/html", "X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/"},
}
"""The fields that a request has beside that of a test, by its path."""


@each("path, name, begins", FIELDS, ids=[f"{name}{path}" for path, name, _ in FIELDS])
def test_request_field_is_linear(api: InMemoryApi, path: str, name: str, begins: Sequence[bytes]) -> None:
    work = partial(with_field, api, path, name, BESIDE.get(path, {}))
    check_linear(work, family(begins), HEAD_MAX_BYTES - 300, harmless_max=HARMLESS_MAX)


@each("scheme", ["Basic ", "Digest ", 'Digest username="', "Digest a=b,", "Bearer ", "Bearer eyJ", "x"])
def test_credentials_are_linear(api: InMemoryApi, scheme: str) -> None:
    work = partial(with_field, api, "/all", "Authorization", {})
    inputs = (Input(scheme.encode() + one.begin, one.unit, one.tail) for one in family())
    check_linear(work, inputs, 8 * KIB, harmless_max=HARMLESS_MAX)


PROVER = Prover(Key.make("ES256"))
HEADER = b64(json.dumps(PROVER.header()).encode()).encode() + b"."


@each("begin", [b"", b"eyJ", HEADER, HEADER + b"e30.", HEADER + b"eyJqdGkiOiI"])
def test_proof_is_linear(api: InMemoryApi, begin: bytes) -> None:
    work = partial(with_field, api, "/all", "DPoP", {"Authorization": "DPoP eyJhbGciOiJFUzI1NiJ9.e30.AAAA"})
    inputs = (Input(begin + one.begin, one.unit, one.tail) for one in family())
    check_linear(work, inputs, 8 * KIB, harmless_max=HARMLESS_MAX)


@each("claim", ["htu", "htm", "jti", "iat", "ath", "another"])
def test_forged_proof_with_the_key_of_a_token_is_linear(claim: str) -> None:
    """One who has seen a token and a proof can send its public key, and claims with another signature."""
    url, now = "https://posts.example/post", PROVER.now()
    bound_to, signature = PROVER.confirmation["jkt"], b64(bytes(64))

    def work(text: bytes) -> None:
        claims = PROVER.claims("GET", url, "a-token", **{claim: text.decode("latin-1")})
        body = b64(json.dumps(claims, ensure_ascii=False).encode()).encode()
        with suppress(ProofError):
            proof = decode_proof(HEADER + body + b"." + signature.encode())
            proof.check(method="GET", url=url, token="a-token", bound_to=bound_to, now=now, leeway_s=0)

    begins = (b"http://", b"https://posts.example/", b"https://posts.example:", b"http://[")
    check_linear(work, family(begins, units=[b"%41", b"/..", b"://"]), 5 * KIB, harmless_max=HARMLESS_MAX)


@each("parameter", ["username", "realm", "nonce", "uri", "cnonce", "nc", "response", "username*"])
def test_digest_parameter_is_linear(api: InMemoryApi, parameter: str) -> None:
    proof = Proof(nonce="x", uri="/all")

    def work(text: bytes) -> None:
        quoted = '"' + text.decode("latin-1").replace("\\", "\\\\").replace('"', '\\"') + '"'
        parameters = proof.parameters(**{parameter: quoted})
        value = "Digest " + ", ".join(f"{name}={value}" for name, value in parameters.items())
        answer(api, ask(api, "GET", "/all", headers={"Authorization": value.encode("latin-1")}))

    check_linear(work, family(units=[b"%41", b"\xcc\x81"]), 3 * KIB, harmless_max=HARMLESS_MAX)


@each(
    "path",
    ["", "post/", "post/1", "all/", "files/", "post?", "post?limit=", "post/events?after=", "?next=/", "http://x"],
)
def test_target_is_linear(api: InMemoryApi, path: str) -> None:
    def work(text: bytes) -> None:
        target = text.replace(b" ", b"+").decode("ascii", "ignore")
        begun = path if path.startswith("http:") else f"/{path}"
        answer(api, ask(api, "GET", begun + target))

    check_linear(work, family([b"%"], units=[b"%41", b"/..", b"/a", b"a=b&"]), 8 * KIB - 40, harmless_max=HARMLESS_MAX)


def test_request_line_is_linear(api: InMemoryApi) -> None:
    def work(text: bytes) -> None:
        asked = ask(api, "GET", "/post")
        asked.channel.dataReceived(text + b"\r\n\r\n")
        answer(api, asked)

    check_linear(
        work, family([b"GET ", b"GET / ", b"GET / HTTP/", b"GET / HTTP/1.1\r\n"], [b"a:\r\n", b"\r\n"]), HEAD_MAX_BYTES
    )


@each(
    "path, kind, begins, units",
    [
        ("/post", "application/json", (b'{"post":', b'{"post":"', b"[", b'{"a":'), (b'{"a":', b'"a":1,', b"1,")),
        ("/login", FORM, (b"username=", b"username=a&password="), (b"a=b&", b"%41", b"%cc%81")),
        ("/logout", FORM, (), ()),
    ],
)  # fmt: skip
def test_body_is_linear(
    api: InMemoryApi, path: str, kind: str, begins: Sequence[bytes], units: Sequence[bytes]
) -> None:
    def work(text: bytes) -> None:
        answer(api, ask(api, "POST", path, text, {"Content-Type": kind}))

    check_linear(work, family(begins, units), 16 * KIB if path == "/post" else 8 * KIB, harmless_max=HARMLESS_MAX)


@each("name", ["Content-Type", "Content-Encoding", "Idempotency-Key"])
def test_field_of_a_write_is_linear(api: InMemoryApi, name: str) -> None:
    def work(text: bytes) -> None:
        answer(api, ask(api, "POST", "/post", b"{}", {"Content-Type": "application/json", name: text}))

    begins = (b"application/json;", b"application/json;charset=")
    check_linear(work, family(begins), HEAD_MAX_BYTES - 300, harmless_max=HARMLESS_MAX)


# Pieces

LINES = (
    b"a:\r\n",
    b"1\r\na\r\n",
    b"00000001\r\na\r\n",
    b"1;\r\na\r\n",
    b"1;" + b"a" * 50 + b"\r\na\r\n",
    b"a" * 200 + b":\r\n",
)


@pytest.mark.slow
@each("piece", [1, 5, 1000])
@each("begin", [b"", b"5;", b"4000\r\n", b"0\r\n", b"0\r\na:"])
def test_chunked_body_is_linear_in_pieces_of_any_size(begin: bytes, piece: int) -> None:
    def work(text: bytes) -> None:
        decoder = ChunkedDecoder(64 * KIB, bytes.title)
        with suppress(HttpSyntaxError):
            for start in range(0, len(text), piece):
                decoder.feed(text[start : start + piece])

    size = EXTENSIONS_MAX_BYTES
    check_linear(work, (Input(begin, unit) for unit in (*LINES, b"a", b";", b" ", b"\r\n")), size)


@pytest.mark.slow
@each("piece", [1, 5, 1000])
def test_head_is_linear_in_pieces_of_any_size(piece: int) -> None:
    def work(text: bytes) -> None:
        partial = PartialHead(bytes.title)
        with suppress(HttpSyntaxError):
            for end in range(piece, len(text), piece):
                partial.check(text[:end])

    first = b"GET / HTTP/1.1\r\n"
    begins = (first, first + b"a:", first + b"a" * 100 + b":", b"GET /")
    check_linear(
        work,
        (Input(begin, unit) for begin in begins for unit in (*LINES, b"a", b" ", b"a:" + b"b" * 160 + b"\r\n")),
        4 * KIB,
    )


@pytest.mark.slow
@each("piece", [1, 64 * KIB])
@each("begin", [b"", b"PROXY ", b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xf0"])
def test_proxy_header_is_linear_in_pieces_of_any_size(begin: bytes, piece: int) -> None:
    class Endpoint:
        factory: Any = None

        def listen(self, factory: Any) -> None:
            self.factory = factory

    endpoint: Any = Endpoint()
    ProxyProtocolEndpoint(endpoint).listen(Factory.forProtocol(Protocol))

    def work(text: bytes) -> None:
        protocol, transport = endpoint.factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        for start in range(0, len(text), piece):
            if not transport.disconnecting:
                protocol.dataReceived(text[start : start + piece])

    check_linear(work, (Input(begin, unit) for unit in (b"a", b" ", b"\r", b"1.1.1.1 ", b"\0")), 8 * KIB)


# Input of clients and commands


def decode_events(piece: int, text: bytes) -> None:
    decoder = EventDecoder()
    with suppress(EventStreamError):
        for start in range(0, len(text), piece):
            decoder.decode(text[start : start + piece])


def decode_problem_fields(text: bytes) -> None:
    decode_problem(400, {"retry-after": text.decode("latin-1"), "content-type": "application/problem+json"}, text)


SHOWN = decode_digest_response(Proof(nonce="x").headers()["Authorization"].removeprefix(b"Digest "))


def decode_passkey(text: bytes) -> object:
    return decode_assertion(text.decode("latin-1"), RelyingParty("https://posts.example", "posts.example", "postd"))


DECODERS: Sequence[tuple[Callable[[bytes], object], int, Sequence[bytes], Sequence[bytes]]] = (
    (lambda text: choose_challenge(decode_challenges([text])), 16 * KIB, (b"Digest ", b'a b="', b"a b=c,"), (b"A, ",)),
    (
        quietly(lambda text: check_authentication_info(text, SHOWN, ""), ServerAuthenticationError),
        16 * KIB,
        (b'a="',),
        (),
    ),
    (partial(decode_events, 64 * KIB), 64 * KIB, (b"data:",), (b"\r", b"\n", b"data\n")),
    (lambda text: freshness_s([text.decode("latin-1")]), 16 * KIB, (b"max-age=", b'a="'), ()),
    (decode_problem_fields, 16 * KIB, (b"Mon, ",), (b"[", b'{"a":')),
    (quietly(decode_key_set, KeySetError), 64 * KIB, (b'{"keys":[',), (b"{},", b'{"kty":"EC"},')),
    (quietly(lambda text: decode_jwt(text.decode("latin-1")), TokenError), 8 * KIB, (b"eyJhIjox",), (b"W1tb",)),
    (lambda text: decode_client_cert([text]), 8 * KIB, (b":", b":MII"), ()),
    (quietly(decode_post, ValueError), LINE_MAX_BYTES, (b'{"id":1,"post":"', b"["), (b'{"a":', b'"a":1,', b"1,")),
    (quietly(measure_cbor, ValueError), 8 * KIB, (b"\x99\xff\xff", b"\x9b" + b"\xff" * 8), (b"\x81", b"\x80", b"\xa1")),
    (quietly(decode_passkey, WebAuthnError), 8 * KIB, (b'{"id":"', b"["), (b'{"a":', b'"a":1,')),
)
DECODER_NAMES = (
    "challenges",
    "digest info",
    "events",
    "freshness",
    "problem",
    "keys",
    "jwt",
    "client cert",
    "post line",
    "CBOR",
    "passkey",
)


@each("decode, size, begins, units", DECODERS, ids=DECODER_NAMES)
def test_decoder_is_linear(
    decode: Callable[[bytes], object], size: int, begins: Sequence[bytes], units: Sequence[bytes]
) -> None:
    check_linear(decode, family(begins, units), size)


def test_event_stream_is_linear_byte_by_byte() -> None:
    units = (b"a", b"\r", b"\n", b"\r\n", b"data\n", b":\r", b"\xc3")
    check_linear(
        partial(decode_events, 1), (Input(begin, unit) for begin in (b"", b"data:") for unit in units), 2 * KIB
    )


@each(
    "marks", ["\u0301", "\u0315\u0323", "\u0323\u0315\u05ae", "\u0f73\u0f75", "\u1100\u1161\u11a8", "\uac00\u11a8", "ü"]
)
def test_normalization_is_linear(marks: str) -> None:
    def work(text: bytes) -> None:
        for _ in range(10):
            normalize("a" + (marks * len(text))[: len(text)])
            half = len(text) // 2
            normalize("a" + marks[0] * half + marks[-1] * half)

    check_linear(work, iter([Input(b"", b"a")]), PASSWORD_MAX_CHARS)


@each("form", FORMATS.values(), ids=FORMATS)
def test_log_line_is_linear(form: Callable[[LogEvent], str | None]) -> None:
    def work(text: bytes) -> None:
        shown = text.decode("latin-1")
        form({"log_format": "{shown}", "shown": shown, "log_time": 0.0})

    check_linear(work, family(units=[b"\x1b", b"\n", b"\x85", b"}"]), 8 * KIB)


def is_group_without_backtracking(parsed: Any) -> bool:
    """Tell whether a parsed pattern has an atomic group, or a possessive quantifier behind more than one character."""
    for operator, argument in parsed:
        if str(operator) == "ATOMIC_GROUP":
            return True
        if str(operator) == "POSSESSIVE_REPEAT" and argument[2].getwidth() != (1, 1):
            return True
        inner = argument if isinstance(argument, tuple) else (argument,)
        for one in itertools.chain.from_iterable(part if isinstance(part, list) else [part] for part in inner):
            if hasattr(one, "getwidth") and is_group_without_backtracking(one):
                return True
    return False


def test_no_pattern_has_a_group_without_backtracking() -> None:
    """Up to Python 3.11.4, which Debian 12 has, such groups match what they should not (python/cpython#106052)."""
    parse = importlib.import_module("re._parser").parse
    assert is_group_without_backtracking(parse("(a|b+)?+"))
    assert is_group_without_backtracking(parse("(?:x(?>ab))"))
    assert not is_group_without_backtracking(parse("(?:[ab]++)?"))
    for info in pkgutil.walk_packages(postd.__path__, "postd."):
        for name, value in vars(importlib.import_module(info.name)).items():
            for pattern in value if isinstance(value, tuple) else (value,):
                if isinstance(pattern, re.Pattern):
                    parsed = parse(pattern.pattern, pattern.flags)
                    assert not is_group_without_backtracking(parsed), f"{info.name}.{name}"

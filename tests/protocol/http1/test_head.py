"""Heads, each with one interpretation or refused (RFC 9112); tests/front has whole connections."""

import tracemalloc
from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import pytest

from postd.protocol.http1.head import (
    KEPT_FIELDS_MAX,
    KEPT_MAX_BYTES,
    TARGET_MAX_BYTES,
    Head,
    HeadDecoder,
    PartialHead,
    decode_head,
    decode_method_and_target,
)
from postd.protocol.http1.syntax import FIELDS_MAX, HEAD_MAX_BYTES, HttpSyntaxError
from tests.cases import each
from tests.protocol.http1.helpers import refusal, title


def decode(first: str, *fields: str, host: str = "Host: x") -> Head:
    return decode_head("\r\n".join([first, *filter(None, [host]), *fields]).encode("latin-1"), title)


def test_plain_head_is_decoded() -> None:
    head = decode("GET /post?limit=5 HTTP/1.1", "accept:  text/html \t", "ACCEPT: */*", "X-Empty:")
    assert (head.method, head.target, head.path, head.minor) == (b"GET", b"/post?limit=5", b"/post", 1)
    assert head.fields == {b"Host": [b"x"], b"Accept": [b"text/html", b"*/*"], b"X-Empty": [b""]}
    assert (head.length, head.persistent, head.expects_continue) == (0, True, False)


@each(
    "first, minor, persistent",
    [("GET / HTTP/1.1", 1, True), ("GET / HTTP/1.0", 0, False), ("GET / HTTP/1.9", 1, True)],
)
def test_minor_version_and_persistence(first: str, minor: int, persistent: bool) -> None:  # noqa: FBT001
    head = decode(first)
    assert (head.minor, head.persistent) == (minor, persistent)


@each(
    "first, status",
    [
        *((f"GET / HTTP/{version}", 505) for version in ("2.0", "0.9", "3.0", "9.9")),
        *((f"GET / {version}", 400) for version in ("HTTP/1", "HTTP/1.10", "http/1.1", "HTTP/1.1 ", "HTTP/x.1", "1.1")),
        *((f"{method} / HTTP/1.1", 400) for method in ("", "G(T", "GET\t", "G\xcbT", '"GET"')),
        *((f"{first} HTTP/1.1", 400) for first in ("GET", "GET  /", "GET / x", " GET /", "GET /\t", "GET /a#b")),
        *((f"GET {target} HTTP/1.1", 400) for target in ("*", "x", "x:80", "ftp://x/", "http://", "http://u@x/")),
        *((f"GET {target} HTTP/1.1", 400) for target in ("http:///", "http://x y/", "http://x:99999/")),
        ("", 400),
        ("GET /\xe9 HTTP/1.1", 400),
        ("CONNECT x:80 HTTP/1.1", 501),
        ("A" * 33 + " / HTTP/1.1", 501),
        ("GET /" + "a" * TARGET_MAX_BYTES + " HTTP/1.1", 414),
        ("GET /" + "a" * HEAD_MAX_BYTES + " HTTP/1.1", 414),
    ],
)
def test_malformed_request_line_is_refused(first: str, status: int) -> None:
    assert refusal(lambda: decode(first)) == status


def test_absolute_form_replaces_the_host() -> None:
    head = decode("GET http://other:81/a/b?c HTTP/1.1")
    assert (head.path, head.target, head.fields[b"Host"]) == (b"/a/b", b"http://other:81/a/b?c", [b"other:81"])
    assert decode("GET HTTPS://other HTTP/1.1").path == b"/"
    assert decode("GET http://other?c HTTP/1.1").path == b"/"
    assert decode("OPTIONS * HTTP/1.1").path == b"*"


@each("host", ["", "x", "x:", "x:65535", "127.0.0.1:80", "[::1]:80", "a_b.example.", "a,b", "%C3%A9"])
def test_valid_host_is_accepted(host: str) -> None:
    assert decode("GET / HTTP/1.1", host=f"Host: {host}").fields[b"Host"] == [host.encode()]


@each("host", ["[fe80::1%eth0]", "[fe80::1%25eth0]:8080"])
def test_zone_of_an_address_is_named(host: str) -> None:
    """Some clients, such as aiohttp and httpx, send it, against RFC 6874 §4; nginx 1.29.4 refuses it, too."""
    with pytest.raises(HttpSyntaxError, match="an IPv6 address without a zone"):
        decode("GET / HTTP/1.1", host=f"Host: {host}")


@each("host", ["a b", "a/b", "a@b", "[::1", "x:y", "x:65536", "x:123456", "\xe9", "[x]", "%zz"])
def test_invalid_host_is_refused(host: str) -> None:
    assert refusal(lambda: decode("GET / HTTP/1.1", host=f"Host: {host}")) == 400
    assert refusal(lambda: decode("GET http://y/ HTTP/1.1", host=f"Host: {host}")) == 400
    assert refusal(lambda: decode("GET / HTTP/1.0", host=f"Host: {host}")) == 400


@each("first", ["GET / HTTP/1.1", "GET http://x/ HTTP/1.1"])
def test_exactly_one_host_is_required(first: str) -> None:
    assert refusal(lambda: decode(first, host="")) == 400
    assert refusal(lambda: decode(first, "Host: x")) == 400


def test_http_1_0_needs_no_host() -> None:
    assert decode("GET / HTTP/1.0", host="").fields == {}


@each(
    "line",
    [
        "x",
        " x: y",
        "\tx: y",
        "x : y",
        "x\t: y",
        ": y",
        "x y: z",
        "x: \0",
        "x: \x7f",
        "x: a\rb",
        "x: a\nb",
        "\xe9: y",
        "x\n: y",
    ],
)
def test_malformed_field_line_is_refused(line: str) -> None:
    assert refusal(lambda: decode("GET / HTTP/1.1", line)) == 400


def test_too_large_head_is_refused() -> None:
    decode("GET / HTTP/1.1", *(f"x: {n}" for n in range(FIELDS_MAX - 1)))
    assert refusal(lambda: decode("GET / HTTP/1.1", *(f"x: {n}" for n in range(FIELDS_MAX)))) == 431
    assert refusal(lambda: decode("GET / HTTP/1.1", "x: " + "y" * HEAD_MAX_BYTES)) == 431


@each(
    "fields, length",
    [
        (["Content-Length: 0"], 0),
        (["Content-Length: 007"], 7),
        (["Content-Length: 12 "], 12),
        (["Content-Length: " + "9" * 5000], int("9" * 20)),
        (["Transfer-Encoding: chunked"], None),
        (["Transfer-Encoding: CHUNKED"], None),
    ],
    ids=["0", "007", "12", "5000 digits", "chunked", "CHUNKED"],
)
def test_body_length(fields: list[str], length: int | None) -> None:
    assert decode("POST / HTTP/1.1", *fields).length == length


@each(
    "fields, status",
    [
        *(
            ([f"Content-Length: {value}"], 400)
            for value in ("", "+5", "-5", "5,5", "5, 5", "0x5", "5 5", "five", "\xb2")
        ),
        (["Content-Length: 5", "Content-Length: 5"], 400),
        (["Content-Length: 5", "Transfer-Encoding: chunked"], 400),
        *(
            ([f"Transfer-Encoding: {value}"], 400)
            for value in ("", "identity", "gzip", "chunked, gzip", "chunked,chunked")
        ),
        *(([f"Transfer-Encoding: {value}"], 400) for value in ("chunked,", ", chunked", "chunked,chunked", "xchunked")),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
        (["Transfer-Encoding: gzip, chunked"], 501),
        (["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"], 501),
        (["Expect: 200-ok"], 417),
        (["Expect: 100-continue, x"], 417),
    ],
)
def test_invalid_framing_is_refused(fields: list[str], status: int) -> None:
    assert refusal(lambda: decode("POST / HTTP/1.1", *fields)) == status


def test_http_1_0_has_no_chunks_and_no_expectations() -> None:
    assert refusal(lambda: decode("POST / HTTP/1.0", "Transfer-Encoding: chunked")) == 400
    assert not decode("POST / HTTP/1.0", "Expect: 100-continue").expects_continue
    assert decode("POST / HTTP/1.1", "Expect: 100-Continue").expects_continue


@each("value", ["close", "Close", "keep-alive, close", "x,close ,y"])
def test_connection_close_ends_persistence(value: str) -> None:
    assert not decode("GET / HTTP/1.1", f"Connection: {value}").persistent
    assert decode("GET / HTTP/1.1", "Connection: closed").persistent


HEAD = b"GET /post HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"


def test_every_prefix_of_a_head_passes() -> None:
    partial = PartialHead(title)
    for length in range(len(HEAD)):
        partial.check(HEAD[:length])
        PartialHead(title).check(HEAD[:length])


@each(
    "begun, status",
    [
        (b"GET / HTTP/1.1\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\n", 400),
        (b"GET / HTTP/1.1\r\nHost\r:", 400),
        (b"\x16\x03\x01", 400),
        (b"GET /" + b"a" * (TARGET_MAX_BYTES + 100), 414),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * HEAD_MAX_BYTES, 431),
    ],
    ids=["lf", "later lf", "cr", "tls", "target", "field"],
)
def test_partial_head_with_an_error_is_refused_at_once(begun: bytes, status: int) -> None:
    assert refusal(lambda: PartialHead(title).check(begun)) == status


@each(
    "head, passes, status",
    [
        (b"GET / HTTP/1.1\r\nHost: x\n", b"GET / HTTP/1.1\r\nHost: x", 400),
        (b"GET / HTTP/1.1\r\nHost x\r\n", b"GET / HTTP/1.1\r\nHost x\r", 400),
        (b"GET / HTTP/2.0\r\n", b"GET / HTTP/2.0\r", 505),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100, 431),
        (b"GET /" + b"a" * TARGET_MAX_BYTES, b"GET /" + b"a" * (TARGET_MAX_BYTES - 1), 414),
    ],
    ids=["lf", "no colon", "version", "fields", "target"],
)
@each("size", [1, 2, 3, 7, 10_000])
def test_partial_head_is_refused_at_the_same_byte_in_any_pieces(
    head: bytes, passes: bytes, status: int, size: int
) -> None:
    partial = PartialHead(title)
    for length in [*range(size, len(passes), size), len(passes)]:
        partial.check(passes[:length])
    assert refusal(lambda: partial.check(head)) == status


def test_longest_head_passes_in_any_pieces() -> None:
    start = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
    head = start + b"y" * (HEAD_MAX_BYTES - len(start))
    decode_head(head, title)
    for end in (b"", b"\r", b"\r\n", b"\r\n\r"):
        PartialHead(title).check(head + end)
    assert refusal(lambda: PartialHead(title).check(head + b"yyyy")) == 431


def test_long_field_names_are_not_cached() -> None:
    def never(_: bytes) -> bytes:
        raise AssertionError

    fields = decode_head(b"GET / HTTP/1.1\r\n" + b"a-" * 50 + b"b: x\r\n" + b"host: x", {b"host": b"Host"}.__getitem__)
    assert fields.fields == {b"A-" * 50 + b"B": [b"x"], b"Host": [b"x"]}
    assert refusal(lambda: decode_head(b"GET / HTTP/1.1\r\n" + b"a " * 50 + b": x", never)) == 400


def test_refused_head_yields_method_and_target_if_well_formed() -> None:
    assert decode_method_and_target(b"GET /a?b HTTP/1.1\r\nx y: z") == (b"GET", b"/a?b")
    for start in (b"", b"GET", b"GET x HTTP/1.1", b"G(T / HTTP/1.1"):
        assert decode_method_and_target(start) == (b"", b"")


def test_repeated_head_is_decoded_once() -> None:
    decoder = HeadDecoder(title)
    head = b"GET /a HTTP/1.1\r\nHost: x"
    decoded = decoder.decode(head)
    assert decoder.decode(head) is decoded
    assert decoder.decode(b"GET /b HTTP/1.1\r\nHost: x").fields is decoded.fields
    assert decoder.decode(b"GET /b HTTP/1.1\r\nHost: y").fields == {b"Host": [b"y"]}


LINES = (
    "GET /a HTTP/1.1", "PUT /b?c HTTP/1.1", "GET /a HTTP/1.0", "GET http://y/c HTTP/1.1", "OPTIONS * HTTP/1.1",
    "GET /\0 HTTP/1.1", "GET /a\n HTTP/1.1", "GET  /a HTTP/1.1", "GET /a HTTP/2.0", "G,T /a HTTP/1.1", "", "GET",
    "CONNECT x:1 HTTP/1.1", "GET /\xe9 HTTP/1.1", "GET * HTTP/1.1", f"GET /{'a' * KEPT_MAX_BYTES} HTTP/1.1",
    f"GET /{'a' * TARGET_MAX_BYTES} HTTP/1.1", f"GET /{'a' * HEAD_MAX_BYTES} HTTP/1.1",
    f"{'A' * HEAD_MAX_BYTES} / HTTP/1.1",
)  # fmt: skip
FIELDS = (
    "Host: x", "Host: x\r\nContent-Length: 3\r\nExpect: 100-continue", "Host: x\r\nConnection: close", "Cookie: a",
    "Host: x\r\nTransfer-Encoding: chunked", "Host: x\r\nHost: x", "",
)  # fmt: skip


@each("fields", FIELDS)
def test_heads_with_the_fields_of_the_last_one_are_decoded_as_alone(fields: str) -> None:
    decoder = HeadDecoder(title)
    results: list[list[Any]] = [[], []]
    for first, second in product(LINES, LINES):
        for line in (first, second, second):
            head = f"{line}\r\n{fields}".encode("latin-1")
            for decode_one, found in zip((decoder.decode, lambda head: decode_head(head, title)), results, strict=True):
                try:
                    found.append(decode_one(head))
                except HttpSyntaxError as error:
                    found.append((error.status, error.why))
    assert results[0] == results[1]


AUTHORIZED = [
    f"{line}\r\n{before}Authorization:{value}{after}".encode("latin-1")
    for line in ("GET /a HTTP/1.1", "GET /b HTTP/1.1", "GET http://y/c HTTP/1.1")
    for before in ("", "Host: x\r\n", "Host: x\r\nauthorization: z\r\n")
    for value in (" a", "\tb ", " a\nHost: x", " a\rHost: x", "\xe9")
    for after in ("", "\r\nHost: x", "\r\nAuthorization: c", "\r\nContent-Length: 3\r\nConnection: close")
]


def decoding(decode_one: Callable[[bytes], Head], head: bytes) -> Any:
    """Return the decoded head, or the status and the reason of its refusal."""
    try:
        return decode_one(head)
    except HttpSyntaxError as error:
        return error.status, error.why


def test_heads_with_another_authorization_are_decoded_as_alone() -> None:
    alone = {head: decoding(lambda head: decode_head(head, title), head) for head in AUTHORIZED}
    wrong = []
    for first, second in product(AUTHORIZED, AUTHORIZED):
        decoder = HeadDecoder(title)
        decoding(decoder.decode, first)
        if decoding(decoder.decode, second) != alone[second]:
            wrong.append((first, second))
    assert wrong == []


def test_kept_surroundings_of_authorization_are_those_of_the_last_head() -> None:
    """Also after a head that differs in its first line alone."""
    decoder = HeadDecoder(title)
    heads = [
        b"GET %b HTTP/1.1\r\nHost: x\r\nAuthorization: %b" % parts for parts in product((b"/a", b"/b"), (b"c", b"d"))
    ]
    for order in permutations(heads):
        for head in order:
            assert decoding(decoder.decode, head) == decode_head(head, title), order


def test_field_beside_another_authorization_is_decoded_once() -> None:
    decoder = HeadDecoder(title)
    head = b"GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\nAccept: y"
    first, second = (decoder.decode(head % value) for value in (b"Digest 1", b"Digest 22"))
    assert second.fields == {b"Host": [b"x"], b"Authorization": [b"Digest 22"], b"Accept": [b"y"]}
    assert second.fields[b"Accept"] is first.fields[b"Accept"]
    assert first.fields[b"Authorization"] == [b"Digest 1"]


def test_long_head_is_not_kept() -> None:
    decoder = HeadDecoder(title)
    long = b"GET / HTTP/1.1\r\nHost: x\r\nA: "
    long += b"a" * (KEPT_MAX_BYTES + 1 - len(long))
    assert decoder.decode(long) is not decoder.decode(long)
    assert decoder.decode(long[:-1]) is decoder.decode(long[:-1])


def test_forgotten_head_is_decoded_again() -> None:
    decoder = HeadDecoder(title)
    head = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: y"
    first = decoder.decode(head)
    assert decoder.decode(head) is first
    decoder.forget()
    again = decoder.decode(head)
    assert again is not first
    assert again.fields == first.fields


def test_head_with_many_fields_is_not_kept() -> None:
    decoder = HeadDecoder(title)
    most = b"GET / HTTP/1.1\r\nHost: x" + b"".join(b"\r\nA%d:" % n for n in range(KEPT_FIELDS_MAX - 1))
    more = most + b"\r\nB:"
    assert decoder.decode(more) is not decoder.decode(more)
    assert decoder.decode(most) is decoder.decode(most)


def test_kept_head_takes_bounded_memory() -> None:
    head = b"GET / HTTP/1.1\r\nHost: x" + b"".join(b"\r\nA%d:%d" % (n, 1000 + n) for n in range(KEPT_FIELDS_MAX - 1))
    head += b"a" * (KEPT_MAX_BYTES - len(head))
    tracemalloc.start()
    try:
        decoders = [HeadDecoder(title) for _ in range(100)]
        for decoder in decoders:
            decoder.decode(bytes(bytearray(head)))
        assert tracemalloc.get_traced_memory()[0] / len(decoders) < 6 * 1024
    finally:
        tracemalloc.stop()

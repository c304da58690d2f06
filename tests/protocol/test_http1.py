"""Heads and chunks, each read in one way or not at all (RFC 9112); tests/web/server has whole connections."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.http1 import (
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    TARGET_MAX_BYTES,
    BegunHead,
    ChunkedBody,
    Head,
    HttpSyntaxError,
    decode_head,
    decode_start,
)

MAX_BODY_BYTES = 100


def title(name: bytes) -> bytes:
    if not name.replace(b"-", b"").isalnum():
        raise ValueError
    return name.title()


def decode(first: str, *fields: str, host: str = "Host: x") -> Head:
    return decode_head("\r\n".join([first, *filter(None, [host]), *fields]).encode("latin-1"), title)


def refusal(call: Any) -> int:
    with pytest.raises(HttpSyntaxError) as caught:
        call()
    assert caught.value.why.endswith(".")
    return caught.value.status


def test_a_plain_head() -> None:
    head = decode("GET /post?limit=5 HTTP/1.1", "accept:  text/html \t", "ACCEPT: */*", "X-Empty:")
    assert (head.method, head.target, head.path, head.minor) == (b"GET", b"/post?limit=5", b"/post", 1)
    assert head.fields == {b"Host": [b"x"], b"Accept": [b"text/html", b"*/*"], b"X-Empty": [b""]}
    assert (head.length, head.persistent, head.expects_continue) == (0, True, False)


@pytest.mark.parametrize(
    ("first", "minor", "persistent"),
    [("GET / HTTP/1.1", 1, True), ("GET / HTTP/1.0", 0, False), ("GET / HTTP/1.9", 1, True)],
)
def test_versions(first: str, minor: int, persistent: bool) -> None:  # noqa: FBT001
    head = decode(first)
    assert (head.minor, head.persistent) == (minor, persistent)


@pytest.mark.parametrize(
    ("first", "status"),
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
def test_first_lines_that_are_none(first: str, status: int) -> None:
    assert refusal(lambda: decode(first)) == status


def test_a_target_in_absolute_form_tells_the_host() -> None:
    head = decode("GET http://other:81/a/b?c HTTP/1.1")
    assert (head.path, head.target, head.fields[b"Host"]) == (b"/a/b", b"http://other:81/a/b?c", [b"other:81"])
    assert decode("GET HTTPS://other HTTP/1.1").path == b"/"
    assert decode("GET http://other?c HTTP/1.1").path == b"/"
    assert decode("OPTIONS * HTTP/1.1").path == b"*"


@pytest.mark.parametrize(
    "host", ["", "x", "x:", "x:65535", "127.0.0.1:80", "[::1]:80", "a_b.example.", "a,b", "%C3%A9"]
)
def test_hosts(host: str) -> None:
    assert decode("GET / HTTP/1.1", host=f"Host: {host}").fields[b"Host"] == [host.encode()]


@pytest.mark.parametrize("host", ["a b", "a/b", "a@b", "[::1", "x:y", "x:65536", "x:123456", "\xe9", "[x]", "%zz"])
def test_what_is_no_host(host: str) -> None:
    assert refusal(lambda: decode("GET / HTTP/1.1", host=f"Host: {host}")) == 400
    assert refusal(lambda: decode("GET http://y/ HTTP/1.1", host=f"Host: {host}")) == 400
    assert refusal(lambda: decode("GET / HTTP/1.0", host=f"Host: {host}")) == 400


def test_there_is_one_host() -> None:
    assert decode("GET / HTTP/1.0", host="").fields == {}
    for first in ("GET / HTTP/1.1", "GET http://x/ HTTP/1.1"):
        assert refusal(lambda first=first: decode(first, host="")) == 400
        assert refusal(lambda first=first: decode(first, "Host: x")) == 400


@pytest.mark.parametrize(
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
def test_what_is_no_field(line: str) -> None:
    assert refusal(lambda: decode("GET / HTTP/1.1", line)) == 400


def test_heads_that_are_too_large() -> None:
    decode("GET / HTTP/1.1", *(f"x: {n}" for n in range(FIELDS_MAX - 1)))
    assert refusal(lambda: decode("GET / HTTP/1.1", *(f"x: {n}" for n in range(FIELDS_MAX)))) == 431
    assert refusal(lambda: decode("GET / HTTP/1.1", "x: " + "y" * HEAD_MAX_BYTES)) == 431


@pytest.mark.parametrize(
    ("fields", "length"),
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
def test_lengths(fields: list[str], length: int | None) -> None:
    assert decode("POST / HTTP/1.1", *fields).length == length


@pytest.mark.parametrize(
    ("fields", "status"),
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
def test_framing_that_is_none(fields: list[str], status: int) -> None:
    assert refusal(lambda: decode("POST / HTTP/1.1", *fields)) == status


def test_http_1_0_has_no_chunks_and_expects_nothing() -> None:
    assert refusal(lambda: decode("POST / HTTP/1.0", "Transfer-Encoding: chunked")) == 400
    assert not decode("POST / HTTP/1.0", "Expect: 100-continue").expects_continue
    assert decode("POST / HTTP/1.1", "Expect: 100-Continue").expects_continue


@pytest.mark.parametrize("value", ["close", "Close", "keep-alive, close", "x,close ,y"])
def test_who_wants_the_connection_closed(value: str) -> None:
    assert not decode("GET / HTTP/1.1", f"Connection: {value}").persistent
    assert decode("GET / HTTP/1.1", "Connection: closed").persistent


HEAD = b"GET /post HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"


def test_each_beginning_of_a_head_passes() -> None:
    begun = BegunHead(title)
    for length in range(len(HEAD)):
        begun.check(HEAD[:length])
        BegunHead(title).check(HEAD[:length])


@pytest.mark.parametrize(
    ("begun", "status"),
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
def test_what_cannot_become_a_head_is_refused_at_once(begun: bytes, status: int) -> None:
    assert refusal(lambda: BegunHead(title).check(begun)) == status


@pytest.mark.parametrize(
    ("head", "passes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\n", b"GET / HTTP/1.1\r\nHost: x", 400),
        (b"GET / HTTP/1.1\r\nHost x\r\n", b"GET / HTTP/1.1\r\nHost x\r", 400),
        (b"GET / HTTP/2.0\r\n", b"GET / HTTP/2.0\r", 505),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100, 431),
        (b"GET /" + b"a" * TARGET_MAX_BYTES, b"GET /" + b"a" * (TARGET_MAX_BYTES - 1), 414),
    ],
    ids=["lf", "no colon", "version", "fields", "target"],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_begun_head_is_refused_in_any_pieces_at_the_same_byte(
    head: bytes, passes: bytes, status: int, size: int
) -> None:
    begun = BegunHead(title)
    for length in [*range(size, len(passes), size), len(passes)]:
        begun.check(passes[:length])
    assert refusal(lambda: begun.check(head)) == status


def test_the_longest_head_may_come_in_any_pieces() -> None:
    start = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
    head = start + b"y" * (HEAD_MAX_BYTES - len(start))
    decode_head(head, title)
    for end in (b"", b"\r", b"\r\n", b"\r\n\r"):
        BegunHead(title).check(head + end)
    assert refusal(lambda: BegunHead(title).check(head + b"yyyy")) == 431


def test_long_names_are_remembered_by_nobody() -> None:
    def never(_: bytes) -> bytes:
        raise AssertionError

    fields = decode_head(b"GET / HTTP/1.1\r\n" + b"a-" * 50 + b"b: x\r\n" + b"host: x", {b"host": b"Host"}.__getitem__)
    assert fields.fields == {b"A-" * 50 + b"B": [b"x"], b"Host": [b"x"]}
    assert refusal(lambda: decode_head(b"GET / HTTP/1.1\r\n" + b"a " * 50 + b": x", never)) == 400


def test_what_was_refused_is_named_if_it_can_be() -> None:
    assert decode_start(b"GET /a?b HTTP/1.1\r\nx y: z") == (b"GET", b"/a?b")
    for start in (b"", b"GET", b"GET x HTTP/1.1", b"G(T / HTTP/1.1"):
        assert decode_start(start) == (b"", b"")


def chunked(data: bytes, *, max_bytes: int = MAX_BODY_BYTES, piece: int = 0) -> tuple[bytes, bytes | None]:
    """Return the body, and what came behind it, None if it is not all there; sent in pieces of a length."""
    body, decoder, taken = b"", ChunkedBody(max_bytes, title), 0
    for start in range(0, len(data), piece or len(data)):
        body += b"".join(decoder.take(data[start : start + (piece or len(data))]))
        taken = start + (piece or len(data))
        if decoder.finished:
            return body, decoder.rest() + data[taken:]
    return body, None


@pytest.mark.parametrize("piece", [0, 1, 2, 3, 7])
@pytest.mark.parametrize(
    ("data", "body", "rest"),
    [
        (b"0\r\n\r\n", b"", b""),
        (b"3\r\nabc\r\n2\r\n\r\n\r\n0\r\n\r\nGET", b"abc\r\n", b"GET"),
        (b'A;x="\xff";y\r\n0123456789\r\n00 ;z\r\nX: y\r\nX: z\r\n\r\n', b"0123456789", b""),
        (b"5\r\nabc", b"abc", None),
        (b"1\r\na\r\n0\r\nX: y\r\n", b"a", None),
    ],
    ids=["empty", "two", "extensions and trailers", "cut", "cut trailers"],
)
def test_chunks(data: bytes, body: bytes, rest: bytes | None, piece: int) -> None:
    assert chunked(data, piece=piece) == (body, rest)


@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        *(
            (line + b"\r\n", 400)
            for line in (b"", b" 1", b"1 ", b"0x1", b"+1", b"g", b"1,1", b"1" * 17, b"1\t", b"\xb2")
        ),
        (b"1\nx\r\n0\r\n\r\n", 400),
        (b"1;a\nb\r\n", 400),
        (b"1;\0\r\n", 400),
        (b"1\r\nxy\r\n", 400),
        (b"1\r\nx\n0\r\n\r\n", 400),
        (b"2\r\nx\r\n0\r\n\r\n", 400),
        (b"0\r\n\n", 400),
        (b"0\r\nGET / HTTP/1.1\r\n", 400),
        (b"0\r\nX : y\r\n", 400),
        (b"0\r\n X: y\r\n", 400),
        (b"0\r\nContent-Length: 5\r\n", 400),
        (b"0\r\ntransfer-encoding: chunked\r\n", 400),
        (b"0\r\nhost: x\r\n", 400),
        (b"65\r\n", 413),
        (b"64\r\n" + b"x" * 100 + b"\r\n1\r\n", 413),
        (b"F" * 16 + b"\r\n", 413),
        (b"1;" + b"x" * 5000, 400),
        ((b"1" + b" " * 3000 + b";\r\nx\r\n") * 2, 400),
        (b"1;" + b"x" * 1000 + b"\r\n1\r\n" + (b"1;" + b"x" * 1000 + b"\r\n1\r\n") * 5, 400),
        (b"0\r\n" + b"X: y\r\n" * 102, 431),
        (b"0\r\nX: " + b"y" * 17_000, 431),
    ],
)
def test_chunks_that_are_none(data: bytes, status: int, piece: int) -> None:
    assert refusal(lambda: chunked(data, piece=piece)) == status


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=20), max_size=5),
    cuts=st.lists(st.integers(1, 50), max_size=8),
    rest=st.binary(max_size=10),
)
def test_chunks_are_what_they_were_wherever_they_are_cut(bodies: list[bytes], cuts: list[int], rest: bytes) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n" + rest
    decoder, body = ChunkedBody(1000, title), b""
    for cut in (*cuts, len(data)):
        body += b"".join(decoder.take(data[:cut]))
        data = data[cut:]
        if decoder.finished:
            break
    assert body == b"".join(bodies)
    assert decoder.rest() + data == rest

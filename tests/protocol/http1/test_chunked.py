"""Chunked bodies (RFC 9112 §7.1); tests/front has whole connections."""

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.http1.chunked import SMALL_CHUNK_BYTES, SMALL_CHUNKS_MAX, ChunkedDecoder
from tests.cases import each
from tests.protocol.http1.helpers import refusal, title

MAX_BODY_BYTES = 100


def chunked(data: bytes, *, max_bytes: int = MAX_BODY_BYTES, piece: int = 0) -> tuple[bytes, bytes | None]:
    """Return the body and the bytes after it, None for these if the body is incomplete; fed in pieces of a length."""
    body, decoder, taken = b"", ChunkedDecoder(max_bytes, title), 0
    for start in range(0, len(data), piece or len(data)):
        body += b"".join(decoder.feed(data[start : start + (piece or len(data))]))
        taken = start + (piece or len(data))
        if decoder.finished:
            return body, decoder.unused_data + data[taken:]
    return body, None


@each("piece", [0, 1, 2, 3, 7])
@each(
    "data, body, rest",
    [
        (b"0\r\n\r\n", b"", b""),
        (b"3\r\nabc\r\n2\r\n\r\n\r\n0\r\n\r\nGET", b"abc\r\n", b"GET"),
        (b'A;x="\xff";y\r\n0123456789\r\n00 ;z\r\nX: y\r\nX: z\r\n\r\n', b"0123456789", b""),
        (b"5\r\nabc", b"abc", None),
        (b"1\r\na\r\n0\r\nX: y\r\n", b"a", None),
    ],
    ids=["empty", "two", "extensions and trailers", "cut", "cut trailers"],
)
def test_chunked_body_is_decoded(data: bytes, body: bytes, rest: bytes | None, piece: int) -> None:
    assert chunked(data, piece=piece) == (body, rest)


def test_many_small_chunks_are_refused() -> None:
    allowed = SMALL_CHUNKS_MAX + SMALL_CHUNKS_MAX // SMALL_CHUNK_BYTES
    assert len(chunked(b"1\r\nx\r\n" * allowed, max_bytes=10_000)[0]) == allowed
    assert refusal(lambda: chunked(b"1\r\nx\r\n" * (allowed + 10), max_bytes=10_000)) == 400
    many = b"10\r\n" + b"x" * 16 + b"\r\n"
    assert len(chunked(many * 5000, max_bytes=100_000)[0]) == 80_000


@each("piece", [0, 1])
@each(
    "data, status",
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
def test_malformed_chunks_are_refused(data: bytes, status: int, piece: int) -> None:
    assert refusal(lambda: chunked(data, piece=piece)) == status


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=20), max_size=5),
    cuts=st.lists(st.integers(1, 50), max_size=8),
    rest=st.binary(max_size=10),
)
def test_chunks_decode_alike_wherever_they_are_cut(bodies: list[bytes], cuts: list[int], rest: bytes) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n" + rest
    decoder, body = ChunkedDecoder(1000, title), b""
    for cut in (*cuts, len(data)):
        body += b"".join(decoder.feed(data[:cut]))
        data = data[cut:]
        if decoder.finished:
            break
    assert body == b"".join(bodies)
    assert decoder.unused_data + data == rest

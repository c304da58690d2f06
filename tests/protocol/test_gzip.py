"""gzip streams, held against zlib's own reading of them."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.gzip import HEADER, Parts, compress, inflate


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_parts_in_a_row_are_one_stream_and_each_is_good_alone(texts: list[bytes]) -> None:
    parts = Parts()
    made = [parts.add(text) for text in texts]
    stream = b"".join([HEADER, *made, parts.end()])
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert inflating.decompress(stream) == b"".join(texts)
    assert (inflating.eof, inflating.unused_data) == (True, b"")  # one member, and nothing behind it
    assert [inflate(part) for part in made] == texts
    assert parts.length == len(b"".join(texts))


def test_a_part_can_be_read_as_soon_as_it_is_there() -> None:
    parts, inflating = Parts(), zlib.decompressobj(16 + zlib.MAX_WBITS)
    inflating.decompress(HEADER)
    for text in (b"first", b"", b"x" * 100_000):
        assert inflating.decompress(parts.add(text)) == text


@pytest.mark.parametrize("text", [b"", b"x", b"posts " * 100_000], ids=["nothing", "a-byte", "much"])
def test_a_whole_text(text: bytes) -> None:
    assert gzip.decompress(compress(text)) == text


def test_the_same_text_is_the_same_bytes_at_any_time() -> None:
    assert compress(b"text")[4:8] == HEADER[4:8] == bytes(4)  # the time

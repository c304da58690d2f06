"""gzip streams, checked with zlib."""

import gzip
import zlib

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.gzip import HEADER, Stream, compress, inflate, make_part
from tests.cases import each


@given(st.lists(st.binary(max_size=200) | st.integers(0, 70_000).map(bytes), max_size=6))
def test_parts_form_one_stream_and_inflate_separately(texts: list[bytes]) -> None:
    parts = Stream()
    made = [parts.add(make_part(text)) for text in texts]
    stream = b"".join([HEADER, *made, parts.end()])
    inflating = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert inflating.decompress(stream) == b"".join(texts)
    assert (inflating.eof, inflating.unused_data) == (True, b"")  # one member, and nothing behind it
    assert [inflate(part) for part in made] == texts


def test_each_part_can_be_inflated_on_arrival() -> None:
    parts, inflating = Stream(), zlib.decompressobj(16 + zlib.MAX_WBITS)
    inflating.decompress(HEADER)
    for text in (b"first", b"", b"x" * 100_000):
        assert inflating.decompress(parts.add(make_part(text))) == text


@each("text", [b"", b"x", b"posts " * 100_000], ids=["nothing", "a-byte", "much"])
def test_whole_text_is_compressed(text: bytes) -> None:
    assert gzip.decompress(compress(text)) == text


def test_equal_texts_give_equal_bytes() -> None:
    assert compress(b"text")[4:8] == HEADER[4:8] == bytes(4)  # the time

"""Percent-decoding of URLs and forms."""

from urllib.parse import parse_qsl, unquote_to_bytes

from hypothesis import example, given
from hypothesis import strategies as st

from postd.protocol.percent import parse_urlencoded, percent_decode
from tests.cases import each

_NEAR_ESCAPES = st.lists(st.sampled_from([b"%", b"4", b"a", b"F", b"g", b"+", b"=", b"&", b"\xff", b"\n"])).map(
    b"".join
)


@each(
    "encoded, decoded",
    [
        (b"a%20b", b"a b"),
        (b"%c3%BC", "ü".encode()),
        (b"100%", b"100%"),
        (b"%4g%%41", b"%4g%A"),
        (b"%2541", b"%41"),
        (b"%00%0a", b"\0\n"),
    ],
)
def test_percent_escapes_are_decoded_once(encoded: bytes, decoded: bytes) -> None:
    assert percent_decode(encoded) == decoded


@given(_NEAR_ESCAPES | st.binary())
@example(b"%4")
def test_decoding_equals_that_of_urllib(data: bytes) -> None:
    assert percent_decode(data) == unquote_to_bytes(data)


@given(_NEAR_ESCAPES)
def test_form_fields_equal_those_of_urllib(data: bytes) -> None:
    expected = parse_qsl(data.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    assert [(name.decode("latin-1"), value.decode("latin-1")) for name, value in parse_urlencoded(data)] == expected

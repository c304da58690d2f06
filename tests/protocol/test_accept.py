"""Negotiation of content codings and media types (RFC 9110 §12.5)."""

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.accept import CODINGS_MAX_BYTES, decode_media_ranges, opens_page, prefers_gzip, prefers_html
from tests.cases import each
from tests.helpers import FIELD_TEXT
from tests.linear import Input, check_linear

YES = [
    *("gzip", "GZip", "x-gzip", "X-GZIP", "gzip, deflate, br", "gzip,deflate,br,zstd", "br;q=1.0, gzip;q=0.8, *;q=0.1"),
    *(
        "*",
        "gzip;q=0.001",
        "gzip;q=1.000",
        "gzip;q=1.",
        "gzip;Q=0.5",
        "gzip ; q=0.5",
        "gzip\t;\tq=1",
        " gzip ",
        ",,gzip,",
    ),
    *("identity;q=0, gzip", "gzip, identity", "identity;q=0.5, gzip;q=0.5", "identity;q=0.5, *;q=0.6", "*;q=0.1"),
    *("gzip;q=0.1, *;q=0", "deflate, *;q=0.5", "gzip, identity;q=0", "br, x-gzip;q=0.9, identity;q=0.1"),
]
NO = [
    *(
        "",
        " ",
        ",",
        "identity",
        "deflate",
        "br, zstd",
        "gzip;q=0",
        "gzip;q=0.000",
        "x-gzip;q=0",
        "*;q=0",
        "gzip;q=0, *",
    ),
    *("identity, gzip;q=0.9", "gzip;q=0.5, *", "gzip;q=0.1, *;q=0.2", "identity;q=0", "identity;q=0, br"),
    *("gzip, gzip;q=0", "x-gzip, gzip;q=0", "gzip;q=0, x-gzip"),
]
NO_LIST = [
    *("gzip;q=2", "gzip;q=1.001", "gzip;q=0.0001", "gzip;q=-1", "gzip;q=.5", "gzip;q=", "gzip;q", "gzip;q=a", "gzip;"),
    *(
        "gzip;q =1",
        "gzip;q= 1",
        'gzip;q="1"',
        "gzip;q=1;q=1",
        "gzip;level=9",
        "gzip;q=1 x",
        "gzip deflate",
        "gz\xefp, gzip",
    ),
    *("gzip, br;q=x", "(gzip)", '"gzip"', "gzip/1", "gzip;q=NaN", "gzip;q=1e0", "gzip;q=\xb2"),
]


@each("value", YES)
def test_gzip_is_preferred(value: str) -> None:
    assert prefers_gzip(value.encode("latin-1"))


@each("value", NO)
def test_gzip_is_not_preferred(value: str) -> None:
    assert not prefers_gzip(value.encode("latin-1"))


@each("value", NO_LIST)
def test_malformed_value_is_ignored(value: str) -> None:
    assert not prefers_gzip(value.encode("latin-1"))


@given(st.lists(st.sampled_from(FIELD_TEXT), max_size=300).map(bytes))
def test_any_value_is_decoded_without_error(value: bytes) -> None:
    assert prefers_gzip(value) in {True, False}
    assert not prefers_gzip(value + b", gzip;q=0")


CODINGS = ["gzip", "x-gzip", "identity", "*", "br", "deflate"]


@given(st.lists(st.tuples(st.sampled_from(CODINGS), st.integers(0, 1000)), max_size=8), st.data())
def test_higher_weight_wins(wanted: list[tuple[str, int]], data: st.DataObject) -> None:
    def write(coding: str, weight: int) -> str:
        text = f"{weight / 1000:.3f}" if weight != 1000 or data.draw(st.booleans()) else None
        space = data.draw(st.sampled_from(["", " ", "\t "]))
        return coding if text is None else f"{coding}{space};{space}q={text}"

    def weight(*names: str) -> int | None:
        return min((weight for coding, weight in wanted if coding in names), default=None)

    value = ", ".join(write(*one) for one in wanted)
    others = weight("*")
    gzip, identity = weight("gzip", "x-gzip"), weight("identity")
    gzip = gzip if gzip is not None else others or 0
    identity = identity if identity is not None else others or 0
    assert prefers_gzip(value.encode()) == (gzip > 0 and gzip >= identity)


def test_value_over_the_limit_is_ignored() -> None:
    value = b"gzip" + b"," * (CODINGS_MAX_BYTES - len(b"gzip"))
    assert prefers_gzip(value)
    assert not prefers_gzip(value + b",")


def test_long_value_takes_linear_time() -> None:
    """As long as a head; quadratic time would not end."""
    for value in (b"gzip;q=0.5" + b" " * 16_000 + b"x", b"a," * 8_000, b";" * 16_000, b"\t," * 8_000):
        assert not prefers_gzip(value)


def test_white_space_is_linear() -> None:
    """Backtracking over as much white space as a head has room for would take seconds."""
    begins, whites = (b"gzip,", b"", b"gzip", b"gzip;", b"gzip; q=1"), (b" ", b"\t", b" \t")
    inputs = (Input(begin, white, tail) for begin in begins for white in whites for tail in (b"@", b"q=2", b""))
    check_linear(prefers_gzip, inputs, 16_000)


BROWSERS = [
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8",  # Chromium
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",  # Firefox, Safari
    "text/html, text/*;q=0.9, */*;q=0.5",
    *(
        "text/html",
        "TEXT/HTML",
        " text/html ",
        "*/*;q=0.1, text/html;q=0.2",
        "text/plain;q=0.9,text/html",
        ",,text/html",
    ),
    *(
        "text/html;level=1",
        "text/html;level=1;q=0.5, */*;q=0.4",
        "text/plain;q=0, text/*",
        "text/html ; Q=1.000",
        "x,text/html",
    ),
]
PROGRAMS = [
    *("", "*/*", "text/*", "application/json", "text/plain", "text/html, text/plain", "text/html;q=0.5, text/plain"),
    *("text/html;q=0", "text/html;q=0.8, */*", "text/html;q=0.8, text/*;q=0.9", "text/html;q=2", "text/html;q=x"),
    *("text/html;q=", "text/html;q=0.1234", "text / html", "text/htmlx", "text", ";q=1", "*", "text/html, */*"),
]


@each("value", BROWSERS)
def test_html_is_preferred(value: str) -> None:
    assert prefers_html(value.encode())


@each("value", PROGRAMS)
def test_html_is_not_preferred(value: str) -> None:
    assert not prefers_html(value.encode())


def test_long_accept_counts_like_a_short_one() -> None:
    for filling in (b" ", b"a/b,", b'a/b;c="text/plain,",', b"a/b;q=0.5, "):
        long = (filling * 16_000)[: 16_000 // len(filling) * len(filling)]
        assert prefers_html(long + b"text/html")
        assert prefers_html(b"text/html," + long)
        assert not prefers_html(long + b"text/html, text/plain")


def test_quoted_text_is_no_media_range() -> None:
    assert not prefers_html(b'a/b;c="x, text/html')
    assert not prefers_html(b'a/b;c="x\\", text/html", text/plain;q=0.1')
    assert prefers_html(b'text/html;c="x, text/plain;q=x";q=0.5, */*;q=0.1')


def test_accept_is_decoded_in_linear_time() -> None:
    begins, units = (b"", b"text/html", b"a,"), (b" ", b"*/*,", b'"\\', b'"', b",", b";", b", ", b"\t;q=")
    inputs = [Input(begin, unit, tail) for begin in begins for unit in units for tail in (b"x", b"")]
    check_linear(prefers_html, inputs, 16_000)
    check_linear(opens_page, inputs, 16_000)
    check_linear(lambda value: [*decode_media_ranges(value)], inputs, 16_000)


@each(
    "value, expected",
    [
        ("", []),
        (", ,", []),
        ("*/*", [("*/*", {}, 1)]),
        (
            " Text/Plain ; Version=1.0.0;Q=0.5,a/b ;q=0",
            [("text/plain", {"version": "1.0.0"}, 0.5), ("a/b", {}, 0)],
        ),
        ('a/b;c="d, e; f";g="h', [("a/b", {"c": "d, e; f", "g": "h"}, 1)]),
        ("a/b;q=x, c/d;q=2, e/f;q", [("e/f", {}, 1)]),
        (";q=1, ;, a", []),
    ],
)
def test_media_ranges_are_decoded(value: str, expected: list[tuple[str, dict[str, str], float]]) -> None:
    found = [
        (one.name.decode(), {key.decode(): text.decode() for key, text in one.parameters.items()}, one.weight)
        for one in decode_media_ranges(value.encode())
    ]
    assert found == expected


@given(st.lists(st.sampled_from(FIELD_TEXT), max_size=40).map(bytes))
def test_any_accept_is_decoded(value: bytes) -> None:
    assert prefers_html(value) in {True, False}

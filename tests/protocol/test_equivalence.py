"""Equivalence of request targets (RFC 3986 §6.2.2)."""

from urllib.parse import quote_from_bytes, unquote_to_bytes

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.equivalence import normalize_target
from tests.cases import each
from tests.linear import Input, check_linear

UNRESERVED = "ABCXYZabcxyz0189-._~"
PATH = st.text("/.a%2eF~;=").map(lambda text: ("/" + text).encode())


@each(
    "target, normal",
    [
        (b"/", b"/"),
        (b"/a/b?c", b"/a/b?c"),
        (b"/%7Eab/%e2%82%AC", b"/~ab/%E2%82%AC"),
        (b"/a/./b/../c", b"/a/c"),
        (b"/a/%2e%2E/b", b"/b"),
        (b"/a/..", b"/"),
        (b"/a/b/.", b"/a/b/"),
        (b"/../a", b"/a"),
        (b"//a///b//", b"/a/b/"),
        (b"/a//../b", b"/a/b"),  # RFC 3986 §5.2.4 removes the empty segment
        (b"/a%2Fb", b"/a%2Fb"),
        (b"/a%2f..%2fb", b"/a%2F..%2Fb"),
        (b"/%252e%252e/a", b"/%252e%252e/a"),
        (b"/a?b/../c//%7e", b"/a?b/../c//~"),
        (b"/a%3Fb", b"/a%3Fb"),
        (b"/a?", b"/a?"),
        (b"/a b\xc3\xa4|", b"/a%20b%C3%A4%7C"),
        (b"/%zz%", b"/%zz%"),
        (b"*", b"*"),
        (b"", b"/"),
        (b"?a=%7e", b"/?a=~"),
        (b"http://x/%7e", b"http://x/%7e"),
    ],
)
def test_target_is_normalized(target: bytes, normal: bytes) -> None:
    assert normalize_target(target) == normal


@given(PATH)
def test_normal_form_is_its_own_normal_form(path: bytes) -> None:
    assert normalize_target(normalize_target(path)) == normalize_target(path)


@given(st.binary(max_size=40).map(lambda query: b"/?" + query))
def test_query_keeps_its_meaning(target: bytes) -> None:
    normal = normalize_target(target)
    assert unquote_to_bytes(normal) == unquote_to_bytes(target)
    assert sum(map(normal.count, (b"&", b"=", b"/", b"+"))) == sum(map(target.count, (b"&", b"=", b"/", b"+")))


@given(st.text(UNRESERVED, min_size=1).filter(lambda name: name.strip(".")))
def test_every_spelling_of_an_unreserved_name_is_equivalent(name: str) -> None:
    spellings = [name.encode(), *(b"".join(form % octet for octet in name.encode()) for form in (b"%%%02x", b"%%%02X"))]
    assert {normalize_target(b"/x/" + spelling) for spelling in spellings} == {f"/x/{name}".encode()}


@given(st.binary(max_size=30))
def test_segment_with_reserved_characters_stays_one_segment(segment: bytes) -> None:
    normal = normalize_target(b"/a/x" + quote_from_bytes(segment, safe="").encode())
    assert normal.count(b"/") == 2
    assert unquote_to_bytes(normal) == b"/a/x" + segment


def test_normalizing_is_linear() -> None:
    units = [b"/..", b"/.", b"//", b"/a", b"%2e", b"%2e%2e/", b" ", b"\xff", b"%", b"?"]
    check_linear(normalize_target, [Input(b"/", unit) for unit in units], 8192)

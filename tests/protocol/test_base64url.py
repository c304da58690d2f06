"""Base64url: one spelling for each value, and no warnings for others."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.base64url import decode_base64url, encode_base64url
from tests.cases import each


@given(st.binary(max_size=100))
def test_encoded_bytes_are_decoded(data: bytes) -> None:
    encoded = encode_base64url(data)
    assert encoded.encode() == urlsafe_b64encode(data).rstrip(b"=")
    assert decode_base64url(encoded.encode()) == data


@each(
    "text",
    [
        *(b"A", b"AAAAA", b"A+AA", b"A/AA", b"AA==", b"AAA=", b"=AAA", b"AB", b"AAB", b"AA AA", b"AAAA\n", b"\nAAAA"),
        *(b"AA~A", b"AA\xc3\xa9", b"AA\0A", b"AAAA====", b"++++", b"////", b"AA.AA"),
    ],
)
def test_other_spelling_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_base64url(text)

"""CBOR is measured before it is decoded."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.cbor import DEPTH_MAX, measure_cbor
from tests.cases import each

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.integers(-9, 9) | st.text(), inner, max_size=30),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(plain, st.binary(max_size=8))
def test_measure_is_the_length_of_the_item(value: object, rest: bytes) -> None:
    encoded = cbor2.dumps(value)
    if depth_of(value) > DEPTH_MAX:
        with pytest.raises(ValueError, match="levels"):
            measure_cbor(encoded + rest)
    else:
        assert measure_cbor(encoded + rest) == len(encoded)
        assert measure_cbor(b"x" + encoded, 1) == len(encoded) + 1


@given(st.binary(max_size=200))
def test_measured_bytes_are_within_the_document(data: bytes) -> None:
    try:
        end = measure_cbor(data)
    except ValueError:
        return
    assert 0 < end <= len(data)


@each(
    "data",
    [
        b"",
        bytes.fromhex("9f01ff"),  # an array of indefinite length
        bytes.fromhex("5f4101ff"),  # bytes of indefinite length
        bytes.fromhex("c101"),  # a time (tag 1)
        bytes.fromhex("c24101"),  # a large number (tag 2)
        bytes.fromhex("1c"),  # a reserved length
        bytes.fromhex("990100") + bytes(20),
        bytes.fromhex("590100") + bytes(20),
        b"\x81" * 5 + b"\0",
        bytes.fromhex("a10102")[:2],
        bytes.fromhex("19ff"),
    ],
)
def test_what_authenticators_do_not_send_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the CBOR "):
        measure_cbor(data)

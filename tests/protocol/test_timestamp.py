"""Times as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.timestamp import format_timestamp, parse_timestamp
from tests.cases import each

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999."""


@each(
    "milliseconds, text",
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_700_000_000_120, "2023-11-14T22:13:20.120Z"),
        (FIRST, "0001-01-01T00:00:00.000Z"),
        (LAST, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_time_has_three_decimals_and_z(milliseconds: int, text: str) -> None:
    assert format_timestamp(milliseconds) == text
    assert parse_timestamp(text) == milliseconds


@given(st.integers(FIRST, LAST))
def test_formatted_time_is_parsed(milliseconds: int) -> None:
    assert parse_timestamp(format_timestamp(milliseconds)) == milliseconds


@each(
    "text",
    [
        "2023-11-14T22:13:20.12Z",
        "2023-11-14t22:13:20.1209999999z",
        "2023-11-14 22:13:20.12+00:00",
        "2023-11-14T23:43:20.120+01:30",
        "2023-11-14T21:13:20.120-01:00",
    ],
)
def test_other_forms_of_rfc_3339_are_parsed(text: str) -> None:
    assert parse_timestamp(text) == 1_700_000_000_120


@each(
    "text, why",
    [
        ("", "such as"),
        ("2023-11-14", "such as"),
        ("2023-11-14T22:13:20", "such as"),
        ("2023-11-14T22:13Z", "such as"),
        ("2023-11-14T22:13:20,5Z", "such as"),
        ("2023-11-14T22:13:20.Z", "such as"),
        ("2023-11-14T22:13:20+0100", "such as"),
        ("2023-11-14T22:13:20+24:00", "such as"),
        ("\uff12023-11-14T22:13:20Z", "such as"),
        ("2023-11-14T22:13:20Z\n", "such as"),
        ("2023-02-29T22:13:20Z", "calendar"),
        ("2023-11-14T24:13:20Z", "calendar"),
        ("2016-12-31T23:59:60Z", "calendar"),
        ("0001-01-01T00:00:00+00:01", "calendar"),
        ("9999-12-31T23:59:59-00:01", "calendar"),
    ],
)
def test_other_texts_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_timestamp(text)

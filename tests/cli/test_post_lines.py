"""Posts as JSON lines: encoding, decoding, and errors."""

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_twisted import ensureDeferred

from postd.cli.post_lines import (
    CSV_HEAD,
    LINE_MAX_BYTES,
    decode_post,
    encode_csv,
    encode_posts,
    read_lines,
    write_all,
)
from postd.model import PostDetails
from tests.cases import each
from tests.store.contract import started, texts


def test_posts_are_encoded_as_compact_utf_8_lines() -> None:
    assert encode_posts([PostDetails(1, 'Grüße "🚀"'), PostDetails(2**53 - 1, "a\nb")]) == (
        '{"id":1,"post":"Grüße \\"🚀\\""}\n{"id":9007199254740991,"post":"a\\nb"}\n'.encode()
    )


def test_encoded_posts_have_the_details_that_are_known() -> None:
    posts = [PostDetails(1, "x", 0, 1_700_000_000_123, "alice"), PostDetails(2, "y", None, 999, None)]
    assert encode_posts(posts) == (
        b'{"id":1,"post":"x","created":"1970-01-01T00:00:00.000Z","updated":"2023-11-14T22:13:20.123Z","author":"alice"}\n'
        b'{"id":2,"post":"y","updated":"1970-01-01T00:00:00.999Z"}\n'
    )


moments = st.none() | st.integers(-62_135_596_800_000, 253_402_300_799_999)


@given(texts, st.tuples(moments, moments), st.none() | texts)
def test_encoded_post_is_decoded(text: str, times: tuple[int | None, int | None], author: str | None) -> None:
    created, updated = times
    if created is not None and updated is not None:
        created, updated = sorted((created, updated))
    post = PostDetails(7, text, created, updated, author)
    assert decode_post(encode_posts([post]).rstrip(b"\n")) == post


@each(
    "line, post",
    [
        (b' {"post" : "x" , "id" : 9007199254740991 }\r', (2**53 - 1, "x")),
        (b'{"id":1,"post":"\\u00fc\\ud83d\\ude80","more":[1e999,{"id":2}]}', (1, "ü🚀")),
        (b'{"id":1,"post":"' + b"\\u0061" * 140 + b'"}', (1, "a" * 140)),
    ],
)
def test_any_json_object_with_id_and_text_is_decoded(line: bytes, post: tuple[int, str]) -> None:
    assert decode_post(line) == PostDetails(*post)


def test_details_may_be_null_and_have_other_forms() -> None:
    line = b'{"id":1,"post":"x","created":"2023-11-14 23:13:20.1239+01:00","updated":null,"author":"A\\u00e9"}'
    assert decode_post(line) == PostDetails(1, "x", 1_700_000_000_123, None, "Aé")


@each(
    "line, why",
    [
        (b"hello", "not JSON: Expecting value at character 1"),
        (b'{"id":1,"post":"x"', "not JSON: Expecting ',' delimiter at character 19"),
        (b'{"id":1,"post":"x"}{', "not JSON"),
        (b'{"id":1,"post":"\xff"}', "not UTF-8"),
        (b'\xef\xbb\xbf{"id":1,"post":"x"}', "not JSON"),
        (b"[" * 60000, "nested too deeply"),
        (b"[1]", "not an object"),
        (b'"x"', "not an object"),
        (b"{}", 'no "id"'),
        (b'{"post":"x"}', 'no "id"'),
        (b'{"id":1}', 'no "post"'),
        (b'{"id":1,"id":2,"post":"x"}', '"id" more than once'),
        (b'{"id":1,"post":"x","post":"x"}', '"post" more than once'),
        *[
            (b'{"id":' + bad + b',"post":"x"}', "its id is not a whole number from 1 to 9007199254740991")
            for bad in (
                b"0",
                b"-1",
                b"1.0",
                b"1e3",
                b"true",
                b"null",
                b'"1"',
                b"NaN",
                b"[1]",
                b"9007199254740992",
                b"9" * 5000,
            )
        ],
        (b'{"id":1,"post":"x","author":7}', 'its "author" is not a string'),
        (b'{"id":1,"post":"x","author":""}', 'its "author" is not the name of an account'),
        (b'{"id":1,"post":"x","author":"\\ud800"}', 'its "author" is not the name of an account'),
        (b'{"id":1,"post":"x","author":"a","author":"b"}', '"author" more than once'),
        (b'{"id":1,"post":"x","created":1700000000}', 'its "created" is not a string'),
        *[
            (b'{"id":1,"post":"x","created":"%b"}' % bad, f'its "created" is not a time {what}')
            for bad, what in (
                (b"yesterday", "such as"),
                (b"2026-11-28", "such as"),
                (b"2026-11-28T02:11:55", "such as"),
                (b"2026-02-30T02:11:55Z", "of the calendar"),
                (b"0001-01-01T00:00:00+01:00", "of the calendar"),
            )
        ],
        (
            b'{"id":1,"post":"x","created":"2026-11-28T00:00:00Z","updated":"2026-11-27T23:59:59.999Z"}',
            "updated before it was created",
        ),
        (b'{"id":1,"post":7}', "its post is not a string"),
        (b'{"id":1,"post":null}', "its post is not a string"),
        (b'{"id":1,"post":""}', "must not be empty"),
        (b'{"id":1,"post":"' + b"x" * 141 + b'"}', "at most 140 characters; this one has 141"),
        (b'{"id":1,"post":"a\\u0000b"}', "U+0000"),
        (b'{"id":1,"post":"\\ud800"}', "half of a surrogate pair"),
        (b'{"id":1,"post":"x"}' + b" " * LINE_MAX_BYTES, "more than 64 KiB"),
    ],
)
def test_malformed_line_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        decode_post(line)
    assert why in str(caught.value)


async def lines_of(descriptor: int) -> list[tuple[int, bytes]]:
    return [(number, line) async for first, lines in read_lines(descriptor) for number, line in enumerate(lines, first)]


@pytest.mark.parametrize("end", [b"", b"\n"])
@ensureDeferred
async def test_lines_are_numbered_from_one(tmp_path: Path, end: bytes) -> None:
    lines = [b"%d" % number * (number % 50) for number in range(1, 20002)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + end)
    with file.open("rb") as opened:
        assert await lines_of(opened.fileno()) == list(enumerate(lines, 1))


@ensureDeferred
async def test_endless_line_is_cut() -> None:
    endless = os.open("/dev/zero", os.O_RDONLY)
    [(number, line)] = await lines_of(endless)
    os.close(endless)
    assert number == 1
    assert LINE_MAX_BYTES < len(line) <= 3 * LINE_MAX_BYTES


@ensureDeferred
async def test_slow_pipes_do_not_block_the_reactor() -> None:
    """Both ends of a pipe in one thread: a blocking call would deadlock."""
    reading, writing = os.pipe()
    content = b"".join(b"line %d\n" % number for number in range(30_000))  # more than a pipe holds
    reader = started(lines_of(reading))
    await write_all(writing, content)
    os.close(writing)
    assert [line for _, line in await reader] == content.splitlines()
    os.close(reading)


def test_csv_has_quotes_where_they_are_needed_and_empty_fields_for_what_is_unknown() -> None:
    posts = [
        PostDetails(1, "plain", 0, 1_700_000_000_123, "alice"),
        PostDetails(2, 'a "b", c\r\nd', author="https://idp.example#x,y"),
        PostDetails(3, "Grüße 🚀"),
    ]
    assert CSV_HEAD == b"id,post,created,updated,author\r\n"
    assert encode_csv(posts).decode() == (
        "1,plain,1970-01-01T00:00:00.000Z,2023-11-14T22:13:20.123Z,alice\r\n"
        '2,"a ""b"", c\r\nd",,,"https://idp.example#x,y"\r\n'
        "3,Grüße 🚀,,,\r\n"
    )


@given(texts, st.none() | texts)
def test_csv_is_read_back(text: str, author: str | None) -> None:
    (row,) = csv.reader(io.StringIO(encode_csv([PostDetails(1, text, author=author)]).decode(), newline=""))
    assert row == ["1", text, "", "", author or ""]


@each("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\rx", "\nx", " =1", "\uff1d1", "\u00a0-1"])
def test_formulas_are_prefixed_where_spreadsheets_are_named(text: str) -> None:
    posts = [PostDetails(1, text, author=text)]
    for is_safe, expected in ((False, text), (True, f"'{text}")):
        (row,) = csv.reader(io.StringIO(encode_csv(posts, is_safe=is_safe).decode(), newline=""))
        assert row == ["1", expected, "", "", expected]


@each("text", ["1=1", "'=1", "a-b", "(1)", "é", " x"])
def test_other_texts_are_never_prefixed(text: str) -> None:
    assert encode_csv([PostDetails(1, text)], is_safe=True) == encode_csv([PostDetails(1, text)])

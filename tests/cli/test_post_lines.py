"""Posts as JSON lines: encoding, decoding, and errors."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from pytest_twisted import ensureDeferred

from postd.cli.post_lines import LINE_MAX_BYTES, decode_post, encode_posts, read_lines, write_all
from tests.cases import each
from tests.store.contract import started, texts


def test_posts_are_encoded_as_compact_utf_8_lines() -> None:
    assert encode_posts([(1, 'Grüße "🚀"'), (2**53 - 1, "a\nb")]) == (
        '{"id":1,"post":"Grüße \\"🚀\\""}\n{"id":9007199254740991,"post":"a\\nb"}\n'.encode()
    )


@given(texts)
def test_encoded_post_is_decoded(text: str) -> None:
    assert decode_post(encode_posts([(7, text)]).rstrip(b"\n")) == (7, text)


@each(
    "line, post",
    [
        (b' {"post" : "x" , "id" : 9007199254740991 }\r', (2**53 - 1, "x")),
        (b'{"id":1,"post":"\\u00fc\\ud83d\\ude80","more":[1e999,{"id":2}]}', (1, "ü🚀")),
        (b'{"id":1,"post":"' + b"\\u0061" * 140 + b'"}', (1, "a" * 140)),
    ],
)
def test_any_json_object_with_id_and_text_is_decoded(line: bytes, post: tuple[int, str]) -> None:
    assert decode_post(line) == post


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

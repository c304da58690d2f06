"""Posts as JSON lines, the format of `postd export` and `import` (reference: Command line)."""

import json
import os
import select
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import orjson

from postd.cli.run_async import wait_ready
from postd.errors import InvalidTextError
from postd.model import POST_ID_MAX, check_text
from postd.protocol.nesting import is_too_deep

LINE_MAX_BYTES = 64 * 1024
"""The longest line: forty times the size of a post with all characters escaped."""

_CHUNK_BYTES = 64 * 1024


def encode_posts(posts: Iterable[tuple[int, str]]) -> bytes:
    """Return posts as JSON lines."""
    return b"".join(
        orjson.dumps({"id": post_id, "post": text}, option=orjson.OPT_APPEND_NEWLINE) for post_id, text in posts
    )


def decode_post(line: bytes) -> tuple[int, str]:
    """Return the id and the text of a post. Further members are ignored, as in the API.

    Raises:
        ValueError: the line is not a post; `str()` of it is the reason.
    """
    if len(line) > LINE_MAX_BYTES:
        raise ValueError(f"it has more than {LINE_MAX_BYTES // 1024} KiB")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if is_too_deep(text):
        raise ValueError("it is nested too deeply")
    try:
        members = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    if not isinstance(members, _Members):
        raise ValueError('it is not an object such as {"id":1,"post":"some text"}')  # noqa: TRY004 - the caller catches ValueError
    post_id, text = (_only_member(members, name) for name in ("id", "post"))
    if type(post_id) is not int or not 1 <= post_id <= POST_ID_MAX:
        raise ValueError(f"its id is not a whole number from 1 to {POST_ID_MAX}")
    if not isinstance(text, str):
        raise ValueError("its post is not a string")  # noqa: TRY004 - the caller catches ValueError
    try:
        return post_id, check_text(text)
    except InvalidTextError as error:
        raise ValueError(error.why) from None


class _Members(list[tuple[str, object]]):
    """The members of an object, in order; distinct from a list, which is a JSON array."""


def _only_member(members: _Members, name: str) -> Any:
    values = [value for named, value in members if named == name]
    if len(values) != 1:
        raise ValueError(f'it has "{name}" more than once' if values else f'it has no "{name}"')
    return values[0]


# The standard library's decoder: orjson takes the last of duplicate names. Numbers that are no id, and constants that
# JSON does not have, become None, which no required member may be.
_decoder = json.JSONDecoder(
    object_pairs_hook=_Members,
    parse_constant=lambda _: None,
    parse_float=lambda _: None,
    parse_int=lambda digits: int(digits) if len(digits) <= len(str(POST_ID_MAX)) else None,
)


async def read_lines(descriptor: int) -> AsyncIterator[tuple[int, Sequence[bytes]]]:
    """Yield batches of the lines of a file or a pipe, without line ends, with the number of the first line.

    Memory is bounded: a line longer than `LINE_MAX_BYTES` is cut at a length that is still too long, and ends the
    iteration.
    """
    number, rest = 1, b""
    await wait_ready(descriptor, select.POLLIN)
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield number, lines
        number += len(lines)
        if len(rest) > LINE_MAX_BYTES:
            break
        await wait_ready(descriptor, select.POLLIN)
    if rest:
        yield number, [rest]


async def write_all(descriptor: int, content: bytes) -> None:
    """Write everything to a file or a pipe, at the pace of its reader."""
    left = memoryview(content)
    while left:
        await wait_ready(descriptor, select.POLLOUT)
        left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]

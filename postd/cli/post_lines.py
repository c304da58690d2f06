"""Posts as JSON lines, the format of `postd export` and `import`, and as CSV (reference: Command line)."""

import csv
import io
import json
import os
import re
import select
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import orjson

from postd.cli.run_async import wait_ready
from postd.errors import InvalidTextError
from postd.model import POST_ID_MAX, PostDetails, check_text
from postd.protocol.nesting import is_too_deep
from postd.protocol.timestamp import format_timestamp, parse_timestamp

LINE_MAX_BYTES = 64 * 1024
"""The longest line: forty times the size of a post with all characters escaped."""

_CHUNK_BYTES = 64 * 1024
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


def encode_posts(posts: Iterable[PostDetails]) -> bytes:
    """Return posts as JSON lines; details that are unknown are left out."""
    return b"".join(orjson.dumps(_members_of(post), option=orjson.OPT_APPEND_NEWLINE) for post in posts)


def _members_of(post: PostDetails) -> dict[str, object]:
    details = {
        "created": None if post.created is None else format_timestamp(post.created),
        "updated": None if post.updated is None else format_timestamp(post.updated),
        "author": post.author,
    }
    return {"id": post.id, "post": post.post, **{name: value for name, value in details.items() if value is not None}}


CSV_HEAD = b"id,post,created,updated,author\r\n"


def encode_csv(posts: Iterable[PostDetails], *, is_safe: bool = False) -> bytes:
    """Return posts as lines of CSV (RFC 4180), under `CSV_HEAD`; details that are unknown are empty.

    With `is_safe`, a text that a spreadsheet would run as a formula has an apostrophe before it.
    """
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\r\n")
    for post in posts:
        members = _members_of(post)
        for name in ("post", "author") if is_safe else ():
            if _FORMULA.match(str(members.get(name, ""))):
                members[name] = f"'{members[name]}"
        writer.writerow([members.get(name) for name in ("id", "post", "created", "updated", "author")])
    return lines.getvalue().encode()


_FORMULA = re.compile(r"[\t\r\n]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""What a spreadsheet takes for a formula: also with spaces before it, and in full-width characters."""


def decode_post(line: bytes) -> PostDetails:
    """Return the post of a JSON line; details that it does not have are unknown, other members are ignored.

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
        text = check_text(text)
    except InvalidTextError as error:
        raise ValueError(error.why) from None
    created, updated = (_decode_time(members, name) for name in ("created", "updated"))
    if created is not None and updated is not None and updated < created:
        raise ValueError("it was updated before it was created")
    return PostDetails(post_id, text, created, updated, _decode_author(members))


def _decode_time(members: "_Members", name: str) -> int | None:
    text = _optional_member(members, name)
    if text is None:
        return None
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise ValueError(f'its "{name}" is {error}') from None


def _decode_author(members: "_Members") -> str | None:
    author = _optional_member(members, "author")
    if author is not None and (not author or _LONE_SURROGATE.search(author)):
        raise ValueError('its "author" is not the name of an account')
    return author


def _optional_member(members: "_Members", name: str) -> str | None:
    """Return a text that may be absent or null."""
    if all(named != name for named, _ in members):
        return None
    value = _only_member(members, name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f'its "{name}" is not a string')
    return value


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

"""Request bodies: bytes in, checked values out.

The order of the checks is the order in which a sender would mend them: 415, 400, 422.
"""

import json
import re
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from postd.model import PostText, check_text
from postd.protocol.nesting import is_too_deep
from postd.web.errors import Problem


class NewText(Struct, frozen=True):
    """The body of POST and PUT (spec: Post API). Further members are ignored, `id` included."""

    post: PostText


# What most clients send: one member, and nothing in its text to be decoded. It means the same to all decoders.
_PLAIN = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"post"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]*)"[ \t\r\n]*\}[ \t\r\n]*')

_CHARSET = re.compile(rb";[ \t]*+charset(?![^ \t;=])[ \t]*+=?([^;]*+)")


def decode_text(request: Any) -> str:
    """Return the text of the post that a request brings.

    Raises:
        Problem: 415, 400 or 422, as the contract's table of bad bodies says.
        InvalidTextError: no post can carry the text.
    """
    _check_content_type(request)
    body = request.content.read()
    plain = _PLAIN.fullmatch(body)
    if plain is not None:
        return check_text(plain[1].decode("ascii"))
    members = _decode_object(body)
    try:
        new = msgspec.convert({name: value for name, value in members if name == "post"}, NewText)
    except msgspec.ValidationError as error:
        why = str(error).partition(" - at ")[0].replace("`", "'")
        raise Problem(422, f"{why}.", pointer="/post") from None
    return check_text(new.post)


def _check_content_type(request: Any) -> None:
    values = request.fields.get(b"Content-Type") or []
    if values != [b"application/json"]:
        value = b",".join(values).lower()
        charsets = {charset.strip(b' \t"') for charset in _CHARSET.findall(value)}
        if value.partition(b";")[0].strip() != b"application/json" or not charsets <= {b"utf-8", b"utf8"}:
            raise Problem(415, "The body must be sent as Content-Type: application/json, in UTF-8.")
    encoding = request.fields.get(b"Content-Encoding") or []
    if b",".join(encoding).strip().lower() not in {b"", b"identity"}:
        raise Problem(
            415,
            "The body must be sent without a Content-Encoding.",
            headers={b"Accept-Encoding": b"identity"},
        )


class _Members(list[tuple[str, Any]]):
    """The members of an object in the order they came; what is not one of these is an array."""


def _decode_object(body: bytes) -> _Members:
    """Decode a JSON object, strictly (RFC 8259).

    msgspec's own decoder lets the last of two equal names win and tells a lone surrogate from cut-off JSON by
    nothing; the standard library's accepts NaN. Numbers are looked at and dropped: no member that counts is one.
    """
    try:
        text = body.decode("utf-8")
        if is_too_deep(text):
            raise Problem(400, "The body is nested too deeply.")
        members = _decoder.decode(text)
    except UnicodeDecodeError:
        raise Problem(400, "The body is not UTF-8 text.") from None
    except ValueError as error:
        raise Problem(400, f"The body is not JSON: {error}.") from None
    if not isinstance(members, _Members):
        raise Problem(400, 'The body must be a JSON object such as {"post": "some text"}.')
    if sum(name == "post" for name, _ in members) > 1:
        raise Problem(400, 'The body has "post" more than once.')
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_decoder = json.JSONDecoder(
    object_pairs_hook=_Members,
    parse_constant=_refuse_constant,
    parse_int=lambda _: 0,
    parse_float=lambda _: 0.0,
)

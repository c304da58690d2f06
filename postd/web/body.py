"""JSON request bodies (reference: Post API).

Checks run in the order in which a client would fix them: 415 for the type, 400 for the syntax, 422 for the text.
"""

import json
import re
from typing import NoReturn

from msgspec import Struct

from postd.http.errors import Problem
from postd.http.interface import Request
from postd.model import PostText, check_text
from postd.protocol.nesting import is_too_deep


class NewText(Struct, frozen=True):
    """Schema of the body of POST and PUT (spec: Post API). Other members are ignored, `id` included."""

    post: PostText


# Fast path for the body that most clients send: one member, printable ASCII without escapes.
_PLAIN = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"post"[ \t\r\n]*:[ \t\r\n]*"([ !#-\[\]-~]*)"[ \t\r\n]*\}[ \t\r\n]*')

_CHARSET = re.compile(rb";[ \t]*+charset(?![^ \t;=])[ \t]*+=?([^;]*+)")


def decode_text(request: Request) -> str:
    """Decode the text of a post from a request body.

    Raises:
        Problem: 415, the type, charset or encoding is not supported; 400, the body is not a JSON object; 422, `post`
            is missing or not a string.
        InvalidTextError: the text is not allowed in a post.
    """
    _check_content_type(request)
    body = request.body
    plain = _PLAIN.fullmatch(body)
    if plain is not None:
        return check_text(plain[1].decode("ascii"))
    texts = [value for name, value in _decode_object(body) if name == "post"]
    if not texts:
        raise Problem(422, 'The body has no "post".', pointer="/post")
    if len(texts) > 1:
        raise Problem(400, 'The body has "post" more than once.')
    if not isinstance(texts[0], str):
        raise Problem(422, '"post" must be a string.', pointer="/post")
    return check_text(texts[0])


def _check_content_type(request: Request) -> None:
    values = request.fields.get(b"Content-Type") or []
    if values != [b"application/json"]:
        value = b",".join(values).lower()
        charsets = {charset.strip(b' \t"') for charset in _CHARSET.findall(value)}
        if value.partition(b";")[0].strip() != b"application/json" or not charsets <= {b"utf-8", b"utf8"}:
            raise Problem(415, "The body must be sent as Content-Type: application/json, in UTF-8.")
    encoding = request.fields.get(b"Content-Encoding") or []
    if b",".join(encoding).strip().lower() not in {b"", b"identity"}:
        why = "The body must be sent without a Content-Encoding."
        raise Problem(415, why, headers={b"Accept-Encoding": b"identity"})


class _Members(list[tuple[str, object]]):
    """The members of a JSON object in order, duplicates included; a plain list is a JSON array."""


def _decode_object(body: bytes) -> _Members:
    """Decode a JSON object strictly (RFC 8259); numbers decode to 0, because no member that is used is a number.

    msgspec's decoder silently keeps the last of two equal names and reports a lone surrogate as truncated input; the
    standard library's accepts NaN.

    Raises:
        Problem: 400.
    """
    try:
        text = body.decode("utf-8")
        if is_too_deep(text):
            raise Problem(400, "The body is nested too deeply.")
        members = _decoder.decode(text)
    except UnicodeDecodeError:
        raise Problem(400, "The body is not UTF-8 text.") from None
    except ValueError as error:
        why = "it begins with a byte order mark" if text.startswith("\ufeff") else error
        raise Problem(400, f"The body is not JSON: {why}.") from None
    if not isinstance(members, _Members):
        raise Problem(400, 'The body must be a JSON object such as {"post": "some text"}.')
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_decoder = json.JSONDecoder(
    object_pairs_hook=_Members, parse_constant=_refuse_constant, parse_int=lambda _: 0, parse_float=lambda _: 0.0
)

"""Heads of requests, and how their bodies are framed (RFC 9112 §2.1, §3, §6)."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv6Address
from typing import NoReturn

from msgspec import Struct

from postd.protocol.http1.syntax import (
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    TOKEN,
    CanonicalName,
    HttpSyntaxError,
    check_partial_text,
    check_text,
    decode_fields,
    is_text,
)

TARGET_MAX_BYTES = 8 * 1024
"""The longest request target; RFC 9112 §3 asks for at least 8,000 octets."""

METHOD_MAX_BYTES = 32
"""The longest name of a method; the registry's longest has 17 letters."""

KEPT_MAX_BYTES, KEPT_FIELDS_MAX = 1024, 24
"""The longest head that a `HeadDecoder` keeps; it takes some 6 KiB at most, decoded."""

HEAD_END = b"\r\n\r\n"
"""The bytes that end a head."""

Fields = Mapping[bytes, Sequence[bytes]]
"""The values of each field, in their order, by the field's name in its canonical spelling. They are read-only, because
several requests may have the same ones (`HeadDecoder`)."""

_AUTHORIZATION = b"\r\nAuthorization:"

_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS"})  # a shortcut past the checks
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")

_REG_NAME = rb"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_HOST = re.compile(rb"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|%b)(?::(?P<port>[0-9]{0,5}))?" % _REG_NAME)  # RFC 3986 §3.2.2
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)
_PORT_MAX = 65535


class Head(Struct):
    """A decoded head.

    Args:
        method: the method's name.
        target: the request target as sent.
        path: the target's path, percent-encoded as sent; `*` for the server as a whole (RFC 9112 §3.2.4).
        minor: the minor version: 1 for HTTP/1.1; 0 for HTTP/1.0, which has no chunks.
        fields: the field lines. A target in absolute form replaces `Host` (RFC 9112 §3.2.2).
        length: the length of the body in bytes, None if it is chunked.
        persistent: whether the client may send another request on the connection.
        expects_continue: whether the client waits for `100 Continue` before the body (RFC 9110 §10.1.1).
    """

    method: bytes
    target: bytes
    path: bytes
    minor: int
    fields: Fields
    length: int | None = 0
    persistent: bool = True
    expects_continue: bool = False


def decode_head(head: bytes, canonical_name: CanonicalName) -> Head:
    """Decode a head.

    Args:
        head: all bytes before its end (`HEAD_END`).
        canonical_name: for the names of its fields.

    Raises:
        HttpSyntaxError: 400, 414, 417, 431, 501 or 505.
    """
    if len(head) > HEAD_MAX_BYTES:
        _refuse_length(head)
    first, *lines = head.split(b"\r\n")
    check_text(head, len(lines))
    if len(lines) > FIELDS_MAX:
        _refuse_fields()
    method, target, minor = _decode_request_line(first)
    fields = decode_fields(lines, canonical_name)
    decoded = Head(method, target, target.partition(b"?")[0], minor, fields)
    _check_host(fields.get(b"Host"), minor)
    if not target.startswith(b"/"):
        decoded.path = _decode_other_form(method, target, fields)
    if b"Content-Length" in fields or b"Transfer-Encoding" in fields:
        decoded.length = _decode_length(fields, minor)
    if b"Connection" in fields or not minor:
        decoded.persistent = minor == 1 and b"close" not in _members(fields[b"Connection"])
    if b"Expect" in fields and minor:
        if [value.lower() for value in fields[b"Expect"]] != [b"100-continue"]:
            raise HttpSyntaxError(417, "The only supported expectation is 100-continue.")
        decoded.expects_continue = True
    return decoded


class HeadDecoder:
    """Decodes the heads of a connection; the last one is kept, because the next request often has the same fields.

    Credentials of Digest are new in each request, so a head may differ from the last one in `Authorization`, too.
    Two requests may get the same `Head`, or two heads the same `fields`.

    Args:
        canonical_name: for the names of the fields.
    """

    def __init__(self, canonical_name: CanonicalName) -> None:
        self._canonical_name = canonical_name
        self._head = b""  # the last one, if it is kept
        self._last: Head | None = None
        self._around: tuple[bytes, bytes] | None = None  # the bytes before and after its only value of `Authorization`

    def decode(self, head: bytes) -> Head:
        """Decode a head, as `decode_head`."""
        last = self._last
        if last is None or head != self._head:
            is_short = len(head) <= KEPT_MAX_BYTES
            last = self._decode_like(last, head) if last is not None and is_short else None
            if last is None:
                last = decode_head(head, self._canonical_name)
                is_kept = is_short and head.count(b"\r\n") <= KEPT_FIELDS_MAX and last.target.startswith(b"/")
                if not is_kept:  # an absolute target has replaced a field
                    self.forget()
                    return last
                self._around = _split_at_authorization(head, last)
            self._head, self._last = head, last
        return last

    def forget(self) -> None:
        """Forget the last head, before a long response."""
        self._head, self._last, self._around = b"", None, None

    def _decode_like(self, last: Head, head: bytes) -> Head | None:
        """Return a head that differs from the last one in a single line; None if it differs elsewhere."""
        if self._around is not None:
            before, after = self._around
            # They do not overlap: the second begins with a line's end, and has no other field `Authorization`.
            if head.startswith(before) and head.endswith(after):
                value = head[len(before) : len(head) - len(after)]
                if is_text(value):
                    return _with_authorization(last, value.strip(b" \t"))
        line, _, lines = head.partition(b"\r\n")
        if lines != self._head.partition(b"\r\n")[2]:
            return None
        decoded = _decode_other_line(line, last)
        if decoded is not None:
            self._around = _split_at_authorization(head, decoded)
        return decoded


def _split_at_authorization(head: bytes, decoded: Head) -> tuple[bytes, bytes] | None:
    """Return the bytes of a head before and after the value of `Authorization`; the latter begin with the line's end.

    None if the field is not there once, in the spelling that nearly all clients use.
    """
    start = head.find(_AUTHORIZATION) + len(_AUTHORIZATION)
    if start < len(_AUTHORIZATION) or len(decoded.fields[b"Authorization"]) > 1:
        return None
    end = head.find(b"\r\n", start)
    return (head[:start], head[end:]) if end >= 0 else (head[:start], b"")


def _with_authorization(like: Head, value: bytes) -> Head:
    """Return a head with another value of `Authorization`."""
    fields = {**like.fields, b"Authorization": [value]}
    return Head(
        like.method, like.target, like.path, like.minor, fields, like.length, like.persistent, like.expects_continue
    )


def _decode_other_line(line: bytes, last: Head) -> Head | None:
    """Return the head with this request line and the fields of the last one; None if they depend on the line."""
    check_text(line, 0)
    method, target, minor = _decode_request_line(line)
    if minor != last.minor or not target.startswith(b"/"):
        return None
    path = target.partition(b"?")[0]
    return Head(method, target, path, minor, last.fields, last.length, last.persistent, last.expects_continue)


class PartialHead:
    """Checks a head as it arrives, so that a malformed one is refused at its first wrong line.

    Each byte is checked once, however many pieces arrive: otherwise the work would grow with the square of them.

    Args:
        canonical_name: for the names of its fields.
    """

    def __init__(self, canonical_name: CanonicalName) -> None:
        self._canonical_name = canonical_name
        self._checked = 0  # bytes
        self._lines_end = 0  # where the incomplete line begins
        self._lines = 0

    def check(self, head: bytes) -> None:
        """Check that bytes may be the beginning of a head.

        Args:
            head: all bytes of it that have arrived.

        Raises:
            HttpSyntaxError: 400, 414, 431, 501 or 505, whatever may follow.
        """
        # Part of the head's end may have arrived, too.
        if len(head) >= HEAD_MAX_BYTES + len(HEAD_END):
            _refuse_length(head)
        if not self._lines and len(head) > TARGET_MAX_BYTES and len(_target_of(head)) > TARGET_MAX_BYTES:
            _refuse_length(head)
        check_partial_text(head[self._checked :])
        end = head.rfind(b"\r\n", self._checked)
        self._checked = len(head) - head.endswith(b"\r")
        if end < 0:
            return
        lines = head[self._lines_end : end].split(b"\r\n")
        first = [] if self._lines else [lines.pop(0)]
        self._lines += len(first) + len(lines)
        self._lines_end = end + 2
        if self._lines > 1 + FIELDS_MAX:
            _refuse_fields()
        for line in first:
            _decode_request_line(line)
        decode_fields(lines, self._canonical_name)


def decode_method_and_target(head: bytes) -> tuple[bytes, bytes]:
    """Return the method and the target of a head that was refused, both empty if it has none, for the access log."""
    match head.partition(b"\r\n")[0].split(b" "):
        case [method, target, _] if TOKEN.fullmatch(method) and target.startswith(b"/"):
            return method[:METHOD_MAX_BYTES], target[:TARGET_MAX_BYTES]
    return b"", b""


def _refuse_length(head: bytes) -> NoReturn:
    if len(_target_of(head)) > TARGET_MAX_BYTES:
        raise HttpSyntaxError(414, f"The request target has more than {TARGET_MAX_BYTES} bytes.")
    raise HttpSyntaxError(431, f"The head of the request has more than {HEAD_MAX_BYTES} bytes.")


def _target_of(head: bytes) -> bytes:
    """Return the part of the target that has arrived."""
    return head.partition(b"\r\n")[0].partition(b" ")[2].partition(b" ")[0]


def _refuse_fields() -> NoReturn:
    raise HttpSyntaxError(431, f"The request has more than {FIELDS_MAX} fields.")


def _decode_request_line(line: bytes) -> tuple[bytes, bytes, int]:
    """Return method, target and minor version (RFC 9112 §3)."""
    words = line.split(b" ")
    if len(words) != len(("method", "target", "version")):
        raise HttpSyntaxError(
            400, "The request line must be a method, a target and a version, separated by single spaces."
        )
    method, target, version = words
    if version == b"HTTP/1.1":
        minor = 1
    else:
        match = _VERSION.fullmatch(version)
        if match is None:
            raise HttpSyntaxError(400, "The version must be written as in HTTP/1.1.")
        if match[1] != b"1":
            raise HttpSyntaxError(505, "The supported versions are HTTP/1.1 and HTTP/1.0.")
        minor = int(match[2] != b"0")
    if method not in _METHODS and not TOKEN.fullmatch(method):
        raise HttpSyntaxError(400, "The method is not a token.")
    if len(method) > METHOD_MAX_BYTES or method == b"CONNECT":
        raise HttpSyntaxError(501, "The method is not supported.")
    if len(target) > TARGET_MAX_BYTES:
        _refuse_length(line)
    if b"#" in target or b"\t" in target or not target.isascii():
        raise HttpSyntaxError(400, "The request target must be ASCII, percent-encoded, without a fragment.")
    if not target.startswith((b"/", b"*")) and not _ABSOLUTE_FORM.fullmatch(target):
        _refuse_target()
    return method, target, minor


def _decode_other_form(method: bytes, target: bytes, fields: dict[bytes, list[bytes]]) -> bytes:
    """Return the path of a target in absolute or asterisk form; replace `Host` by its authority."""
    if target == b"*" and method == b"OPTIONS":
        return target
    match = _ABSOLUTE_FORM.fullmatch(target)
    # Userinfo is refused (RFC 9110 §4.2.4), an empty host too (§4.2.1).
    if match is None or match[1].startswith(b":") or not match[1] or not is_host(match[1]):
        _refuse_target()
    fields[b"Host"] = [match[1]]
    return match[2].partition(b"?")[0] or b"/"


def _refuse_target() -> NoReturn:
    raise HttpSyntaxError(400, "The request target must be a path, or a complete http or https URL.")


def _check_host(values: Sequence[bytes] | None, minor: int) -> None:
    """Check the values of `Host` (RFC 9112 §3.2)."""
    if values is None and not minor:
        return
    if values is None or len(values) != 1:
        raise HttpSyntaxError(400, "The request must have one Host field.")
    if not is_host(values[0]):
        zone = ", and an IPv6 address without a zone" if values[0].startswith(b"[") else ""
        raise HttpSyntaxError(400, f"The Host field must be a host, optionally with a port{zone}.")


@lru_cache(maxsize=64)
def is_host(value: bytes) -> bool:
    """Return whether a value of `Host` is a host, with or without a port (RFC 9110 §7.2)."""
    match = _HOST.fullmatch(value)
    if match is None or (match["port"] and int(match["port"]) > _PORT_MAX):
        return False
    if match["ipv6"] is None:
        return True
    try:
        IPv6Address(match["ipv6"].decode("ascii"))
    except ValueError:
        return False
    return True


def _decode_length(fields: Fields, minor: int) -> int | None:
    """Return the length of the body, None for chunks (RFC 9112 §6)."""
    lengths, codings = fields.get(b"Content-Length"), fields.get(b"Transfer-Encoding")
    if codings is None:
        assert lengths is not None
        # The same value twice is refused as well, which §6.3 would allow.
        if len(lengths) != 1 or not lengths[0].isdigit():
            raise HttpSyntaxError(400, "Content-Length must be a number, and occur once.")
        # 20 digits exceed every limit, and int() refuses some thousands of them.
        return int(lengths[0].lstrip(b"0")[:20] or b"0")
    if lengths is not None:
        raise HttpSyntaxError(400, "Content-Length and Transfer-Encoding cannot be combined.")
    if not minor:
        raise HttpSyntaxError(400, "HTTP/1.0 does not support Transfer-Encoding.")
    if len(codings) == 1 and codings[0].lower() == b"chunked":
        return None
    names = _members(codings)
    if names[-1] != b"chunked" or names.count(b"chunked") > 1 or not all(map(TOKEN.fullmatch, names)):
        raise HttpSyntaxError(400, "Transfer-Encoding must end with chunked, and have it once.")
    raise HttpSyntaxError(501, "The only supported Transfer-Encoding is chunked.")


def _members(values: Sequence[bytes]) -> list[bytes]:
    """Return the members of a comma-separated list, in lower case (RFC 9110 §5.6.1)."""
    return [member.strip(b" \t").lower() for value in values for member in value.split(b",")]

"""Requests, byte for byte: those of real clients, other valid ones, and those that must not reach a resource.

`corpus.toml` has them. They are written from RFC 9110, RFC 9112 and the specification, not from the code that parses
them. The limits are `MAX_BODY_BYTES` for a body, and those of postd for a head: 8 KiB of target, 16 KiB and 100
fields of head, 32 bytes of method.

A hostile request is made of a POST that would be stored as `SMUGGLED` if it were accepted. A parser that takes the
bytes behind it (`AFTER`) for another request stores one more.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

MAX_BODY_BYTES = 16384
SMUGGLED = "smuggled"
LEGITIMATE = "legitimate"

_WRITTEN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOT_TOKEN = [bytes([byte]) for byte in range(256) if byte not in _TOKEN]
_BYTES: Mapping[str, Sequence[bytes]] = {
    "not token": _NOT_TOKEN,
    "not token but a colon": [byte for byte in _NOT_TOKEN if byte != b":"],
    "no value": [bytes([byte]) for byte in (*range(0x20), 0x7F) if byte != 0x09],
}
"""Sets of bytes that the corpus names."""


class Case(Struct, frozen=True):
    """The input of a client on a new connection, and the expected responses.

    Args:
        family: the subject, a heading of the corpus.
        name: unique in the family.
        sent: the bytes.
        answers: the statuses that each of the final responses may have, in order; with 200, the request is accepted.
        ends: whether the connection is closed after the last of them.
    """

    family: str
    name: str
    sent: bytes
    answers: tuple[frozenset[int], ...] = (frozenset({200}),)
    ends: bool = False

    @property
    def key(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def refused(self) -> bool:
        """Whether the last of its requests must be refused."""
        return not self.answers or 200 not in self.answers[-1]


def _expand(part: re.Match[str]) -> str:
    words = part[1]
    if ranged := re.fullmatch(r"bytes (\d+)\.\.(\d+)", words):
        return "".join(map(chr, range(int(ranged[1]), int(ranged[2]) + 1)))
    if repeated := re.fullmatch(r"(\d+)\*(.+)", words, re.DOTALL):
        count, text = int(repeated[1]), repeated[2]
        return "".join(text.replace("#", str(number)) for number in range(count)) if "#" in text else text * count
    if words.startswith("each byte of "):
        return "".join(f"1⏎{byte}⏎" for byte in _text(f"⟨{words[13:]}⟩"))
    if words.startswith("utf-16 of "):
        return _text(f"⟨{words[10:]}⟩").encode("utf-16").decode("latin-1")
    text = _WRITTEN["parts"][words]
    return str(text)


def _text(written: str) -> str:
    while (expanded := re.sub("⟨([^⟨⟩]*)⟩", _expand, written)) != written:
        written = expanded
    return written.replace("⏎", "\r\n")


def _decode(written: str) -> bytes:
    return _text(written).encode("latin-1")


AFTER = _decode("⟨after⟩")
"""The request behind an attempt: executed by a parser that misreads where the attempt ends."""
HIDDEN_BODY = _decode("⟨hidden⟩")
LEGITIMATE_BODY = _decode("⟨legitimate⟩")


def request(*, line: bytes = b"POST /post HTTP/1.1", body: bytes = HIDDEN_BODY) -> bytes:
    """Return a request that is accepted."""
    head = [line, b"Host: localhost", b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*head, b"", body])


def _shown(value: bytes) -> str:
    """Return the name of a request that differs from others in a value."""
    text = "an asterisk" if value == b"*" else repr(value)[2:-1]
    return text if len(text) <= 60 else f"{text[:20]}... {len(value)} bytes"


_values: dict[str, Sequence[bytes]] = {**_BYTES}
"""The values of each family that has some, and of the sets of bytes."""


def _requests(written: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Return the names and the bytes of the requests of a family."""
    if "requests" in written:
        yield from ((name, _decode(text)) for name, text in written["requests"].items())
    elif "values" in written:
        values = written["values"]
        several = _values[values] if isinstance(values, str) else [_decode(value) for value in values]
        _values[written["family"]] = several
        before, *between = map(_decode, written["request"].split("⟨value⟩"))
        yield from ((_shown(value), before + b"".join(value + part for part in between)) for value in several)
    else:
        yield "", _decode(written["request"])


def _group(name: str, answers: Sequence[Sequence[int]], *, ends: bool = False) -> Sequence[Case]:
    """Return the cases of a group; `answers` and `ends` are those of a family that does not say otherwise."""
    cases = []
    for written in _WRITTEN[name]:
        expected = tuple(map(frozenset, written.get("answers", answers))) * written.get("count", 1)
        cases += [
            Case(written["family"], title, sent, expected, written.get("ends", ends))
            for title, sent in _requests(written)
        ]
    return cases


def _of_client(name: str, head: str, body: str = "") -> Case:
    fields = [line.lower() for line in head.split("\n") if line.lower().startswith("connection:")]
    ends = "HTTP/1.0\n" in f"{head}\n" or any("close" in re.split("[:, ]+", field) for field in fields)
    return Case("plain", name, _decode("⏎".join([*head.split("\n"), "", body])), ends=ends)


PLAIN = [_of_client(**written) for written in _WRITTEN["plain"]]
"""Requests of real clients."""
ODD = _group("odd", [[200]])
"""Other valid requests."""
REFUSABLE = _group("refusable", [[200, 400]])
"""Requests that a server may accept or refuse."""
HOSTILE = _group("hostile", [[400]], ends=True)
"""Requests that must not reach a resource."""
AT_ONCE = _group("at_once", [[400]], ends=True)
"""Requests that are refused before the end of their head has arrived."""
HIDING = _group("hiding", [[200]])
"""Attempts whose visible request may be accepted; the hidden request must not be executed."""

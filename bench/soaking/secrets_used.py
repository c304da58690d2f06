"""The secrets that clients of this process have used, which must not be logged."""

import re
from collections.abc import Iterator

PIECE = 12
"""The length of the parts of a secret that must not be logged, in characters."""

_RUN = re.compile(rb"[A-Za-z0-9_-]{%d,}" % PIECE)
"""Runs of characters that percent-encoding and escapes leave unchanged."""


class Secrets:
    """A set of secrets, to search texts for.

    Of each run of letters and digits in a secret, the first and the last `PIECE` characters are searched for; a secret
    without such a run is not.
    """

    def __init__(self) -> None:
        self._pieces: set[bytes] = set()

    def add(self, secret: str) -> str:
        """Add a secret; return it."""
        for run in _RUN.findall(secret.encode()):
            self._pieces.update((run[:PIECE], run[-PIECE:]))
        return secret

    def found_in(self, text: bytes) -> bool:
        return not self._pieces.isdisjoint(_pieces_of(text))


def _pieces_of(text: bytes) -> Iterator[bytes]:
    for run in _RUN.findall(text):
        for place in range(len(run) - PIECE + 1):
            yield run[place : place + PIECE]


USED = Secrets()

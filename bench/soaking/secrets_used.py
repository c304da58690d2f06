"""The secrets that clients of this process have used: no log may contain any of them."""

import re
from collections.abc import Iterator

PIECE = 12
"""Characters of a secret that give it away."""

_RUN = re.compile(rb"[A-Za-z0-9_-]{%d,}" % PIECE)
"""What percent-encoding, quotes and escapes leave as it is."""


class Secrets:
    """A set of secrets that texts are searched for.

    Of each run of letters and digits in a secret, the first and the last `PIECE` characters are searched for; a secret
    without such a run is not.
    """

    def __init__(self) -> None:
        self._pieces: set[bytes] = set()

    def add(self, secret: str) -> str:
        """Note a secret; return it."""
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

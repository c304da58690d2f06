"""Requests that may come more than once and are to be done once: `Idempotency-Key` (contract 2).

The field is that of draft-ietf-httpapi-idempotency-key-header, whose status codes these are. A key is taken as it
stands: the draft would have it quoted, and most clients send it bare.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from postd.errors import KeyInUseError
from postd.store.interface import IdempotencyKey
from postd.web.errors import Problem

KEPT_S = 24 * 3600
"""How long a key is remembered that a post was stored with."""

_KEY = re.compile(rb"[!-~]{1,255}")


class IdempotencyKeys:
    """Knows which keys are under way in this process; the store has those that are done.

    Args:
        now: the clock, in seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._under_way: set[bytes] = set()

    async def run(self, request: Any, store_once: Callable[[IdempotencyKey | None], Awaitable[int]]) -> int:
        """Return what `store_once` comes to, for the key of a request, None if it has none.

        Raises:
            Problem: 400, the field is not one key.
            KeyInUseError: a request with the same key is under way.
            KeyReusedError: another request has stored something with it.
        """
        values = request.fields.get(b"Idempotency-Key")
        if values is None:
            return await store_once(None)
        if len(values) != 1 or not _KEY.fullmatch(values[0]):
            raise Problem(400, "Idempotency-Key must be given once, as 1 to 255 visible ASCII characters.")
        now = self._now()
        hashed = _hash_key(request.username or "", values[0])
        with self._alone(hashed):
            return await store_once(IdempotencyKey(hashed, _hash(request.content.getvalue()), now, now + KEPT_S))

    @contextmanager
    def _alone(self, key: bytes) -> Iterator[None]:
        if key in self._under_way:
            raise KeyInUseError
        self._under_way.add(key)
        try:
            yield
        finally:
            self._under_way.discard(key)


def _hash_key(user: str, key: bytes) -> bytes:
    """Return what a key is kept under: keys of different users do not meet."""
    return _hash(b"%d:%b%b" % (len(user.encode()), user.encode(), key))


def _hash(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()

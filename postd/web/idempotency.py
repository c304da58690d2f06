"""Idempotency keys: a POST that is repeated takes effect once (reference: Idempotency keys).

Field and statuses follow draft-ietf-httpapi-idempotency-key-header, except that a key is used as sent: the draft
requires quotes, which most clients leave out.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from postd.errors import KeyInUseError
from postd.http.errors import Problem
from postd.http.interface import Request
from postd.store.interface import IdempotencyKey

KEPT_S = 24 * 3600
"""How long a key is remembered after the post was stored."""

_KEY = re.compile(rb"[!-~]{1,255}")
_NO_KEY = nullcontext()


class IdempotencyKeys:
    """The keys of requests in progress in this process; completed ones are in the store. `now` is in epoch seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._in_progress: set[bytes] = set()

    def hold(self, request: Request) -> AbstractContextManager[IdempotencyKey | None]:
        """Return a context that holds the key of a request; its value is for the store, None without a key.

        Raises:
            Problem: 400, the field is not exactly one key.
            KeyInUseError: a request with the same key is in progress.
        """
        values = request.fields.get(b"Idempotency-Key")
        return _NO_KEY if values is None else self._hold(request, values)

    @contextmanager
    def _hold(self, request: Request, values: Sequence[bytes]) -> Iterator[IdempotencyKey]:
        if len(values) != 1 or not _KEY.fullmatch(values[0]):
            raise Problem(400, "Idempotency-Key must be given once, as 1 to 255 visible ASCII characters.")
        account = ("" if request.identity is None else request.identity.account).encode()
        key = _hash(b"%d:%b%b" % (len(account), account, values[0]))  # keys of different users differ
        if key in self._in_progress:
            raise KeyInUseError
        now = self._now()
        self._in_progress.add(key)
        try:
            yield IdempotencyKey(key, _hash(request.body), now, now + KEPT_S)
        finally:
            self._in_progress.discard(key)


def _hash(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()

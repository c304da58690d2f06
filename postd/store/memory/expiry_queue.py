"""A priority queue of keys by their expiry."""

from heapq import heapify, heappop, heappush

_STALE_MIN = 64
"""A heap with fewer outdated items is not rebuilt."""


class ExpiryQueue:
    """Keys, each with one expiry, in seconds since the epoch.

    Each call, or each key that is popped, takes amortized logarithmic time. An expiry that was changed or discarded
    leaves an outdated item in the heap; when most of its items are outdated, the heap is rebuilt: its size stays in
    proportion to the number of keys.
    """

    def __init__(self) -> None:
        self._expiries: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []

    def set(self, key: bytes, expires: float) -> None:
        """Add a key, or change its expiry."""
        if self._expiries.get(key) != expires:
            self._expiries[key] = expires
            heappush(self._heap, (expires, key))
            self._rebuild_if_outdated()

    def discard(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        if self._expiries.pop(key, None) is not None:
            self._rebuild_if_outdated()

    def pop_expired(self, *, now: float, most: int) -> list[bytes]:
        """Remove and return at most so many keys whose expiry is `now` or earlier, the earliest first."""
        expired: list[bytes] = []
        while self._heap and self._heap[0][0] <= now and len(expired) < most:
            expires, key = heappop(self._heap)
            if self._expiries.get(key) == expires:
                del self._expiries[key]
                expired.append(key)
        return expired

    def _rebuild_if_outdated(self) -> None:
        if len(self._heap) > 2 * len(self._expiries) + _STALE_MIN:
            self._heap = [(expires, key) for key, expires in self._expiries.items()]
            heapify(self._heap)

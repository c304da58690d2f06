"""The memory of responses on their way to their clients (`[limits] response_memory`; reference: Safe by default)."""

from collections import Counter
from typing import Any

from postd.errors import ServerBusyError
from postd.http.responses import NO_MEMORY, Memory

CLIENT_SHARE = 8
"""A client uses at most one of so many parts of the memory."""


class _Client:
    """What one client holds: bytes in all, and how many of its responses share each object, by the object's id."""

    def __init__(self) -> None:
        self.bytes = 0
        self.responses = 0
        self.shared: Counter[int] = Counter()


class Holding:
    """The memory that a response holds until `release`."""

    __slots__ = ("_all", "_client", "_memory")

    def __init__(self, all_memory: "ResponseMemory", client: str, memory: Memory) -> None:
        self._all = all_memory
        self._client = client
        self._memory = memory

    def release(self) -> None:
        """Count the memory as free; only once."""
        self._all.free(self._client, self._memory)


class ResponseMemory:
    """Counts the memory of responses that their clients have not read yet, by client.

    A client is a network, as `postd.protocol.host.client_network` returns it. An object that several responses have in
    common, such as the body of a page, counts once. A client gets an eighth of the memory, and half of what would then
    be free: the more is in use, the less a single client may hold, so that there is room for others (dynamic threshold
    of Choudhury and Hahne, 1998).

    Attributes:
        max_bytes: the limit for the process; a client that holds nothing gets one response of any size within it.
        used_bytes: what all clients hold.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._clients: dict[str, _Client] = {}
        self._shared: Counter[int] = Counter()

    def require_room(self, client: str, memory: Memory = NO_MEMORY) -> None:
        """Check that there is room for a response.

        Args:
            client: the client's network.
            memory: what the response would hold.

        Raises:
            ServerBusyError: the client, or the process, has used up its memory.
        """
        if not self.used_bytes:
            return
        own_bytes, shared, shared_bytes = memory
        held = self._clients.get(client)
        total = self.used_bytes + own_bytes + (0 if id(shared) in self._shared else shared_bytes)
        is_over = total > self.max_bytes
        if held is not None:
            used = held.bytes + own_bytes + (0 if id(shared) in held.shared else shared_bytes)
            is_over = is_over or used > self.max_bytes // CLIENT_SHARE or used > (self.max_bytes - total) // 2
        if is_over:
            raise ServerBusyError

    def hold(self, client: str, memory: Memory) -> Holding:
        """Count the memory of a response, whether or not there is room for it."""
        own_bytes, shared, shared_bytes = memory
        held = self._clients.setdefault(client, _Client())
        held.responses += 1
        held.bytes += own_bytes
        self.used_bytes += own_bytes
        if shared is not None:
            if id(shared) not in held.shared:
                held.bytes += shared_bytes
            if id(shared) not in self._shared:
                self.used_bytes += shared_bytes
            held.shared[id(shared)] += 1
            self._shared[id(shared)] += 1
        return Holding(self, client, memory)

    def free(self, client: str, memory: Memory) -> None:
        """Called by `Holding.release`."""
        own_bytes, shared, shared_bytes = memory
        held = self._clients[client]
        held.responses -= 1
        held.bytes -= own_bytes
        self.used_bytes -= own_bytes
        if shared is not None:
            if _leave(held.shared, shared):
                held.bytes -= shared_bytes
            if _leave(self._shared, shared):
                self.used_bytes -= shared_bytes
        if not held.responses:
            del self._clients[client]


def _leave(users: Counter[int], shared: Any) -> bool:
    """Count one user of an object less; return whether it was the last one."""
    users[id(shared)] -= 1
    if users[id(shared)]:
        return False
    del users[id(shared)]
    return True

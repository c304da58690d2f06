"""The memory of responses on their way to their clients (`[limits] response_memory`; reference: Safe by default)."""

from collections import Counter

from postd.errors import ServerBusyError
from postd.http.responses import NO_MEMORY, Memory
from postd.protocol.host import client_site

CLIENT_SHARE = 8
"""A client uses at most this fraction of the memory: one part of so many."""


class _Usage:
    """Memory in use: bytes, holdings, and how many holdings share each object, by the object's id."""

    def __init__(self) -> None:
        self.bytes = 0
        self.holdings = 0
        self._users: Counter[int] = Counter()

    def bytes_with(self, memory: Memory) -> int:
        """Return the bytes in use with one more holding."""
        own_bytes, shared, shared_bytes = memory
        return self.bytes + own_bytes + (0 if id(shared) in self._users else shared_bytes)

    def add(self, memory: Memory) -> None:
        self.bytes = self.bytes_with(memory)
        self.holdings += 1
        self._users[id(memory[1])] += 1

    def remove(self, memory: Memory) -> None:
        shared = id(memory[1])
        self._users[shared] -= 1
        if not self._users[shared]:
            del self._users[shared]
        self.bytes -= self.bytes_with(memory) - self.bytes  # as much as it would add now
        self.holdings -= 1


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

    A client is a network, as `postd.protocol.host.client_network` returns it; the networks of an IPv6 /48 count
    together, too. An object that several responses have in common, such as the body of a page, counts once. A client
    gets an eighth of the memory, and half of what would then be free: the more is in use, the less a single client may
    hold, so that there is room for other clients (dynamic threshold of Choudhury and Hahne, 1998).

    Attributes:
        max_bytes: the limit for the process. The first response may be larger; the first one of each client may be
            larger than the client's share.
        used_bytes: the memory that all clients hold.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0  # not a property: it is read for each response
        self._all = _Usage()
        self._clients: dict[str, _Usage] = {}

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
        total = self._all.bytes_with(memory)
        is_over = total > self.max_bytes
        for name in {client, client_site(client)} & self._clients.keys():
            used = self._clients[name].bytes_with(memory)
            is_over = is_over or used > (self.max_bytes - total) // 2
            is_over = is_over or (name == client and used > self.max_bytes // CLIENT_SHARE)
        if is_over:
            raise ServerBusyError

    def hold(self, client: str, memory: Memory) -> Holding:
        """Count the memory of a response, whether or not there is room for it."""
        self._all.add(memory)
        self.used_bytes = self._all.bytes
        for name in {client, client_site(client)}:
            self._clients.setdefault(name, _Usage()).add(memory)
        return Holding(self, client, memory)

    def free(self, client: str, memory: Memory) -> None:
        """Called by `Holding.release`."""
        self._all.remove(memory)
        self.used_bytes = self._all.bytes
        for name in {client, client_site(client)}:
            usage = self._clients[name]
            usage.remove(memory)
            if not usage.holdings:
                del self._clients[name]

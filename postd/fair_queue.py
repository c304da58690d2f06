"""Fair queuing of expensive work: waiting clients take turns, however much each of them asks for.

A client is the network by which its address is counted (`postd.protocol.host.client_network`): an IPv4 address, or an
IPv6 /64. The networks of one IPv6 /48, which a single customer may have, take at most `SITE_TURNS` turns a round.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime

from postd.errors import ServerBusyError
from postd.protocol.host import client_site

SITE_TURNS = 8
"""How many turns the networks of one IPv6 /48 take in a round, together."""

TURN_MAX_S = 0.0005
"""How much time expensive work takes in one turn of the reactor."""

RUNNING_MAX = 8
"""How much work may wait for a store in its turn."""

WAITING_MAX = 1024
"""How much work may wait for a turn; further work is refused."""

T = TypeVar("T")


class _Site(Generic[T]):
    """The items of one site: an IPv4 address, or an IPv6 /48."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, deque[T]] = OrderedDict()
        self.count = 0
        self.turns_left = 0  # of its visit; 0 between two visits


class FairQueue(Generic[T]):
    """Items that wait, by client.

    Args:
        max_items: limit on all items. Beyond it the site with the most items loses its last one.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._sites: OrderedDict[str, _Site[T]] = OrderedDict()  # the next one first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, client: str, item: T) -> T | None:
        """Add an item; return the item that is dropped for it, which may be the same one, or None."""
        name = client_site(client)
        site = self._sites.get(name)
        dropped = None
        if self._count >= self._max_items:
            largest = max(self._sites.values(), key=lambda each: each.count)
            if site is not None and site.count + 1 >= largest.count:
                largest = site
            if largest is site or largest.count == 1:
                return item
            longest = max(largest.clients, key=lambda each: len(largest.clients[each]))
            dropped = largest.clients[longest][-1]
            self.discard(longest, dropped)
        if site is None:
            site = self._sites[name] = _Site()
        site.clients.setdefault(client, deque()).append(item)
        site.count += 1
        self._count += 1
        return dropped

    def take(self) -> T:
        """Remove and return the item whose turn it is."""
        name, site = next(iter(self._sites.items()))
        client, items = next(iter(site.clients.items()))
        site.turns_left = (site.turns_left or min(SITE_TURNS, len(site.clients))) - 1
        item = items[0]
        site.clients.move_to_end(client)
        if not site.turns_left:
            self._sites.move_to_end(name)
        self.discard(client, item)
        return item

    def drop_if(self, is_unwanted: Callable[[T], bool]) -> list[T]:
        """Remove the items for which a function is true, and return them."""
        found = [
            (client, item)
            for site in self._sites.values()
            for client, items in site.clients.items()
            for item in items
            if is_unwanted(item)
        ]
        for client, item in found:
            self.discard(client, item)
        return [item for _, item in found]

    @property
    def is_full(self) -> bool:
        return self._count >= self._max_items

    def discard(self, client: str, item: T) -> None:
        """Remove an item if it is still there."""
        name = client_site(client)
        site = self._sites.get(name)
        items = None if site is None else site.clients.get(client)
        if site is None or items is None or item not in items:
            return
        items.remove(item)
        site.count -= 1
        self._count -= 1
        if not items:
            del site.clients[client]
        if not site.count:
            del self._sites[name]


def _is_wanted() -> bool:
    return True


class FairSemaphore:
    """Slots for concurrent work, assigned to the waiting clients in turn.

    Args:
        slots: how much work runs at the same time.
        max_waiting: limit on the work that waits.
    """

    def __init__(self, slots: int, *, max_waiting: int) -> None:
        self._free = slots
        self._is_releasing = False
        self._waiting: FairQueue[_Waiter] = FairQueue(max_waiting)

    async def acquire(self, client: str, *, is_wanted: Callable[[], bool] = _is_wanted) -> None:
        """Take a slot, which must be released.

        Args:
            client: whose turn it takes.
            is_wanted: returns whether the result is still wanted; if not, the turn is passed on.

        Raises:
            ServerBusyError: too much work waits, or the result is not wanted any more.
        """
        if self._free and not self._waiting:
            self._free -= 1
        else:
            if self._waiting.is_full:
                for unwanted in self._waiting.drop_if(lambda waiter: not waiter.is_wanted()):
                    unwanted.refuse()
            await _wait(self._waiting, client, _Waiter(is_wanted))

    @asynccontextmanager
    async def slot(self, client: str, *, is_wanted: Callable[[], bool] = _is_wanted) -> AsyncIterator[None]:
        """Hold a slot within; as `acquire`."""
        await self.acquire(client, is_wanted=is_wanted)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        self._free += 1
        if self._is_releasing:  # called by work that the loop below has resumed, and that did not wait
            return
        self._is_releasing = True
        try:
            while self._free and self._waiting:
                waiter = self._waiting.take()
                if waiter.is_wanted():
                    self._free -= 1
                    waiter.callback(None)
                else:
                    waiter.refuse()
        finally:
            self._is_releasing = False


class _Waiter(Deferred[None]):
    """Fires when it is a client's turn, or when its work is refused.

    It holds no error: the frames of the error would refer to it, and that cycle would keep all that the refused work
    has in memory, such as the text of a list, until the next garbage collection.
    """

    def __init__(self, is_wanted: Callable[[], bool] = _is_wanted) -> None:
        super().__init__()
        self.is_wanted = is_wanted
        self.is_refused = False

    def refuse(self) -> None:
        self.is_refused = True
        self.callback(None)


async def _wait(queue: FairQueue[_Waiter], client: str, waiter: _Waiter) -> None:
    dropped = queue.add(client, waiter)
    if dropped is not None:
        dropped.refuse()
    try:
        await waiter
    except CancelledError:
        queue.discard(client, waiter)
        raise
    if waiter.is_refused:
        raise ServerBusyError


class FairTurns:
    """Time on the reactor's thread for expensive work, such as encoding and compressing lists.

    Such work begins only for `TURN_MAX_S` in each turn of the reactor: a request that is read meanwhile waits for
    one piece of work of each other client. Work that waits for a store in its turn is limited in number: its results
    may all arrive together.

    Args:
        clock: the reactor's.
        max_waiting: limit on the work that waits.
    """

    def __init__(self, clock: IReactorTime, *, max_waiting: int = WAITING_MAX) -> None:
        self.clock = clock
        self._left_s = TURN_MAX_S
        self._running = 0
        self._is_scheduled = False
        self._waiting: FairQueue[_Waiter] = FairQueue(max_waiting)

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn of a client, and count the time that is taken within.

        Raises:
            ServerBusyError: too much work waits.
        """
        if not self._has_room or self._waiting:
            self._schedule()
            await _wait(self._waiting, client, _Waiter())
        self._running += 1
        began = perf_counter()
        try:
            yield
        finally:
            self._running -= 1
            self._left_s -= perf_counter() - began
            # Early, so that the work of several short turns does not use up the time of one.
            if self._left_s < TURN_MAX_S / 2 or self._waiting:
                self._schedule()

    @property
    def _has_room(self) -> bool:
        return self._left_s > 0 and self._running < RUNNING_MAX

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.clock.callLater(0, self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self._left_s = TURN_MAX_S
        while self._waiting and self._has_room:
            self._waiting.take().callback(None)
        if self._waiting and self._running < RUNNING_MAX:  # else the next one that ends does so
            self._schedule()


class Semaphore(DeferredSemaphore):
    """A `DeferredSemaphore` that resumes waiting coroutines in a loop.

    Twisted's resumes each one within the `release` of the one before. Some hundred coroutines in a row that release it
    without waiting for anything else exceed the recursion limit.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self._releases = 0  # that are pending

    def release(self) -> None:
        self._releases += 1
        if self._releases > 1:  # called by a coroutine that the loop below has resumed
            return
        while self._releases:
            super().release()
            self._releases -= 1

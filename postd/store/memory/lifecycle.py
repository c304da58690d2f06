"""Opening and closing a store in memory (`postd.store.interface.Lifecycle`)."""

from typing import Literal

from postd.errors import StoreUnavailableError
from postd.store.interface import OperationObserver, ignore_operation


class MemoryLifecycle:
    """A store that is open or closed.

    Attributes:
        description: the store for the log and for messages.
        observer: is called with each read and write, with a duration of 0.
    """

    def __init__(self) -> None:
        self.description = "memory:"
        self.observer: OperationObserver = ignore_operation
        self._why_closed = "memory: not open yet"

    def prepare(self, *, create: bool = True) -> bool:  # noqa: ARG002 - it exists
        """Do nothing: a store in memory needs no check."""
        return False

    async def start(self) -> None:
        self._why_closed = ""

    async def stop(self) -> None:
        self._why_closed = "memory: closed"

    def _begin(self, operation: Literal["read", "write"]) -> None:
        """Pass an operation to the observer.

        Raises:
            StoreUnavailableError: the store is not open.
        """
        self.observer(operation, 0.0, failed=bool(self._why_closed))
        if self._why_closed:
            raise StoreUnavailableError(self._why_closed)

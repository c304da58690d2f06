"""What the parts of a store have in common."""

from typing import Generic, TypeVar

from postd.store.interface import Lifecycle, OperationObserver

DatabaseT = TypeVar("DatabaseT", bound=Lifecycle)


class StorePart(Generic[DatabaseT]):
    """Posts or logins in a database. A store inherits from both, and is a `postd.store.interface.Store`."""

    def __init__(self, database: DatabaseT) -> None:
        self.database = database
        self.description = database.description
        self.prepare, self.start, self.stop = database.prepare, database.start, database.stop

    @property
    def observer(self) -> OperationObserver:
        return self.database.observer

    @observer.setter
    def observer(self, observer: OperationObserver) -> None:
        self.database.observer = observer

"""A reactor whose time stands: on a busy machine no limit ends anything before the test wants it."""

import time
from collections.abc import Callable
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import Clock
from zope.interface import directlyProvides, providedBy


class HeldReactor(Clock):
    """The reactor, but for its clock, which stands at the present until a test advances it.

    Calls without a delay are made by the reactor itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rightNow = time.time()
        directlyProvides(self, providedBy(reactor))

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> IDelayedCall:  # noqa: A002 - the interface's name
        call_later = super().callLater if delay > 0 else cast(IReactorTime, reactor).callLater
        return call_later(delay, callable, *args, **kw)

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)

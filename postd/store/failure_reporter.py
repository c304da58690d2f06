"""What the log is told of a store that fails."""

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

TELL_AGAIN_AFTER_S = 10
"""How soon the same is told again. Some writes go on where others fail: one that frees space, where there is none."""


class FailureReporter:
    """Tells the log when something begins to fail and when it works again, not at every request between.

    Args:
        log: is told.
        what: fails.
        clock: the reactor.
    """

    def __init__(self, log: Logger, what: str, clock: IReactorTime) -> None:
        self._log = log
        self._what = what
        self._clock = clock
        self._told: tuple[str, float] = "", 0.0
        self._failing = False

    def began(self, why: str) -> None:
        now = self._clock.seconds()
        told, when = self._told
        if why == told and (self._failing or 0 <= now - when < TELL_AGAIN_AFTER_S):
            return
        self._told = why, now
        self._failing = True
        self._log.error("store: {what} fails: {why}", what=self._what, why=why)

    def ended(self) -> None:
        if self._failing:
            self._failing = False
            self._log.info("store: {what} works again", what=self._what)

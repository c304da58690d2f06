"""Log when an operation begins to fail and when it works again, instead of each failed request."""

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

REPEAT_AFTER_S = 10
"""The same failure is not logged again sooner. On a full disk deletions succeed and other writes fail: each change
between the two would be logged."""


class FailureReporter:
    """Logs the first failure for each reason, and the first success after failures.

    Args:
        what: the name of the operation in the log: reading or writing.

    Attributes:
        failing: whether the last operation has failed; if not, `succeeded` has nothing to do.
    """

    def __init__(self, log: Logger, what: str, clock: IReactorTime) -> None:
        self._log = log
        self._what = what
        self._clock = clock
        self._logged: tuple[str, float] = "", 0.0
        self.failing = False

    def failed(self, why: str) -> None:
        """Note a failure."""
        now = self._clock.seconds()
        last_why, logged_at = self._logged
        if why == last_why and (self.failing or 0 <= now - logged_at < REPEAT_AFTER_S):
            return
        self._logged = why, now
        self.failing = True
        self._log.error("store: {what} fails: {why}", what=self._what, why=why)

    def succeeded(self) -> None:
        """Note a success."""
        if self.failing:
            self.failing = False
            self._log.info("store: {what} works again", what=self._what)

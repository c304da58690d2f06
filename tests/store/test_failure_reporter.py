"""The log lines of a store that fails."""

from twisted.internet.task import Clock
from twisted.logger import Logger, capturedLogs, formatEvent

from postd.store.failure_reporter import REPEAT_AFTER_S, FailureReporter


def test_each_reason_and_the_recovery_are_logged_once() -> None:
    reporter = FailureReporter(Logger(), "writing", Clock())
    with capturedLogs() as events:
        reporter.succeeded()
        for why in ("full", "full", "locked"):
            reporter.failed(why)
        reporter.succeeded()
        reporter.succeeded()
    assert [formatEvent(event) for event in events] == [
        "store: writing fails: full",
        "store: writing fails: locked",
        "store: writing works again",
    ]


def test_intermittent_failure_is_logged_at_intervals() -> None:
    clock = Clock()
    reporter = FailureReporter(Logger(), "writing", clock)
    with capturedLogs() as events:
        for _ in range(3 * REPEAT_AFTER_S * 10):
            clock.advance(0.1)
            reporter.failed("full")
            reporter.succeeded()
    assert len(events) == 6

"""What the log is told of a store that fails."""

from twisted.internet.task import Clock
from twisted.logger import Logger, capturedLogs, formatEvent

from postd.store.failure_reporter import TELL_AGAIN_AFTER_S, FailureReporter


def test_the_log_is_told_once_of_each_trouble_and_of_its_end() -> None:
    trouble = FailureReporter(Logger(), "writing", Clock())
    with capturedLogs() as told:
        trouble.ended()
        for why in ("full", "full", "locked"):
            trouble.began(why)
        trouble.ended()
        trouble.ended()
    assert [formatEvent(event) for event in told] == [
        "store: writing fails: full",
        "store: writing fails: locked",
        "store: writing works again",
    ]


def test_what_fails_now_and_then_is_told_now_and_then() -> None:
    clock = Clock()
    trouble = FailureReporter(Logger(), "writing", clock)
    with capturedLogs() as told:
        for _ in range(3 * TELL_AGAIN_AFTER_S * 10):
            clock.advance(0.1)
            trouble.began("full")
            trouble.ended()
    assert len(told) == 6

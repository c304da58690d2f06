"""Group commit, with a clock and a thread that the test moves by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from postd.errors import NoSuchPostError, StoreBusyError, StoreUnavailableError
from postd.store.group_commit import BATCH_MAX, QUEUE_MAX, GroupCommit, Outcome


class IterationClock(Clock):
    """A clock that runs in an iteration, as reactors do, only the calls that were scheduled before it."""

    def advance(self, amount: float) -> None:
        self.rightNow += amount
        for call in [one for one in self.calls if one.getTime() <= self.seconds()]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


class GroupCommitTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = IterationClock()
        self.batches: list[Sequence[str]] = []
        self.done: list[Deferred[Any]] = []
        self.error: Exception | None = None
        self.writes: GroupCommit[str] = GroupCommit(self.commit, clock=self.clock)

    def commit(self, writes: Sequence[str]) -> Deferred[Sequence[Outcome]]:
        if self.error is not None:
            raise self.error
        self.batches.append(writes)
        self.done.append(Deferred())
        return self.done[-1]

    def next_iteration(self) -> None:
        """End the iteration of the reactor in which a batch was acknowledged, and the one after it."""
        self.clock.advance(0)
        self.clock.advance(0)

    def test_writes_of_one_iteration_make_one_batch(self) -> None:
        results = [self.writes.submit("a"), self.writes.submit("b")]
        assert self.batches == []
        self.clock.advance(0)
        assert self.batches == [["a", "b"]]
        self.done[0].callback([1, 2])
        assert [self.successResultOf(result) for result in results] == [1, 2]

    def test_batch_that_cannot_begin_fails_alone(self) -> None:
        self.error = ValueError("unexpected")
        results = [self.writes.submit("a"), self.writes.submit("b")]
        self.clock.advance(0)
        for result in results:
            self.failureResultOf(result, ValueError)
        self.error = None
        self.writes.submit("c")
        self.clock.advance(0)
        assert self.batches == [["c"]]

    def test_writes_during_a_batch_make_the_next(self) -> None:
        self.writes.submit("a")
        self.clock.advance(0)
        later = [self.writes.submit("b"), self.writes.submit("c")]
        self.clock.advance(0)
        assert self.batches == [["a"]]
        self.done[0].callback([1])
        self.next_iteration()
        assert self.batches == [["a"], ["b", "c"]]
        self.done[1].callback([2, 3])
        assert [self.successResultOf(result) for result in later] == [2, 3]

    def test_batch_has_the_writes_that_acknowledged_clients_send_next(self) -> None:
        self.writes.submit("a")
        self.clock.advance(0)
        self.writes.submit("b")
        self.done[0].callback([1])
        self.clock.advance(0)  # the iteration in which the batch is acknowledged
        assert self.batches == [["a"]]
        self.writes.submit("c")
        self.clock.advance(0)
        assert self.batches == [["a"], ["b", "c"]]

    def test_batch_is_bounded(self) -> None:
        for n in range(BATCH_MAX + 1):
            self.writes.submit(str(n))
        self.clock.advance(0)
        assert len(self.batches[0]) == BATCH_MAX
        self.done[0].callback([None] * BATCH_MAX)
        self.next_iteration()
        assert self.batches[1] == [str(BATCH_MAX)]

    def test_queue_is_bounded(self) -> None:
        for n in range(QUEUE_MAX):
            self.writes.submit(str(n))
        with pytest.raises(StoreBusyError):
            self.writes.submit("one too many")

    def test_error_outcome_fails_its_own_write_only(self) -> None:
        good, bad = self.writes.submit("a"), self.writes.submit("b")
        self.clock.advance(0)
        self.done[0].callback([1, NoSuchPostError(7)])
        assert self.successResultOf(good) == 1
        self.failureResultOf(bad, NoSuchPostError)

    def test_failed_batch_fails_queued_writes(self) -> None:
        """Else, behind a lock that is waited for, each would wait its whole time, one after the other."""
        first = self.writes.submit("a")
        self.clock.advance(0)
        second = self.writes.submit("b")
        self.done[0].errback(StoreUnavailableError("locked"))
        self.failureResultOf(first, StoreUnavailableError)
        self.failureResultOf(second, StoreUnavailableError)
        third = self.writes.submit("c")
        self.clock.advance(0)
        self.done[1].callback([3])
        assert self.successResultOf(third) == 3

    def test_cancelled_write_does_not_affect_others(self) -> None:
        gone, waiting = self.writes.submit("a"), self.writes.submit("b")
        gone.addErrback(lambda _: None)
        gone.cancel()
        self.clock.advance(0)
        self.done[0].callback([1, 2])
        assert self.successResultOf(waiting) == 2

    def test_close_waits_for_queued_writes(self) -> None:
        result = self.writes.submit("a")
        closing = Deferred.fromCoroutine(self.writes.close())
        with pytest.raises(StoreUnavailableError):
            self.writes.submit("late")
        self.clock.advance(0)
        self.assertNoResult(closing)
        self.done[0].callback([1])
        assert self.successResultOf(result) == 1
        self.successResultOf(closing)

    def test_cancelled_close_does_not_affect_another_one(self) -> None:
        self.writes.submit("a")
        cancelled, closing = (Deferred.fromCoroutine(self.writes.close()) for _ in range(2))
        self.clock.advance(0)
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.assertNoResult(closing)
        self.done[0].callback([1])
        self.successResultOf(closing)

    def test_close_of_an_idle_queue_is_immediate(self) -> None:
        self.successResultOf(Deferred.fromCoroutine(self.writes.close()))

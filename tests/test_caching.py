"""The TTL cache and single flight."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import capturedLogs

from postd.caching import SingleFlight, TTLCache
from tests.helpers import result_of


class TTLCacheTests:
    def test_value_expires_at_its_end(self) -> None:
        cache = TTLCache[str, int](10)
        cache.put("a", 1, until=100.0)
        assert [cache.get("a", now) for now in (0, 99.9, 100, 101)] == [1, 1, None, None]

    def test_missing_key_returns_none(self) -> None:
        cache = TTLCache[str, int](10)
        cache.put("a", 1, until=100.0)
        for now in (-1.0, 0.0, 50.0):
            assert cache.get("b", now) is None

    def test_put_replaces_value_and_expiry(self) -> None:
        cache = TTLCache[str, int](10)
        cache.put("a", 1, until=100.0)
        cache.put("a", 2, until=50.0)
        assert (cache.get("a", 49), cache.get("a", 50)) == (2, None)

    def test_full_cache_evicts_the_oldest(self) -> None:
        cache = TTLCache[str, int](2)
        for number, key in enumerate("abc"):
            cache.put(key, number, until=100.0)
        assert [cache.get(key, 0) for key in "abc"] == [None, 1, 2]

    def test_value_put_again_becomes_the_newest(self) -> None:
        cache = TTLCache[str, int](2)
        for key in ("a", "b", "a", "c"):
            cache.put(key, 1, until=100.0)
        assert [cache.get(key, 0) for key in "abc"] == [1, None, 1]

    def test_value_put_again_evicts_nothing(self) -> None:
        cache = TTLCache[str, int](2)
        for key in ("a", "b", "b", "b"):
            cache.put(key, 1, until=100.0)
        assert [cache.get(key, 0) for key in "ab"] == [1, 1]

    def test_false_values_are_returned(self) -> None:
        cache = TTLCache[str, object](10)
        for value in (0, "", False, ()):
            cache.put("a", value, until=100.0)
            assert cache.get("a", 0) == value

    def test_clear_removes_all_values(self) -> None:
        cache = TTLCache[str, int](2)
        cache.put("a", 1, until=100.0)
        cache.put("b", 1, until=100.0)
        cache.clear()
        assert [cache.get(key, 0) for key in "ab"] == [None, None]
        cache.put("a", 2, until=100.0)
        assert cache.get("a", 0) == 2

    @given(
        max_size=st.integers(1, 4),
        puts=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(), st.integers(0, 10))),
        now=st.integers(0, 10),
    )
    def test_holds_the_last_values_put(self, max_size: int, puts: list[tuple[str, int, int]], now: int) -> None:
        cache = TTLCache[str, int](max_size)
        expected: dict[str, tuple[int, int]] = {}
        for key, value, until in puts:
            cache.put(key, value, until=until)
            expected.pop(key, None)
            expected[key] = value, until
        last = dict(list(expected.items())[-max_size:])
        for key in "abcdef":
            value, until = last.get(key, (0, 0))
            assert cache.get(key, now) == (value if now < until else None)


class Work:
    """Work that ends when the test fires its Deferred."""

    def __init__(self) -> None:
        self.started: list[Deferred[str]] = []
        self.cancelled = 0

    async def __call__(self) -> str:
        self.started.append(Deferred(self._cancel))
        return await self.started[-1]

    def _cancel(self, _: object) -> None:
        self.cancelled += 1


def run(flight: SingleFlight[str, Any], key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Deferred[Any]:
    return Deferred.fromCoroutine(flight.run(key, work))


@pytest.fixture
def flight() -> SingleFlight[str, Any]:
    return SingleFlight()


@pytest.fixture
def work() -> Work:
    return Work()


class SingleFlightTests:
    def test_runs_once_for_concurrent_callers(self, flight: SingleFlight[str, Any], work: Work) -> None:
        waiting = [run(flight, "a", work) for _ in range(5)]
        assert len(work.started) == 1
        assert "a" in flight
        assert len(flight) == 1
        assert not any(one.called for one in waiting)
        work.started[0].callback("done")
        assert [result_of(one) for one in waiting] == ["done"] * 5
        assert "a" not in flight
        assert len(flight) == 0

    def test_cancelled_work_fails_for_all_its_callers(self, flight: SingleFlight[str, Any], work: Work) -> None:
        waiting = [run(flight, key, work) for key in ("a", "a", "b")]
        flight.cancel()
        for one in waiting:
            with pytest.raises(CancelledError):
                result_of(one)
        assert len(flight) == 0
        again = run(flight, "a", work)
        work.started[-1].callback("done")
        assert result_of(again) == "done"

    def test_other_key_runs_separately(self, flight: SingleFlight[str, Any], work: Work) -> None:
        first, second = run(flight, "a", work), run(flight, "b", work)
        assert len(work.started) == len(flight) == 2
        work.started[1].callback("of b")
        assert result_of(second) == "of b"
        assert not first.called
        assert "a" in flight
        assert "b" not in flight
        work.started[0].callback("of a")
        assert result_of(first) == "of a"

    def test_later_caller_runs_again(self, flight: SingleFlight[str, Any], work: Work) -> None:
        for number in range(3):
            waiting = run(flight, "a", work)
            assert len(work.started) == number + 1
            work.started[number].callback(str(number))
            assert result_of(waiting) == str(number)

    def test_synchronous_result_is_returned(self, flight: SingleFlight[str, Any]) -> None:
        async def work() -> str:
            return "at once"

        assert result_of(run(flight, "a", work)) == "at once"
        assert len(flight) == 0

    def test_failure_reaches_all_callers(self, flight: SingleFlight[str, Any], work: Work) -> None:
        waiting = [run(flight, "a", work) for _ in range(3)]
        work.started[0].errback(ValueError("broken"))
        for one in waiting:
            with pytest.raises(ValueError, match="broken"):
                result_of(one)
        assert "a" not in flight
        again = run(flight, "a", work)
        work.started[1].callback("done")
        assert result_of(again) == "done"

    def test_synchronous_failure_is_raised(self, flight: SingleFlight[str, Any]) -> None:
        async def work() -> str:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            result_of(run(flight, "a", work))
        assert len(flight) == 0

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_cancelled_caller_does_not_cancel_the_work(
        self, flight: SingleFlight[str, Any], work: Work, position: int
    ) -> None:
        """The caller that started the work is no exception."""
        waiting = [run(flight, "a", work) for _ in range(3)]
        gone = waiting.pop(position)
        gone.cancel()
        with pytest.raises(CancelledError):
            result_of(gone)
        assert work.cancelled == 0
        late = run(flight, "a", work)
        assert len(work.started) == 1
        work.started[0].callback("done")
        assert [result_of(one) for one in [*waiting, late]] == ["done"] * 3

    def test_work_continues_when_all_callers_are_cancelled(self, flight: SingleFlight[str, Any], work: Work) -> None:
        waiting = [run(flight, "a", work) for _ in range(2)]
        for one in waiting:
            one.cancel()
            with pytest.raises(CancelledError):
                result_of(one)
        assert "a" in flight
        assert work.cancelled == 0
        late = run(flight, "a", work)
        work.started[0].callback("done")
        assert result_of(late) == "done"

    def test_failure_without_callers_is_not_logged(self, flight: SingleFlight[str, Any], work: Work) -> None:
        with capturedLogs() as events:
            waiting = run(flight, "a", work)
            waiting.cancel()
            waiting.addErrback(lambda failure: failure.trap(CancelledError))
            work.started.pop().errback(ValueError("broken"))
            del waiting
        assert list(events) == []
        assert len(flight) == 0

    def test_call_from_a_callback_starts_new_work(self, flight: SingleFlight[str, Any], work: Work) -> None:
        answers = []

        async def twice() -> None:
            answers.append(await flight.run("a", work))
            answers.append(await flight.run("a", work))

        asking = [Deferred.fromCoroutine(twice()) for _ in range(2)]
        work.started[0].callback("first")
        assert len(work.started) == 2
        work.started[1].callback("second")
        assert answers == ["first", "first", "second", "second"]
        assert all(one.called for one in asking)

    def test_caller_that_raises_does_not_affect_others(self, flight: SingleFlight[str, Any], work: Work) -> None:
        async def stumble() -> None:
            await flight.run("a", work)
            raise KeyError("mine")

        first, second = Deferred.fromCoroutine(stumble()), run(flight, "a", work)
        work.started[0].callback("done")
        assert result_of(second) == "done"
        with pytest.raises(KeyError):
            result_of(first)

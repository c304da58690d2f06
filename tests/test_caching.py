"""What is not done twice."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import capturedLogs

from postd.caching import Remembered, Told, UnderWay
from tests.helpers import result_of


class RememberedTests:
    def test_a_value_is_known_until_its_time_has_come(self) -> None:
        known = Remembered[str, int](10)
        known.put("a", 1, since=0.0, until=100.0)
        assert [known.get("a", now) for now in (0, 99.9, 100, 101)] == [1, 1, None, None]

    def test_a_clock_that_was_set_back_makes_nothing_last_for_longer(self) -> None:
        known = Remembered[str, int](10)
        known.put("a", 1, since=50.0, until=100.0)
        assert [known.get("a", now) for now in (49.9, 50, 99)] == [None, 1, 1]

    def test_what_was_never_there_is_not_known(self) -> None:
        known = Remembered[str, int](10)
        known.put("a", 1, since=0.0, until=100.0)
        for now in (-1.0, 0.0, 50.0):
            assert known.get("b", now) is None

    def test_a_new_value_takes_the_place_of_the_old_one(self) -> None:
        known = Remembered[str, int](10)
        known.put("a", 1, since=0.0, until=100.0)
        known.put("a", 2, since=0.0, until=50.0)
        assert (known.get("a", 49), known.get("a", 50)) == (2, None)

    def test_of_too_many_the_oldest_goes(self) -> None:
        known = Remembered[str, int](2)
        for number, key in enumerate("abc"):
            known.put(key, number, since=0.0, until=100.0)
        assert [known.get(key, 0) for key in "abc"] == [None, 1, 2]

    def test_what_was_told_anew_is_not_old(self) -> None:
        known = Remembered[str, int](2)
        for key in ("a", "b", "a", "c"):
            known.put(key, 1, since=0.0, until=100.0)
        assert [known.get(key, 0) for key in "abc"] == [1, None, 1]

    def test_the_same_again_takes_no_more_room(self) -> None:
        known = Remembered[str, int](2)
        for key in ("a", "b", "b", "b"):
            known.put(key, 1, since=0.0, until=100.0)
        assert [known.get(key, 0) for key in "ab"] == [1, 1]

    def test_values_may_be_false(self) -> None:
        known = Remembered[str, object](10)
        for value in (0, "", False, ()):
            known.put("a", value, since=0.0, until=100.0)
            assert known.get("a", 0) == value

    def test_all_can_be_forgotten(self) -> None:
        known = Remembered[str, int](2)
        known.put("a", 1, since=0.0, until=100.0)
        known.put("b", 1, since=0.0, until=100.0)
        known.forget_all()
        assert [known.get(key, 0) for key in "ab"] == [None, None]
        known.put("a", 2, since=0.0, until=100.0)
        assert known.get("a", 0) == 2

    @given(
        most=st.integers(1, 4),
        puts=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(), st.integers(0, 10))),
        now=st.integers(0, 10),
    )
    def test_it_knows_the_last_ones_that_were_told(self, most: int, puts: list[tuple[str, int, int]], now: int) -> None:
        known = Remembered[str, int](most)
        told: dict[str, tuple[int, int]] = {}
        for key, value, until in puts:
            known.put(key, value, since=0.0, until=until)
            told.pop(key, None)
            told[key] = value, until
        last = dict(list(told.items())[-most:])
        for key in "abcdef":
            value, until = last.get(key, (0, 0))
            assert known.get(key, now) == (value if now < until else None)


class ToldTests:
    def test_the_same_again_is_no_news(self) -> None:
        told = Told()
        assert [told.is_news(what) for what in ("a", "a", "b", "a", "", "")] == [True, False, True, True, True, False]


class Work:
    """Work that comes to something when a test says so."""

    def __init__(self) -> None:
        self.begun: list[Deferred[str]] = []
        self.cancelled = 0

    async def __call__(self) -> str:
        self.begun.append(Deferred(self._cancel))
        return await self.begun[-1]

    def _cancel(self, _: object) -> None:
        self.cancelled += 1


def joined(under_way: UnderWay[str, Any], key: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Deferred[Any]:
    return Deferred.fromCoroutine(under_way.join(key, work))


@pytest.fixture
def under_way() -> UnderWay[str, Any]:
    return UnderWay()


@pytest.fixture
def work() -> Work:
    return Work()


class UnderWayTests:
    def test_it_is_done_once_for_all_who_want_it(self, under_way: UnderWay[str, Any], work: Work) -> None:
        waiting = [joined(under_way, "a", work) for _ in range(5)]
        assert len(work.begun) == 1
        assert "a" in under_way
        assert len(under_way) == 1
        assert not any(one.called for one in waiting)
        work.begun[0].callback("done")
        assert [result_of(one) for one in waiting] == ["done"] * 5
        assert "a" not in under_way
        assert len(under_way) == 0

    def test_other_work_is_other_work(self, under_way: UnderWay[str, Any], work: Work) -> None:
        first, second = joined(under_way, "a", work), joined(under_way, "b", work)
        assert len(work.begun) == len(under_way) == 2
        work.begun[1].callback("of b")
        assert result_of(second) == "of b"
        assert not first.called
        assert "a" in under_way
        assert "b" not in under_way
        work.begun[0].callback("of a")
        assert result_of(first) == "of a"

    def test_who_comes_later_has_it_done_again(self, under_way: UnderWay[str, Any], work: Work) -> None:
        for number in range(3):
            waiting = joined(under_way, "a", work)
            assert len(work.begun) == number + 1
            work.begun[number].callback(str(number))
            assert result_of(waiting) == str(number)

    def test_work_that_waits_for_nothing(self, under_way: UnderWay[str, Any]) -> None:
        async def work() -> str:
            return "at once"

        assert result_of(joined(under_way, "a", work)) == "at once"
        assert len(under_way) == 0

    def test_a_failure_is_everybodys(self, under_way: UnderWay[str, Any], work: Work) -> None:
        waiting = [joined(under_way, "a", work) for _ in range(3)]
        work.begun[0].errback(ValueError("broken"))
        for one in waiting:
            with pytest.raises(ValueError, match="broken"):
                result_of(one)
        assert "a" not in under_way
        again = joined(under_way, "a", work)
        work.begun[1].callback("done")
        assert result_of(again) == "done"

    def test_a_failure_at_once(self, under_way: UnderWay[str, Any]) -> None:
        async def work() -> str:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            result_of(joined(under_way, "a", work))
        assert len(under_way) == 0

    @pytest.mark.parametrize("who", [0, 1, 2])
    def test_it_goes_on_without_who_has_stopped_to_wait(
        self, under_way: UnderWay[str, Any], work: Work, who: int
    ) -> None:
        """The one that began it is one like the others."""
        waiting = [joined(under_way, "a", work) for _ in range(3)]
        gone = waiting.pop(who)
        gone.cancel()
        with pytest.raises(CancelledError):
            result_of(gone)
        assert work.cancelled == 0
        late = joined(under_way, "a", work)
        assert len(work.begun) == 1
        work.begun[0].callback("done")
        assert [result_of(one) for one in [*waiting, late]] == ["done"] * 3

    def test_it_goes_on_when_nobody_waits_any_more(self, under_way: UnderWay[str, Any], work: Work) -> None:
        waiting = [joined(under_way, "a", work) for _ in range(2)]
        for one in waiting:
            one.cancel()
            with pytest.raises(CancelledError):
                result_of(one)
        assert "a" in under_way
        assert work.cancelled == 0
        late = joined(under_way, "a", work)
        work.begun[0].callback("done")
        assert result_of(late) == "done"

    def test_a_failure_that_nobody_waits_for_is_no_noise(self, under_way: UnderWay[str, Any], work: Work) -> None:
        with capturedLogs() as events:
            waiting = joined(under_way, "a", work)
            waiting.cancel()
            waiting.addErrback(lambda failure: failure.trap(CancelledError))
            work.begun.pop().errback(ValueError("broken"))
            del waiting
        assert list(events) == []
        assert len(under_way) == 0

    def test_who_asks_again_in_the_answer_begins_anew(self, under_way: UnderWay[str, Any], work: Work) -> None:
        answers = []

        async def twice() -> None:
            answers.append(await under_way.join("a", work))
            answers.append(await under_way.join("a", work))

        asking = [Deferred.fromCoroutine(twice()) for _ in range(2)]
        work.begun[0].callback("first")
        assert len(work.begun) == 2
        work.begun[1].callback("second")
        assert answers == ["first", "first", "second", "second"]
        assert all(one.called for one in asking)

    def test_one_that_fails_with_the_answer_keeps_it_from_nobody(
        self, under_way: UnderWay[str, Any], work: Work
    ) -> None:
        async def stumble() -> None:
            await under_way.join("a", work)
            raise KeyError("mine")

        first, second = Deferred.fromCoroutine(stumble()), joined(under_way, "a", work)
        work.begun[0].callback("done")
        assert result_of(second) == "done"
        with pytest.raises(KeyError):
            result_of(first)

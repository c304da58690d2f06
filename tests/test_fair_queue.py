"""Fair queues: turns by client, limits, cancellation."""

import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from postd.errors import ServerBusyError
from postd.fair_queue import RUNNING_MAX, SITE_TURNS, TURN_MAX_S, FairQueue, FairSemaphore, FairTurns, Semaphore
from tests.cases import each
from tests.helpers import result_of


def take_all(queue: FairQueue[str]) -> list[str]:
    return [queue.take() for _ in range(len(queue))]


def network(site: int, number: int) -> str:
    """Return an IPv6 /64 of a /48."""
    return f"2001:db8:{site:x}:{number:x}::/64"


def test_clients_take_turns_in_the_order_of_their_arrival() -> None:
    queue = FairQueue[str](100)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.add(item[0], item) is None
    assert take_all(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_newcomer_waits_for_one_round_only() -> None:
    queue = FairQueue[str](100)
    for n in range(50):
        queue.add("a", f"a{n}")
    queue.take()
    queue.add("b", "b0")
    assert [queue.take() for _ in range(2)] == ["a1", "b0"]


def test_networks_of_one_site_have_a_limited_number_of_turns_in_a_round() -> None:
    queue = FairQueue[str](1000)
    for n in range(3 * SITE_TURNS):
        queue.add(network(1, n), f"a{n}")
    queue.add("192.0.2.1", "b")
    queue.add(network(2, 0), "c")
    taken = take_all(queue)
    assert taken[SITE_TURNS : SITE_TURNS + 2] == ["b", "c"]
    assert [item for item in taken if item[0] == "a"] == [f"a{n}" for n in range(3 * SITE_TURNS)]


def test_few_networks_of_a_site_have_one_turn_each_in_a_round() -> None:
    queue = FairQueue[str](1000)
    for item in ("a1", "a2"):
        for n in range(3):
            queue.add(network(1, n), f"{item}-{n}")
    queue.add("192.0.2.1", "b")
    assert take_all(queue) == ["a1-0", "a1-1", "a1-2", "b", "a2-0", "a2-1", "a2-2"]


def test_full_queue_drops_the_last_item_of_the_largest_site() -> None:
    queue = FairQueue[str](4)
    for item in ("a1", "a2", "a3", "b1"):
        queue.add(item[0], item)
    assert queue.add("c", "c1") == "a3"
    assert queue.add("a", "a4") == "a4"
    assert queue.add("b", "b2") == "b2"  # it would have as many as the largest
    assert take_all(queue) == ["a1", "b1", "c1", "a2"]


def test_full_queue_of_equal_clients_refuses_the_newcomer() -> None:
    queue = FairQueue[str](2)
    queue.add("a", "a1")
    queue.add("b", "b1")
    assert queue.add("c", "c1") == "c1"


def test_networks_of_one_site_share_their_places_in_a_full_queue() -> None:
    queue = FairQueue[str](8)
    for n in range(8):
        queue.add(network(1, n), f"a{n}")
    assert queue.add("192.0.2.1", "b") in {f"a{n}" for n in range(8)}
    assert "b" in take_all(queue)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60))
def test_nothing_is_lost_and_no_client_is_passed_over(operations: list[tuple[str, bool]]) -> None:
    queue = FairQueue[tuple[str, int]](20)
    there: list[tuple[str, int]] = []
    passed_over: dict[str, int] = {}
    for number, (client, takes) in enumerate(operations):
        if takes and there:
            item = queue.take()
            there.remove(item)
            passed_over.pop(item[0], None)
            for other in {one for one, _ in there} - {item[0]}:
                passed_over[other] = passed_over.get(other, 0) + 1
                assert passed_over[other] < 6
        else:
            item = (client, number)
            dropped = queue.add(client, item)
            there.append(item)
            if dropped is not None:
                there.remove(dropped)
        assert len(queue) == len(there)
    assert sorted(queue.take() for _ in range(len(queue))) == sorted(there)


class Work:
    """Work that ends when a test says so; `order` has the names of what has begun."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.running: dict[str, Deferred[None]] = {}

    async def run(self, semaphore: FairSemaphore, name: str, **options: Any) -> str:
        async with semaphore.slot(name[0], **options):
            self.order.append(name)
            self.running[name] = Deferred()
            await self.running[name]
        return name

    def begin(self, semaphore: FairSemaphore, name: str, **options: Any) -> Deferred[str]:
        return Deferred.fromCoroutine(self.run(semaphore, name, **options))


class Text:
    """What work has in memory."""


@pytest.fixture
def collector_disabled() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class FairSemaphoreTests:
    def test_slots_are_limited_and_assigned_by_turns(self) -> None:
        work, semaphore = Work(), FairSemaphore(2, max_waiting=100)
        for name in ("a1", "a2", "a3", "a4", "b1"):
            work.begin(semaphore, name)
        assert work.order == ["a1", "a2"]
        for name in ("a1", "a2", "a3"):
            work.running[name].callback(None)
        assert work.order == ["a1", "a2", "a3", "b1", "a4"]

    def test_unwanted_work_is_not_run(self) -> None:
        work, semaphore = Work(), FairSemaphore(1, max_waiting=100)
        work.begin(semaphore, "a1")
        unwanted = work.begin(semaphore, "a2", is_wanted=lambda: False)
        work.begin(semaphore, "a3")
        work.running["a1"].callback(None)
        assert work.order == ["a1", "a3"]
        assert unwanted.result.check(ServerBusyError)  # type: ignore[attr-defined]
        unwanted.addErrback(lambda _: None)

    def test_cancelled_work_leaves_the_queue(self) -> None:
        work, semaphore = Work(), FairSemaphore(1, max_waiting=2)
        running = work.begin(semaphore, "a1")
        waiting = [work.begin(semaphore, name) for name in ("a2", "a3")]
        for one in waiting:
            one.cancel()
            one.addErrback(lambda failure: failure.trap(CancelledError))
        later = work.begin(semaphore, "b1")
        running.cancel()
        running.addErrback(lambda failure: failure.trap(CancelledError))
        assert work.order == ["a1", "b1"]
        work.running["b1"].callback(None)
        assert later.result == "b1"

    def test_full_queue_drops_unwanted_work_first(self) -> None:
        work, semaphore = Work(), FairSemaphore(1, max_waiting=2)
        wanted = True
        running = work.begin(semaphore, "a1")
        waiting = [work.begin(semaphore, name, is_wanted=lambda: wanted) for name in ("a2", "a3")]
        wanted = False
        later = work.begin(semaphore, "a4")
        for one in waiting:
            assert one.result.check(ServerBusyError)  # type: ignore[attr-defined]
            one.addErrback(lambda _: None)
        work.running["a1"].callback(None)
        work.running["a4"].callback(None)
        assert (running.result, later.result) == ("a1", "a4")

    def test_full_queue_is_busy(self) -> None:
        work, semaphore = Work(), FairSemaphore(1, max_waiting=1)
        for name in ("a1", "a2"):
            work.begin(semaphore, name)
        refused = work.begin(semaphore, "a3")
        assert refused.result.check(ServerBusyError)  # type: ignore[attr-defined]
        refused.addErrback(lambda _: None)

    def test_refused_work_is_freed_without_a_garbage_collection(self, collector_disabled: None) -> None:
        work, semaphore = Work(), FairSemaphore(1, max_waiting=1)
        texts: list[ref[Text]] = []

        async def fall_back(client: str, **options: Any) -> None:
            text = Text()
            texts.append(ref(text))
            with suppress(ServerBusyError):
                async with semaphore.slot(client, **options):
                    raise AssertionError

        work.begin(semaphore, "a1")
        wanted = True
        Deferred.fromCoroutine(fall_back("b", is_wanted=lambda: wanted))
        Deferred.fromCoroutine(fall_back("c"))  # there is no room
        wanted = False
        work.running["a1"].callback(None)
        assert [text() for text in texts] == [None] * 2

    def test_thousands_of_waiting_calls_that_fail_at_once_do_not_exceed_the_recursion_limit(self) -> None:
        semaphore = FairSemaphore(1, max_waiting=5000)
        failed: list[int] = []

        async def fail(number: int) -> None:
            async with semaphore.slot("a"):
                failed.append(number)
                raise ArithmeticError

        work = Work()
        work.begin(semaphore, "b")
        for number in range(5000):
            Deferred.fromCoroutine(fail(number)).addErrback(lambda _: None)
        work.running["b"].callback(None)
        assert failed == list(range(5000))

    def test_client_that_asks_again_at_once_waits_behind_others(self) -> None:
        semaphore = FairSemaphore(1, max_waiting=100)
        order: list[str] = []
        hold: Deferred[None] = Deferred()

        async def repeat() -> None:
            for n in range(3):
                async with semaphore.slot("a"):
                    order.append(f"a{n}")
                    if not n:
                        await hold

        async def once() -> None:
            async with semaphore.slot("b"):
                order.append("b")

        Deferred.fromCoroutine(repeat())
        Deferred.fromCoroutine(once())
        hold.callback(None)
        assert order == ["a0", "b", "a1", "a2"]


class FairTurnsTests:
    @pytest.fixture
    def seconds(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Return the time that work sees; each call of `work` takes half of the time of a turn."""
        now = [0.0]
        monkeypatch.setattr("postd.fair_queue.perf_counter", lambda: now[0])
        return now

    @pytest.fixture
    def ask(self, seconds: list[float]) -> Callable[[FairTurns, str], Deferred[None]]:
        async def work(turns: FairTurns, name: str) -> None:
            async with turns.turn(name[0]):
                self.order.append(name)
                seconds[0] += TURN_MAX_S / 2

        self.order: list[str] = []

        def begin(turns: FairTurns, name: str) -> Deferred[None]:
            coroutine: Coroutine[Any, Any, None] = work(turns, name)
            return Deferred.fromCoroutine(coroutine)

        return begin

    def test_work_beyond_the_time_of_a_turn_waits_for_the_next_ones(
        self, ask: Callable[[FairTurns, str], Deferred[None]]
    ) -> None:
        clock = Clock()
        turns = FairTurns(clock, max_waiting=100)
        many = 2
        for n in range(3 * many):
            ask(turns, f"a{n}")
        ask(turns, "b")
        assert self.order == [f"a{n}" for n in range(many)]
        clock.advance(0)
        assert self.order[many : 2 * many] == [f"a{many}", "b"]
        for _ in range(3):
            clock.advance(0)
        assert len(self.order) == 3 * many + 1
        assert not clock.getDelayedCalls()

    def test_idle_turns_schedule_nothing(self, ask: Callable[[FairTurns, str], Deferred[None]]) -> None:
        clock = Clock()
        ask(FairTurns(clock, max_waiting=100), "a")
        assert self.order == ["a"]
        assert not clock.getDelayedCalls()

    def test_work_that_waits_in_its_turn_is_limited_in_number(self) -> None:
        clock = Clock()
        turns = FairTurns(clock, max_waiting=100)
        begun: list[Deferred[None]] = []

        async def read() -> None:
            async with turns.turn("a"):
                begun.append(Deferred())
                await begun[-1]

        for _ in range(RUNNING_MAX + 3):
            Deferred.fromCoroutine(read())
        clock.advance(0)
        assert len(begun) == RUNNING_MAX
        assert not clock.getDelayedCalls()
        begun[0].callback(None)
        clock.advance(0)
        assert len(begun) == RUNNING_MAX + 1

    def test_cancelled_work_is_not_run(self, ask: Callable[[FairTurns, str], Deferred[None]]) -> None:
        clock = Clock()
        turns = FairTurns(clock, max_waiting=100)
        waiting = [ask(turns, f"a{n}") for n in range(5)]
        waiting[3].cancel()
        waiting[3].addErrback(lambda failure: failure.trap(CancelledError))
        for _ in range(4):
            clock.advance(0)
        assert self.order == ["a0", "a1", "a2", "a4"]

    def test_full_queue_is_busy(self, ask: Callable[[FairTurns, str], Deferred[None]]) -> None:
        turns = FairTurns(Clock(), max_waiting=1)
        refused = [ask(turns, f"a{n}") for n in range(4)][-1]
        assert refused.result.check(ServerBusyError)  # type: ignore[attr-defined]
        refused.addErrback(lambda _: None)


class SemaphoreTests:
    @each("tokens", [1, 3])
    def test_thousand_waiting_coroutines_are_resumed_in_turn(self, tokens: int) -> None:
        semaphore, ended = Semaphore(tokens), list[int]()

        async def note(number: int) -> None:
            async with semaphore:
                ended.append(number)

        held = [semaphore.acquire() for _ in range(tokens)]
        waiting = [Deferred.fromCoroutine(note(number)) for number in range(1000)]
        assert ended == []
        for _ in held:
            semaphore.release()
        assert ended == list(range(1000))
        assert all(one.called for one in waiting)
        assert semaphore.tokens == tokens

    def test_no_more_coroutines_than_tokens_run_at_a_time(self) -> None:
        semaphore, running = Semaphore(2), list[Deferred[None]]()

        async def work() -> None:
            async with semaphore:
                running.append(Deferred())
                await running[-1]

        waiting = [Deferred.fromCoroutine(work()) for _ in range(5)]
        for begun in (2, 3, 4, 5, 5):
            assert len(running) == begun
            running[sum(one.called for one in running)].callback(None)
        assert [result_of(one) for one in waiting] == [None] * 5

    def test_failed_or_cancelled_coroutine_gives_its_token_back(self) -> None:
        semaphore = Semaphore(1)

        async def work(waiting: Deferred[None]) -> None:
            async with semaphore:
                await waiting

        failing: Deferred[None] = Deferred()
        working = [Deferred.fromCoroutine(work(failing)), *(Deferred.fromCoroutine(work(Deferred())) for _ in range(2))]
        working[1].cancel()  # while it waits
        failing.errback(ValueError("no"))
        working[2].cancel()  # while it holds the token
        for one, kind in zip(working, (ValueError, CancelledError, CancelledError), strict=True):
            with pytest.raises(kind):
                result_of(one)
        assert semaphore.tokens == 1

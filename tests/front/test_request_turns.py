"""The requests of one turn of the reactor, by client."""

from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from postd.front.request_turns import TURN_COST, RequestTurns
from tests.front.slow_server import GET, SlowServer
from tests.helpers import MemoryTransport, connect


class TurnClock(Clock):
    """A clock whose `advance` makes the calls of one turn of a reactor only."""

    def advance(self, amount: float) -> None:
        assert not amount
        calls, self.calls = self.calls, []
        for call in calls:
            call.called = 1
            call.func()


class Request:
    """Has a cost when it is processed, and asks for another turn as often as given."""

    def __init__(self, turns: RequestTurns, name: str, order: list[str], *, cost: int = 0, more: int = 0) -> None:
        self.turns, self.name, self.order = turns, name, order
        self.cost, self.more = cost, more

    def process_next(self) -> None:
        self.order.append(self.name)
        self.turns.left -= self.cost
        if self.more:
            self.more -= 1
            self.turns.add(self.name[0], self)


def test_requests_beyond_the_cost_of_a_turn_wait_by_client() -> None:
    clock, order = TurnClock(), list[str]()
    turns = RequestTurns(clock)
    for name in ("a1", "a2", "a3", "b1"):
        turns.add(name[0], Request(turns, name, order, cost=TURN_COST // 2 + 1))
    clock.advance(0)
    assert order == ["a1", "b1"]
    clock.advance(0)
    assert order == ["a1", "b1", "a2", "a3"]
    assert not clock.getDelayedCalls()


def test_connection_processes_one_request_in_a_turn() -> None:
    clock, order = TurnClock(), list[str]()
    turns = RequestTurns(clock)
    turns.add("a", Request(turns, "a", order, more=2))
    for count in (1, 2, 3):
        clock.advance(0)
        assert len(order) == count
    assert not clock.getDelayedCalls()


def test_failing_request_does_not_stop_the_others() -> None:
    class Failing(Request):
        def process_next(self) -> None:
            raise ArithmeticError

    clock, order = TurnClock(), list[str]()
    turns = RequestTurns(clock)
    turns.add("a", Failing(turns, "a", order))
    turns.add("b", Request(turns, "b", order))
    with capturedLogs() as events:
        clock.advance(0)
    assert order == ["b"]
    assert [event["log_failure"].type for event in events] == [ArithmeticError]


def test_request_that_arrives_when_no_cost_is_left_is_answered_in_the_next_turn() -> None:
    server = SlowServer()
    server.site.turns.left = 0
    transport, channel = server.connect()
    channel.dataReceived(GET.replace(b"/post", b"/at-once"))
    assert transport.value() == b""
    server.site.turns.schedule()
    server.clock.advance(0)
    assert transport.value().startswith(b"HTTP/1.1 200 ")


def test_lost_connection_does_not_wait() -> None:
    server = SlowServer()
    server.site.turns.left = 0
    transport = MemoryTransport()
    channel = connect(transport, server.site)
    channel.dataReceived(GET)
    channel.connectionLost()
    server.clock.advance(0)
    assert server.slow.taken == 0

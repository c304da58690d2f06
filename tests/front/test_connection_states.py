"""Each transition of a connection's state machine, by what a client, a resource or the transport does."""

from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.front.connection import HttpConnection
from postd.front.connection_states import TRANSITIONS, Event, State
from tests.cases import each
from tests.helpers import MemoryTransport, connect, make_site

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
BODY_HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
BAD_FIELD = b"no field\r\n\r\n"


class DelayedResource(Resource):
    """A resource that keeps its request; the test finishes the response."""

    isLeaf = True
    request: Any = None

    def render(self, request: Any) -> int:
        self.request = request
        return NOT_DONE_YET


class SlowTransport(MemoryTransport):
    """A transport with buffered output: `loseConnection` does not close it at once."""

    def loseConnection(self) -> None:
        pass


class Setup:
    """A connection, and the actions that change its state."""

    def __init__(self) -> None:
        self.resource = DelayedResource()
        self.connection: HttpConnection = connect(SlowTransport(), make_site(self.resource))

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.dataReceived(piece)

    def reach(self, state: State) -> None:
        """Bring the connection from IDLE into a state."""
        pieces = {State.HEAD: [HEAD], State.BODY: [BODY_HEAD + b"\r\n"], State.RESPONDING: [HEAD + b"\r\n"]}
        self.send(*pieces.get(state, []))
        if state is State.LINGERING:
            self.send(BAD_FIELD)
        elif state is State.CLOSING:
            self.connection.loseConnection()
        assert self.connection.state is state

    def end_input(self) -> None:
        self.connection.readConnectionLost()

    def finish(self) -> None:
        self.resource.request.finish()

    def close_with_more_input(self) -> None:
        self.send(HEAD)  # behind the request that is answered
        self.connection.loseConnection()

    def close(self) -> None:
        self.connection.loseConnection()

    def lose(self) -> None:
        self.connection.connectionLost(Failure(ConnectionDone()))


CAUSES: dict[tuple[State, Event], Callable[[Setup], None]] = {
    (State.IDLE, Event.HEAD_BEGUN): lambda setup: setup.send(HEAD),
    (State.IDLE, Event.BODY_BEGUN): lambda setup: setup.send(BODY_HEAD + b"\r\n"),
    (State.HEAD, Event.BODY_BEGUN): lambda setup: setup.send(b"Content-Length: 4\r\n\r\n"),
    (State.IDLE, Event.REQUEST_READ): lambda setup: setup.send(HEAD + b"\r\n"),
    (State.HEAD, Event.REQUEST_READ): lambda setup: setup.send(b"\r\n"),
    (State.BODY, Event.REQUEST_READ): lambda setup: setup.send(b"body"),
    (State.RESPONDING, Event.RESPONSE_WRITTEN): Setup.finish,
    (State.IDLE, Event.LINGER): lambda setup: setup.send(b"GET / HTTP/1.1\r\n" + BAD_FIELD),
    (State.HEAD, Event.LINGER): lambda setup: setup.send(BAD_FIELD),
    (State.BODY, Event.LINGER): lambda setup: setup.connection.pass_deadline(),
    (State.RESPONDING, Event.LINGER): Setup.close_with_more_input,
    (State.IDLE, Event.CLOSE): Setup.close,
    (State.HEAD, Event.CLOSE): Setup.end_input,
    (State.BODY, Event.CLOSE): Setup.end_input,
    (State.RESPONDING, Event.CLOSE): Setup.close,
    **{(state, Event.CONNECTION_LOST): Setup.lose for state in State if state is not State.LOST},
}
"""An action that causes each transition."""


def test_each_transition_has_a_cause() -> None:
    assert CAUSES.keys() == TRANSITIONS.keys()


@each("before, event", TRANSITIONS)
def test_event_changes_the_state_as_in_the_table(before: State, event: Event) -> None:
    setup = Setup()
    setup.reach(before)
    CAUSES[before, event](setup)
    assert setup.connection.state is TRANSITIONS[before, event]


@each("state", [State.LINGERING, State.CLOSING, State.LOST])
def test_input_after_the_end_is_discarded(state: State) -> None:
    setup = Setup()
    if state is State.LOST:
        setup.lose()
    else:
        setup.reach(state)
    setup.send(HEAD + b"\r\n")
    assert setup.connection.state is state
    assert setup.resource.request is None

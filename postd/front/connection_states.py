"""The states of a connection, and the transitions between them."""

from collections.abc import Mapping
from enum import StrEnum


class _Hashed(StrEnum):
    """A string enumeration with the hash of `str`, which is faster: `Enum.__hash__` is in Python."""

    __hash__ = str.__hash__


class State(_Hashed):
    """The state of a connection."""

    IDLE = "no request has begun"
    HEAD = "a part of a head has been read"
    BODY = "the head of a request is complete, its body is not"
    RESPONDING = "a request is being answered; further input waits"
    LINGERING = "the last response is written and our side is closed; further input is discarded (RFC 9112 §9.6)"
    CLOSING = "the connection is closed once all output is sent; further input is discarded"
    LOST = "the transport is closed"


class Event(_Hashed):
    """An event that changes the state of a connection."""

    HEAD_BEGUN = "a part of a head has arrived"
    BODY_BEGUN = "a head with a body has arrived"
    REQUEST_READ = "a request is complete"
    RESPONSE_WRITTEN = "the response to it is written, and another request may follow"
    LINGER = "the last response is written, and the client may still be sending"
    CLOSE = "the last response is written, or there is none to write"
    CONNECTION_LOST = "the transport is closed"


OPEN = (State.IDLE, State.HEAD, State.BODY, State.RESPONDING)
"""The states in which input is processed."""

READING = (State.HEAD, State.BODY)
"""The states in which a request is incomplete."""

TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.IDLE, Event.HEAD_BEGUN): State.HEAD,
    (State.IDLE, Event.BODY_BEGUN): State.BODY,
    (State.HEAD, Event.BODY_BEGUN): State.BODY,
    (State.IDLE, Event.REQUEST_READ): State.RESPONDING,
    (State.HEAD, Event.REQUEST_READ): State.RESPONDING,
    (State.BODY, Event.REQUEST_READ): State.RESPONDING,
    (State.RESPONDING, Event.RESPONSE_WRITTEN): State.IDLE,
    **{(state, Event.LINGER): State.LINGERING for state in OPEN},
    **{(state, Event.CLOSE): State.CLOSING for state in OPEN},
    **{(state, Event.CONNECTION_LOST): State.LOST for state in State if state is not State.LOST},
}
"""All transitions; any other event in a state is a bug."""

import pytest

from postd.protocol.event_stream import LINE_MAX_CHARS, Event, EventDecoder, EventStreamError
from tests.cases import each


def decode(stream: bytes, size: int) -> tuple[list[Event], EventDecoder]:
    decoder = EventDecoder("before")
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    return [event for piece in pieces for event in decoder.decode(piece)], decoder


@each("size", [1, 2, 3, 1000])
@each("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_events_are_decoded_with_any_cuts_and_line_ends(end: str, size: int) -> None:
    lines = [
        "\ufeffretry: 2500", "id: 4", "", ": a comment", "event: added", "id: 5", 'data: {"post": "grüße 世界\u2028"}',
        "", "data", "data:two ", "data:  three", "", "event: nothing", "", "data:last", "id", "", "unknown: x",
        "data: cut off",
    ]  # fmt: skip
    events, decoder = decode(end.join(lines).encode(), size)
    assert events == [
        Event("added", '{"post": "grüße 世界\u2028"}', "5"),
        Event("message", "\ntwo \n three", "5"),
        Event("message", "last", ""),
    ]
    assert (decoder.last_id, decoder.retry_ms) == ("", 2500)


def test_id_takes_effect_at_the_end_of_its_block_even_without_an_event() -> None:
    decoder = EventDecoder("1")
    assert decoder.decode(b"id: 2\n\nid: 3\ndata: x\n") == []
    assert decoder.last_id == "2"
    assert decoder.decode(b"\n") == [Event("message", "x", "3")]


@each("line", [b"retry: x", b"retry: -1", b"retry:", b"retry: 1.5", b"retry: \xd9\xa1", b"id: a\0b"])
def test_invalid_fields_are_ignored(line: bytes) -> None:
    decoder = EventDecoder("1")
    decoder.decode(b"retry: 7\n" + line + b"\n\n")
    assert (decoder.last_id, decoder.retry_ms) == ("1", 7)


@each("unit", [b"x", b"data: x\n"], ids=["a line", "an event"])
def test_endless_line_or_event_is_refused(unit: bytes) -> None:
    decoder = EventDecoder()
    with pytest.raises(EventStreamError):
        for _ in range(LINE_MAX_CHARS // 1000 + 1):
            decoder.decode(unit * 1000)

"""Random bytes, and requests with random faults: what gets through is what strict parsers take, or nothing.

Each round is decided by its number and `POSTD_FUZZ_SEED`, 0 if it is not set; a failure names it. For a longer run:

    POSTD_FUZZ_ROUNDS=1000000 POSTD_FUZZ_SEED=7 python -m pytest -n 0 tests/web/server/test_fuzz.py
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

import h11
import pytest
from msgspec.structs import replace
from twisted.logger import LogEvent, LogLevel, capturedLogs

from tests.helpers import InMemoryApi
from tests.web.server import grammar
from tests.web.server.connections import Ours, Seen, Talk, converse, hang_up, in_bytes
from tests.web.server.corpus import AFTER, HIDING, HOSTILE, MAX_BODY_BYTES, ODD, OPEN_TO_TASTE, PLAIN

ROUNDS = int(os.environ.get("POSTD_FUZZ_ROUNDS", "2000"))
SEED = int(os.environ.get("POSTD_FUZZ_SEED", "0"))

SENT_MAX_BYTES = 4000
"""The longest input: no head of it is near a limit, whatever is doubled in it."""

NEVER = {500, 502, 503, 504, 507}

CODING = (b"transfer-encoding",)
SPACE_AFTER_SIZE = re.compile(rb"\n[0-9A-Fa-f]+[\t ]+;")

STUMBLING: Sequence[bytes] = (
    *(bytes([byte]) for byte in b"\r\n\t \x00\x0b\x7f\x80\xff:;,#*/0\"'"),
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"0\r\n\r\n",
    b"\r\n ",
    b"Host: x\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"POST /post HTTP/1.1\r\n",
    b"http://x:80",
    b"OPTIONS *",
    b"[::1]:80",
    AFTER,
)
"""What is put where it does not belong."""

SEEDS: Sequence[bytes] = tuple(
    case.sent
    for case in (*PLAIN, *PLAIN, *PLAIN, *ODD, *ODD, *OPEN_TO_TASTE, *HIDING, *HOSTILE[::3])
    if len(case.sent) <= SENT_MAX_BYTES // 4
)


def flip(chance: random.Random, sent: bytes, place: int) -> bytes:
    changed = bytes([sent[place] ^ 1 << chance.randrange(8)]) if place < len(sent) else b""
    return sent[:place] + changed + sent[place + 1 :]


def insert(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place] + chance.choice(STUMBLING) + sent[place:]


def insert_a_byte(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place] + chance.randbytes(1) + sent[place:]


def delete(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place] + sent[place + chance.choice([1, 1, 1, 2, 4, 20]) :]


def duplicate(chance: random.Random, sent: bytes, place: int) -> bytes:
    end = place + chance.choice([1, 2, 10, 100])
    return sent[:end] + sent[place:]


def duplicate_a_line(chance: random.Random, sent: bytes, place: int) -> bytes:
    lines = sent.split(b"\r\n")
    number = chance.randrange(len(lines))
    lines.insert(chance.randrange(len(lines)), lines[number])
    return b"\r\n".join(lines)


def splice(chance: random.Random, sent: bytes, place: int) -> bytes:
    other = chance.choice(SEEDS)
    return sent[:place] + other[chance.randrange(len(other)) :]


def truncate(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place]


def change_case(chance: random.Random, sent: bytes, place: int) -> bytes:
    end = place + chance.randrange(1, 20)
    return sent[:place] + sent[place:end].swapcase() + sent[end:]


MUTATIONS: Sequence[Callable[[random.Random, bytes, int], bytes]] = (
    flip,
    flip,
    insert,
    insert,
    insert,
    insert_a_byte,
    delete,
    delete,
    duplicate,
    duplicate_a_line,
    splice,
    truncate,
    change_case,
)


def make_input(chance: random.Random) -> bytes:
    """Return what a client sends: mostly a request with some faults, and something behind it."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.randrange(1, 300))
    sent = chance.choice(SEEDS)
    for _ in range(chance.choice([1, 1, 1, 1, 2, 2, 3, 5])):
        sent = chance.choice(MUTATIONS)(chance, sent, chance.randrange(len(sent) + 1))
    return (sent + chance.choice([b"", AFTER, AFTER, chance.choice(SEEDS)]))[:SENT_MAX_BYTES]


def in_pieces(chance: random.Random, sent: bytes) -> list[bytes]:
    if chance.random() < 0.1:
        return in_bytes(sent)
    places = sorted(chance.randrange(len(sent) + 1) for _ in range(chance.choice([0, 1, 2, 5])))
    return [sent[begin:end] for begin, end in zip([0, *places], [*places, len(sent)], strict=True) if begin < end]


@pytest.mark.parametrize("part", range(4))
def test_nothing_gets_through_that_strict_parsers_do_not_take(part: int) -> None:
    ours = Ours()
    taken = 0
    with capturedLogs() as events:
        for number in range(part, ROUNDS, 4):
            chance = random.Random(f"{SEED}/{number}")
            sent = make_input(chance)
            talk = ours.talk(*in_pieces(chance, sent))
            ours.clock.advance(1)  # for the access log
            problem = find_problem(sent, talk)
            assert not problem, f"round {number}: {problem}\n{sent!r}\n{talk}"
            assert [event for event in events if is_failure(event)] == [], (number, sent)
            events.clear()  # type: ignore[attr-defined]
            taken += len(talk.seen)
    assert taken > ROUNDS // 20, "hardly anything gets through: nothing is tested"


def test_nothing_makes_the_service_fail(api: InMemoryApi) -> None:
    """The same input before the resources that there are; what the log has of it, a line an answer, is one line."""
    lines: list[str] = []
    created = answered = 0
    with capturedLogs() as events:
        for number in range(ROUNDS // 4):
            chance = random.Random(f"{SEED}/{number}")
            sent = make_input(chance)
            transport = converse(api.site, api.clock, in_pieces(chance, sent))
            received = transport.value()
            hang_up(transport)
            statuses = re.findall(rb"^HTTP/1\.1 ([2-5][0-9][0-9]) ", received, re.MULTILINE)
            assert not NEVER & set(map(int, statuses)), (number, sent)
            created += statuses.count(b"201")
            answered += len(statuses)
            api.clock.advance(1)
            lines += [line for event in events if is_access(event) for line in event["lines"].split("\n")]
            assert [event for event in events if is_failure(event)] == [], (number, sent)
            events.clear()  # type: ignore[attr-defined]
    assert len(lines) == answered
    assert [line for line in lines if not line.isascii() or not line.isprintable()] == []
    assert api.add("as many as were told so") == created + 1 > 1


def is_access(event: LogEvent) -> bool:
    return bool(event["log_namespace"] == "postd.access")


def is_failure(event: LogEvent) -> bool:
    return event["log_level"] > LogLevel.warn or "log_failure" in event


def find_problem(sent: bytes, talk: Talk) -> str | None:
    """Return what is wrong with what a connection came to."""
    if NEVER & set(talk.statuses):
        return "a failure of the server"
    strict = without_asterisk(grammar.read(sent))
    if list(talk.seen) != strict[: len(talk.seen)]:
        return f"the grammar gives {strict}"
    if len(talk.seen) < len(strict) and not is_open_to_taste(strict[len(talk.seen)]):
        return f"the grammar takes more: {strict[len(talk.seen) :]}"
    for place, (seen, other) in enumerate(zip_longest(talk.seen, take_with_h11(sent))):
        if place == len(talk.seen) or (other is None and is_refused_by_h11(sent)):
            break  # h11 is looser, or stricter
        if other != in_small_letters(seen):
            return f"h11 takes {seen} for {other}"
    return None


def is_open_to_taste(seen: Seen) -> bool:
    """Tell whether ours may refuse what the grammar has (`corpus.OPEN_TO_TASTE`).

    Hosts that RFC 3986 has in its grammar and nobody has: of a future version of IP, or only a port.
    """
    return seen.fields.get(b"host", [b""])[0].startswith((b"[v", b":"))


def is_refused_by_h11(sent: bytes) -> bool:
    """Tell whether h11 is stricter than ours: about space before a chunk extension (BWS, RFC 9112 §7.1.1)."""
    return SPACE_AFTER_SIZE.search(sent) is not None


def without_asterisk(requests: Iterable[Seen]) -> list[Seen]:
    """Leave out what concerns the server as a whole (`OPTIONS *`): no resource sees it."""
    return [seen for seen in requests if seen.target != b"*"]


def in_small_letters(seen: Seen) -> Seen:
    """Return a request with its transfer coding written as h11 hands it on."""
    codings = {name: [value.lower() for value in seen.fields[name]] for name in CODING if name in seen.fields}
    return replace(seen, fields={**seen.fields, **codings})


def take_with_h11(sent: bytes) -> list[Seen]:
    """Return the requests that h11 takes from the beginning of a connection.

    Where it is looser than RFC 9112 (line feeds for line ends, folded lines, control bytes in values, `Content-Length`
    beside chunks, any Host) it takes more than ours, which is not held against it. Where it is stricter it is helped:
    an empty line before a request (§2.2) is left out.
    """
    taken: list[Seen] = []
    rest, more = sent, True
    while more:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=4 * MAX_BODY_BYTES)
        connection.receive_data(rest.removeprefix(b"\r\n"))
        seen = take_one_with_h11(connection)
        if seen is None:
            break
        taken.append(seen)
        rest, _ = connection.trailing_data
        more = connection.their_state is not h11.MUST_CLOSE
    return without_asterisk(taken)


def take_one_with_h11(connection: h11.Connection) -> Seen | None:
    head: h11.Request | None = None
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                old = head.http_version == b"1.0"
                return Seen.of(head.method, head.target, old=old, fields=head.headers, body=body)
            else:
                return None  # there is no more
    except h11.RemoteProtocolError:
        return None

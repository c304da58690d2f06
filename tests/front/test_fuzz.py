"""Fuzzing: random bytes and mutated requests. Only requests that strict parsers accept reach the resource.

A round is reproducible from its number, which a failure names, and `POSTD_FUZZ_SEED` (default: 0). For a longer run:

    POSTD_FUZZ_ROUNDS=1000000 POSTD_FUZZ_SEED=7 python -m pytest -n 0 tests/front/test_fuzz.py
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

import h11
from msgspec.structs import replace
from twisted.logger import LogEvent, LogLevel, capturedLogs

from tests.cases import each
from tests.front import grammar
from tests.front.connections import Ours, Seen, Talk, converse, hang_up, in_bytes
from tests.front.corpus import AFTER, HIDING, HOSTILE, MAX_BODY_BYTES, ODD, PLAIN, REFUSABLE
from tests.helpers import InMemoryApi

ROUNDS = int(os.environ.get("POSTD_FUZZ_ROUNDS", "2000"))
SEED = int(os.environ.get("POSTD_FUZZ_SEED", "0"))

SENT_MAX_BYTES = 4000
"""The longest input: even with duplicated parts no head comes near its limit."""

SERVER_ERRORS = {500, 502, 503, 504, 507}

CODING = (b"transfer-encoding",)
SPACE_AFTER_SIZE = re.compile(rb"\n[0-9A-Fa-f]+[\t ]+;")

FRAGMENTS: Sequence[bytes] = (
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
"""Fragments that a mutation inserts at random places."""

SEEDS: Sequence[bytes] = tuple(
    case.sent
    for case in (*PLAIN, *PLAIN, *PLAIN, *ODD, *ODD, *REFUSABLE, *HIDING, *HOSTILE[::3])
    if len(case.sent) <= SENT_MAX_BYTES // 4
)


def flip(chance: random.Random, sent: bytes, place: int) -> bytes:
    changed = bytes([sent[place] ^ 1 << chance.randrange(8)]) if place < len(sent) else b""
    return sent[:place] + changed + sent[place + 1 :]


def insert(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place] + chance.choice(FRAGMENTS) + sent[place:]


def insert_random_byte(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place] + chance.randbytes(1) + sent[place:]


def delete(chance: random.Random, sent: bytes, place: int) -> bytes:
    return sent[:place] + sent[place + chance.choice([1, 1, 1, 2, 4, 20]) :]


def duplicate(chance: random.Random, sent: bytes, place: int) -> bytes:
    end = place + chance.choice([1, 2, 10, 100])
    return sent[:end] + sent[place:]


def duplicate_line(chance: random.Random, sent: bytes, place: int) -> bytes:
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
    insert_random_byte,
    delete,
    delete,
    duplicate,
    duplicate_line,
    splice,
    truncate,
    change_case,
)


def make_input(chance: random.Random) -> bytes:
    """Return the input of a client: mostly a mutated request, often followed by another one."""
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


@each("part", range(4))
def test_only_requests_that_strict_parsers_accept_reach_the_resource(part: int) -> None:
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
    assert taken > ROUNDS // 20, "too few inputs are accepted to test anything"


def test_no_input_causes_a_server_error(api: InMemoryApi) -> None:
    """The same inputs for the whole application; each response has one printable line in the access log."""
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
            assert not SERVER_ERRORS & set(map(int, statuses)), (number, sent)
            created += statuses.count(b"201")
            answered += len(statuses)
            api.clock.advance(1)
            lines += [line for event in events if is_access(event) for line in event["lines"].split("\n")]
            assert [event for event in events if is_failure(event)] == [], (number, sent)
            events.clear()  # type: ignore[attr-defined]
    assert len(lines) == answered
    assert [line for line in lines if not line.isascii() or not line.isprintable()] == []
    assert api.add("last") == created + 1 > 1


def is_access(event: LogEvent) -> bool:
    return bool(event["log_namespace"] == "postd.access")


def is_failure(event: LogEvent) -> bool:
    return event["log_level"] > LogLevel.warn or "log_failure" in event


def find_problem(sent: bytes, talk: Talk) -> str | None:
    """Return what is wrong with the outcome of a connection."""
    if SERVER_ERRORS & set(talk.statuses):
        return "a server error"
    strict = without_asterisk(grammar.read(sent))
    if list(talk.seen) != strict[: len(talk.seen)]:
        return f"the grammar accepts {strict}"
    if len(talk.seen) < len(strict) and not may_be_refused(strict[len(talk.seen)]):
        return f"the grammar also accepts {strict[len(talk.seen) :]}"
    for place, (seen, other) in enumerate(zip_longest(talk.seen, read_with_h11(sent))):
        if place == len(talk.seen) or (other is None and h11_refuses(sent)):
            break  # h11 is more lenient, or stricter
        if other != in_lower_case(seen):
            return f"h11 reads {seen} as {other}"
    return None


def may_be_refused(seen: Seen) -> bool:
    """Return whether postd may refuse a request that the grammar accepts (`corpus.REFUSABLE`).

    Its host is valid by RFC 3986 but unused: an address of a future version of IP, or only a port.
    """
    return seen.fields.get(b"host", [b""])[0].startswith((b"[v", b":"))


def h11_refuses(sent: bytes) -> bool:
    """Return whether h11 is stricter than postd: about space before a chunk extension (BWS, RFC 9112 §7.1.1)."""
    return SPACE_AFTER_SIZE.search(sent) is not None


def without_asterisk(requests: Iterable[Seen]) -> list[Seen]:
    """Leave out requests for the server as a whole (`OPTIONS *`), which no resource gets."""
    return [seen for seen in requests if seen.target != b"*"]


def in_lower_case(seen: Seen) -> Seen:
    """Return a request with its transfer coding in lower case, as h11 returns it."""
    codings = {name: [value.lower() for value in seen.fields[name]] for name in CODING if name in seen.fields}
    return replace(seen, fields={**seen.fields, **codings})


def read_with_h11(sent: bytes) -> list[Seen]:
    """Return the requests that h11 reads from the beginning of a connection.

    Where h11 is more lenient than RFC 9112 (line feeds as line ends, folded lines, control bytes in values,
    `Content-Length` beside chunks, any Host) it reads more requests than postd, which is ignored. Where it is stricter
    the input is adapted: an empty line before a request (§2.2) is removed.
    """
    taken: list[Seen] = []
    rest, more = sent, True
    while more:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=4 * MAX_BODY_BYTES)
        connection.receive_data(rest.removeprefix(b"\r\n"))
        seen = read_one_with_h11(connection)
        if seen is None:
            break
        taken.append(seen)
        rest, _ = connection.trailing_data
        more = connection.their_state is not h11.MUST_CLOSE
    return without_asterisk(taken)


def read_one_with_h11(connection: h11.Connection) -> Seen | None:
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
                return None  # no further request
    except h11.RemoteProtocolError:
        return None

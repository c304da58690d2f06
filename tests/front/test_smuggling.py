"""Request smuggling: each attempt hides a POST that must not be executed, neither in memory nor by a daemon.

An attempt gets the responses that the corpus has for it, whatever follows on its connection and however it is split.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from twisted.logger import LogLevel, capturedLogs

from tests.cases import each
from tests.front import grammar
from tests.front.connections import (
    Ours,
    Talk,
    converse,
    decode_responses,
    hang_up,
    in_bytes,
    settle,
)
from tests.front.corpus import (
    AFTER,
    AT_ONCE,
    HIDING,
    HOSTILE,
    LEGITIMATE,
    LEGITIMATE_BODY,
    ODD,
    REFUSABLE,
    SMUGGLED,
    Case,
    request,
)
from tests.helpers import InMemoryApi, result_of
from tests.integration.daemon import Daemon
from tests.integration.wire import talk

ATTEMPTS: Sequence[Case] = (*HOSTILE, *HIDING)
VALID: Sequence[Case] = (*ODD, *REFUSABLE)
FAMILIES = sorted({case.family for case in ATTEMPTS})

BYTEWISE_MAX_BYTES = 2000
"""The longest attempts that are sent byte by byte or in two pieces."""

SPLIT_EACH_MAX = 8
"""The largest family of which each attempt is sent in two pieces; in a larger one they differ by a byte."""

NOT_IMPLEMENTED = {501, 505}
"""The only 5xx statuses that a client can cause."""

ACCESS_LINE = re.compile(r'- \S+ \[[^\]]+\] ".*" [1-5][0-9][0-9] ')


def of_family(family: str) -> list[Case]:
    return [case for case in ATTEMPTS if case.family == family]


def with_hidden_request(case: Case) -> bytes:
    """Return an attempt that hides a request, or the attempt with a request behind it that must not be executed."""
    return case.sent + AFTER if case.refused and case.ends else case.sent


def check(case: Case, talk: Talk) -> list[Any]:
    """Return where the outcome differs from the corpus."""
    statuses, taken = talk.statuses, len(talk.seen)
    fits = (
        len(statuses) == len(case.answers)
        and all(status in allowed for status, allowed in zip(statuses, case.answers, strict=True))
        and taken == sum(200 in allowed for allowed in case.answers)
        and talk.ended == case.ends
    )
    return [] if fits else [(case.key, statuses, f"{taken} executed", "closed" if talk.ended else "open")]


def splits_of(sent: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Split in two pieces, at each boundary of a parser's tokens: line ends, colons, semicolons, commas and spaces."""
    places = {place for match in re.finditer(rb"[\r\n:;, ]", sent[:1000]) for place in (match.start(), match.end())}
    return [(sent[:place], sent[place:]) for place in sorted(places - {0, len(sent)})]


SENT: Sequence[tuple[bytes, Case]] = (
    *((with_hidden_request(case), case) for case in (*ATTEMPTS, *AT_ONCE)),
    *((case.sent, case) for case in VALID),
)
"""Everything sent to servers with a store, which then has one legitimate post for each 201 and no other."""


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


@each("family", FAMILIES)
def test_attempt_executes_no_hidden_request(ours: Ours, family: str) -> None:
    assert [wrong for case in of_family(family) for wrong in check(case, ours.talk(with_hidden_request(case)))] == []


@each("family", FAMILIES)
def test_attempt_sent_byte_by_byte_executes_no_hidden_request(ours: Ours, family: str) -> None:
    short = [case for case in of_family(family) if len(case.sent) <= BYTEWISE_MAX_BYTES]
    assert [wrong for case in short for wrong in check(case, ours.talk(*in_bytes(with_hidden_request(case))))] == []


@each("family", FAMILIES)
def test_attempt_sent_in_two_pieces_executes_no_hidden_request(ours: Ours, family: str) -> None:
    cases = [case for case in of_family(family) if len(case.sent) <= BYTEWISE_MAX_BYTES]
    some = cases if len(cases) <= SPLIT_EACH_MAX else cases[:: len(cases) // 3]
    assert [
        (repr(first), *wrong)
        for case in some
        for first, second in splits_of(with_hidden_request(case))
        for wrong in check(case, ours.talk(first, second))
    ] == []


@each("case", AT_ONCE, ids=[case.key for case in AT_ONCE])
def test_invalid_request_is_refused_before_its_end(ours: Ours, case: Case) -> None:
    assert check(case, ours.talk(case.sent)) == []
    assert check(case, ours.talk(case.sent, AFTER)) == []


def test_refusal_has_a_body_and_closes_the_connection(ours: Ours) -> None:
    for case in (*HOSTILE, *AT_ONCE):
        for answer in ours.talk(with_hidden_request(case)).answers:
            if answer.status != 200:
                assert answer.fields["connection"] == ["close"], case
                assert answer.fields["content-type"] in (["application/problem+json"], ["text/plain; charset=utf-8"])
                assert len(answer.fields["date"]) == 1, case
                assert "server" not in answer.fields, case
                assert answer.body, case


def test_hidden_request_alone_is_executed(ours: Ours) -> None:
    """A control: otherwise the other tests could not fail."""
    assert ours.talk(AFTER).statuses == [200]
    assert ours.talk(request(line=b"GET / HTTP/1.1", body=b"") + AFTER).statuses == [200, 200]


class ApiTests:
    """Attempts against the whole application and its store."""

    def send(self, api: InMemoryApi, pieces: Sequence[bytes]) -> list[int]:
        transport = converse(api.site, api.clock, pieces)
        settle(api.clock)
        received = transport.value()
        hang_up(transport)
        answers, _ = decode_responses(received, grammar.read(b"".join(pieces)))
        return [answer.status for answer in answers]

    def stored(self, api: InMemoryApi) -> list[str]:
        return [text for _, text in result_of(api.store.list_posts(limit=10_000)).posts]

    def test_hidden_post_is_not_stored(self, api: InMemoryApi) -> None:
        created, wrong = 0, []
        with capturedLogs() as events:
            for sent, case in SENT:
                statuses = self.send(api, [sent])
                created += statuses.count(201)
                if any(status >= 500 and status not in NOT_IMPLEMENTED for status in statuses):
                    wrong.append((case.key, statuses))
            api.clock.advance(1)
        assert wrong == []
        assert self.stored(api) == [LEGITIMATE] * created
        assert created > 20
        assert [event for event in events if event["log_level"] > LogLevel.info or "log_failure" in event] == []

    def test_hidden_post_sent_byte_by_byte_is_not_stored(self, api: InMemoryApi) -> None:
        for case in ATTEMPTS:
            if len(case.sent) <= BYTEWISE_MAX_BYTES and not case.family.startswith("invalid "):
                self.send(api, in_bytes(with_hidden_request(case)))
        assert set(self.stored(api)) <= {LEGITIMATE}

    def test_hidden_post_alone_is_stored(self, api: InMemoryApi) -> None:
        assert self.send(api, [AFTER, request(body=LEGITIMATE_BODY)]) == [201, 201]
        assert self.stored(api) == [SMUGGLED, LEGITIMATE]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("smuggling")
    (folder / "postd.toml").write_text('hosts = ["*"]\n')  # the attempts name hosts of all kinds
    with Daemon(folder, "-c", "postd.toml") as daemon:
        yield daemon


def test_daemon_does_not_store_a_hidden_post(daemon: Daemon) -> None:
    created, wrong = 0, []
    for sent, case in SENT:
        received = talk(daemon, sent, half_closes=True)
        statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ", received)]
        created += statuses.count(201)
        if any(status >= 500 and status not in NOT_IMPLEMENTED for status in statuses):
            wrong.append((case.key, statuses))
        if case.ends and not statuses:
            wrong.append((case.key, statuses))
    assert wrong == []
    posts: Any = httpx.get(f"{daemon.url}/post").json()
    assert [post["post"] for post in posts] == [LEGITIMATE] * created
    assert created > 20
    _, _, log = daemon.log.partition("postd ready")
    assert [line for line in log.splitlines()[1:] if not ACCESS_LINE.search(line)] == []

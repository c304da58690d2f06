"""Requests in requests: each attempt carries a POST that must not be executed, by us in memory and by a daemon.

An attempt is answered as the corpus says, whatever follows it on its connection, and in whatever pieces it comes.
"""

import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from twisted.logger import LogLevel, capturedLogs

from tests.helpers import PATIENCE_S, InMemoryApi, result_of
from tests.integration.daemon import Daemon
from tests.web.server import grammar
from tests.web.server.connections import (
    Ours,
    Talk,
    converse,
    decode_responses,
    hang_up,
    in_bytes,
    settle,
)
from tests.web.server.corpus import (
    AFTER,
    AT_ONCE,
    HIDING,
    HOSTILE,
    LEGITIMATE,
    ODD,
    OPEN_BODY,
    OPEN_TO_TASTE,
    SMUGGLED,
    Case,
    request,
)

ATTEMPTS: Sequence[Case] = (*HOSTILE, *HIDING)
INNOCENT: Sequence[Case] = (*ODD, *OPEN_TO_TASTE)
FAMILIES = sorted({case.family for case in ATTEMPTS})

BYTEWISE_MAX_BYTES = 2000
"""The longest attempts that are sent in small pieces."""

SPLIT_EACH_MAX = 8
"""Of a larger family not each attempt is sent in two pieces: they differ by a byte."""

NOT_IMPLEMENTED = {501, 505}
"""The only answers of the kind 5xx that a client can be the reason for."""

WAIT_S = PATIENCE_S
ACCESS_LINE = re.compile(r'- \S+ \[[^\]]+\] ".*" [1-5][0-9][0-9] ')


def of_family(family: str) -> list[Case]:
    return [case for case in ATTEMPTS if case.family == family]


def whole(case: Case) -> bytes:
    """Return an attempt with what must not be executed behind it; where it is not refused it hides enough."""
    return case.sent + AFTER if case.refused and case.ends else case.sent


def check(case: Case, talk: Talk) -> list[Any]:
    """Return what is not as the corpus says."""
    statuses, taken = talk.statuses, len(talk.seen)
    fits = (
        len(statuses) == len(case.answers)
        and all(status in allowed for status, allowed in zip(statuses, case.answers, strict=True))
        and taken == sum(200 in allowed for allowed in case.answers)
        and talk.ended == case.ends
    )
    return [] if fits else [(case.key, statuses, f"{taken} taken", "ended" if talk.ended else "goes on")]


def in_two(sent: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Return something in two pieces, split where a parser may stumble: at the ends of lines and around colons."""
    places = {place for match in re.finditer(rb"[\r\n:;, ]", sent[:1000]) for place in (match.start(), match.end())}
    return [(sent[:place], sent[place:]) for place in sorted(places - {0, len(sent)})]


SENT: Sequence[tuple[bytes, Case]] = (
    *((whole(case), case) for case in (*ATTEMPTS, *AT_ONCE)),
    *((case.sent, case) for case in INNOCENT),
)
"""All that servers with a store are sent: at the end it has what all of the innocent were told is stored."""


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


@pytest.mark.parametrize("family", FAMILIES)
def test_refused_request_has_no_effect(ours: Ours, family: str) -> None:
    assert [wrong for case in of_family(family) for wrong in check(case, ours.talk(whole(case)))] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_byte_by_byte_it_is_the_same(ours: Ours, family: str) -> None:
    short = [case for case in of_family(family) if len(case.sent) <= BYTEWISE_MAX_BYTES]
    assert [wrong for case in short for wrong in check(case, ours.talk(*in_bytes(whole(case))))] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_in_two_pieces_it_is_the_same(ours: Ours, family: str) -> None:
    cases = [case for case in of_family(family) if len(case.sent) <= BYTEWISE_MAX_BYTES]
    some = cases if len(cases) <= SPLIT_EACH_MAX else cases[:: len(cases) // 3]
    assert [
        (repr(first), *wrong)
        for case in some
        for first, second in in_two(whole(case))
        for wrong in check(case, ours.talk(first, second))
    ] == []


@pytest.mark.parametrize("case", AT_ONCE, ids=[case.key for case in AT_ONCE])
def test_invalid_request_is_refused_before_its_end(ours: Ours, case: Case) -> None:
    assert check(case, ours.talk(case.sent)) == []
    assert check(case, ours.talk(case.sent, AFTER)) == []


def test_a_refusal_says_what_is_wrong_and_closes(ours: Ours) -> None:
    for case in (*HOSTILE, *AT_ONCE):
        for answer in ours.talk(whole(case)).answers:
            if answer.status != 200:
                assert answer.fields["connection"] == ["close"], case
                assert answer.fields["content-type"] in (["application/problem+json"], ["text/plain; charset=utf-8"])
                assert len(answer.fields["date"]) == 1, case
                assert "server" not in answer.fields, case
                assert answer.body, case


def test_hidden_request_alone_is_executed(ours: Ours) -> None:
    """Else nothing here could fail."""
    assert ours.talk(AFTER).statuses == [200]
    assert ours.talk(request(line=b"GET / HTTP/1.1", body=b"") + AFTER).statuses == [200, 200]


class ApiTests:
    """The same before the resources that there are, and a store."""

    def post(self, api: InMemoryApi, pieces: Sequence[bytes]) -> list[int]:
        transport = converse(api.site, api.clock, pieces)
        settle(api.clock)
        received = transport.value()
        hang_up(transport)
        answers, _ = decode_responses(received, grammar.read(b"".join(pieces)))
        return [answer.status for answer in answers]

    def stored(self, api: InMemoryApi) -> list[str]:
        return [text for _, text in result_of(api.store.list_posts(limit=10_000)).posts]

    def test_nothing_hidden_is_stored(self, api: InMemoryApi) -> None:
        created, wrong = 0, []
        with capturedLogs() as events:
            for sent, case in SENT:
                statuses = self.post(api, [sent])
                created += statuses.count(201)
                if any(status >= 500 and status not in NOT_IMPLEMENTED for status in statuses):
                    wrong.append((case.key, statuses))
            api.clock.advance(1)
        assert wrong == []
        assert self.stored(api) == [LEGITIMATE] * created
        assert created > 20
        assert [event for event in events if event["log_level"] > LogLevel.info or "log_failure" in event] == []

    def test_nothing_hidden_is_stored_byte_by_byte(self, api: InMemoryApi) -> None:
        for case in ATTEMPTS:
            if len(case.sent) <= BYTEWISE_MAX_BYTES and not case.family.startswith("no "):
                self.post(api, in_bytes(whole(case)))
        assert set(self.stored(api)) <= {LEGITIMATE}

    def test_hidden_post_alone_is_stored(self, api: InMemoryApi) -> None:
        assert self.post(api, [AFTER, request(body=OPEN_BODY)]) == [201, 201]
        assert self.stored(api) == [SMUGGLED, LEGITIMATE]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("smuggling")
    (folder / "postd.toml").write_text('hosts = ["*"]\n')  # the attempts name hosts of all kinds
    with Daemon(folder, "-c", "postd.toml") as daemon:
        yield daemon


def talk(daemon: Daemon, sent: bytes) -> bytes:
    """Send bytes, say that they were all, and return all that comes back."""
    received = b""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        while piece := client.recv(65536):
            received += piece
    return received


def test_a_daemon_stores_nothing_hidden(daemon: Daemon) -> None:
    created, wrong = 0, []
    for sent, case in SENT:
        received = talk(daemon, sent)
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

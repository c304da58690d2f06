"""What gets through to an application: as much as stock Twisted lets through, but for what is named in `DEPARTURES`."""

from collections.abc import Collection, Sequence

import pytest
from msgspec import Struct

from tests.web.server import grammar
from tests.web.server.connections import Ours, Stock, in_bytes
from tests.web.server.corpus import AT_ONCE, HIDING, HOSTILE, ODD, OPEN_TO_TASTE, PLAIN, Case

STRICT = (*PLAIN, *ODD, *HOSTILE, *AT_ONCE, *HIDING)
"""What can be read in one way only, or in none."""

SPLIT_EVERYWHERE_MAX_BYTES = 130
"""The longest requests that are sent in two pieces in every way there is."""


class Departure(Struct, frozen=True):
    """Where ours is not like stock Twisted.

    Args:
        why: what is done instead, and which section says so.
        cases: keys of cases of the corpus, or `family/*`.
        but: names of a family's cases in which both do the same.
    """

    why: str
    cases: Collection[str]
    but: Collection[str] = ()

    def covers(self, case: Case) -> bool:
        return case.key in self.cases or (f"{case.family}/*" in self.cases and case.name not in self.but)


DEPARTURES: Sequence[Departure] = (
    # We take what stock does not.
    Departure("a target in absolute form is taken for what it means (RFC 9112 §3.2.2)", ["targets in absolute form/*"]),
    Departure("so it is with curl's proxy option (RFC 9112 §3.2.2)", ["plain/curl --proxy"]),
    Departure(
        "a later minor version is as good as 1.1 (RFC 9110 §2.5)",
        [
            "versions/*",
            "chunks/on HTTP/1.2",
            "two on one connection/after HTTP/1.9",
        ],
        but=["HTTP/1.1"],
    ),
    Departure(
        "a quoted pair is part of a quoted string (RFC 9110 §5.6.4)", [r"""chunk extensions/;a="\\"" """.rstrip()]
    ),
    # We refuse what stock takes.
    Departure("a tunnel is not what we make (RFC 9110 §15.6.2)", ["CONNECT/*", "CONNECT with a path/*"]),
    Departure("so it is before the head's end", ["at once: another method/*"]),
    Departure("no method is so long (RFC 9112 §3)", ["long methods/*"]),
    Departure(
        "a target is in one of four forms, without user information or fragment (RFC 9112 §3.2, RFC 9110 §4.2.4)",
        ["bad targets/*"],
        but=["an asterisk", r"http://b\xc3\xbccher.example/post"],
    ),
    Departure(
        "no control byte and no fragment is in a target (RFC 9112 §3.2)",
        [r"no byte of a target/\x7f", r"no byte of a target/\x80", "no byte of a target/#"],
    ),
    Departure("Host is one host and port (RFC 9112 §3.2)", ["bad hosts/*", "bad hosts on HTTP/1.0/*"]),
    Departure("there is one Host (RFC 9112 §3.2)", ["not one Host/*"], but=["none on HTTP/1.2"]),
    Departure(
        "no control byte is in a value (RFC 9110 §5.5)",
        [
            "no byte of a value/*",
            "no first byte of a value/*",
            "no last byte of a value/*",
            "no byte of a Host/*",
            "line ends/a vertical tab for a line end",
        ],
        but=[r"\x00", r"\n", r"\r"],
    ),
    Departure(
        "no line is folded (RFC 9112 §5.2)",
        [
            "bad fields/a line of spaces",
            "bad fields/a line of one tab",
            "bad fields/a folded line",
            "bad fields/a line folded with a tab",
            "bad fields/a line folded to a field",
            "bad fields/a line folded to nothing",
            "bad fields/a folded value",
            "bad fields/a folded Host",
            "bad fields/a folded length",
            "bad fields/a folded coding",
            "bad fields/a folded coding, with a tab",
            "bad fields/a space before a coding",
        ],
    ),
    Departure(
        "the only coding is chunked, which comes last and once (RFC 9112 §6.1, §6.3)",
        [
            "bad codings/identity",
            "bad codings without chunks/identity",
            "bad codings and a length/identity",
            "two codings/chunked, then identity",
            "after a request, in a bad one/a bad coding",
        ],
    ),
    Departure("HTTP/1.0 has no codings (RFC 9112 §6.1)", ["a coding on HTTP/1.0/*"]),
    Departure(
        "a size has up to 16 digits (RFC 9112 §7.1 has no bound and asks for one)",
        [
            "bad sizes of chunks/000000000000000013",
            "bad sizes of second chunks/000000000000000013",
            "the end of the chunks/17 digits",
        ],
    ),
    Departure("a body is bounded (reference: Post API)", ["chunks over the limit in all/*"]),
    Departure(
        "trailers are fields, and none of them frames (RFC 9112 §7.1.2, RFC 9110 §6.5.1)",
        ["bad trailers/*", "a request in a chunk extension/after a quote"],
        but=[r"X: a\n", r"X: a\r", r"\n", r"\r", r"\x00"],
    ),
    Departure(
        "the chunks end in two CRLF (RFC 9112 §7.1)",
        ["after a request, in a bad one/chunks that end in a line feed"],
    ),
    Departure("what is expected is met or refused (RFC 9110 §10.1.1)", ["other expectations/*"]),
    Departure(
        "a target, a head and what looks like one are bounded (reference: Settings)",
        [
            "long targets/a byte too many",
            "long targets/many",
            "large heads/101 fields",
            "endless chunk extensions/many",
        ],
    ),
    Departure(
        "close is one of several options (RFC 9110 §7.6.1)",
        [
            "after the last request/close, TE",
            "after the last request/two of Connection",
        ],
    ),
)


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


@pytest.mark.parametrize("family", sorted({case.family for case in STRICT}))
def test_no_more_and_no_less_gets_through_than_stock_twisted_lets_through(ours: Ours, family: str) -> None:
    stock = Stock()
    differing, alike = [], []
    for case in STRICT:
        if case.family == family:
            same = ours.talk(case.sent).seen == stock.seen(case.sent)
            departs = any(departure.covers(case) for departure in DEPARTURES)
            if not same and not departs:
                differing.append(case.name)
            if same and departs:
                alike.append(case.name)
    assert differing == []
    assert alike == [], "are in the table of departures, and are none"


def test_the_table_of_departures_names_cases_of_the_corpus() -> None:
    known = {case.key for case in STRICT} | {f"{case.family}/*" for case in STRICT}
    assert [key for departure in DEPARTURES for key in departure.cases if key not in known] == []


@pytest.mark.parametrize("case", PLAIN, ids=[case.name for case in PLAIN])
def test_requests_of_real_clients_are_accepted(ours: Ours, case: Case) -> None:
    check(ours, case)


@pytest.mark.parametrize("family", sorted({case.family for case in (*ODD, *OPEN_TO_TASTE)}))
def test_valid_requests_are_accepted(ours: Ours, family: str) -> None:
    for case in (*ODD, *OPEN_TO_TASTE):
        if case.family == family:
            check(ours, case)


def check(ours: Ours, case: Case) -> None:
    talk = ours.talk(case.sent)
    assert len(talk.statuses) == len(case.answers), (case, talk.statuses)
    assert all(status in allowed for status, allowed in zip(talk.statuses, case.answers, strict=True)), (case, talk)
    if 400 not in talk.statuses and 417 not in talk.statuses:
        assert talk.ended == case.ends, case
    for answer in talk.answers:
        assert len(answer.fields["date"]) == 1
        assert "server" not in answer.fields
    if case.ends:
        assert talk.answers[-1].fields["connection"] == ["close"]


def in_small_pieces(sent: bytes) -> list[bytes]:
    """Return something byte by byte, but for the middle of what is long."""
    return [*in_bytes(sent[:500]), *filter(None, [sent[500:-500]]), *in_bytes(sent[500:][-500:])]


def test_each_byte_of_a_request_may_come_alone(ours: Ours) -> None:
    differing = []
    for case in (*PLAIN, *ODD):
        whole = ours.talk(case.sent)
        bytewise = ours.talk(*in_small_pieces(case.sent))
        if (bytewise.seen, bytewise.statuses, bytewise.ended) != (whole.seen, whole.statuses, whole.ended):
            differing.append(case.key)
    assert differing == []


def test_a_request_may_come_in_two_pieces(ours: Ours) -> None:
    differing = []
    for case in (*PLAIN, *ODD):
        if len(case.sent) <= SPLIT_EVERYWHERE_MAX_BYTES:
            whole = ours.talk(case.sent).seen
            differing += [
                (case.key, place)
                for place in range(1, len(case.sent))
                if ours.talk(case.sent[:place], case.sent[place:]).seen != whole
            ]
    assert differing == []


def test_a_client_that_asks_is_told_to_go_on_if_it_has_not_gone_on(ours: Ours) -> None:
    """RFC 9110 §10.1.1: once, on HTTP/1.1, and not when the body is already coming in."""
    for case in (*PLAIN, *ODD):
        if b"\r\nExpect: 100-" not in case.sent or case.family == "HTTP/1.0":
            continue
        head, separator, body = case.sent.partition(b"\r\n\r\n")
        assert ours.talk(case.sent).told_to_go_on == 0, case
        assert ours.talk(head + separator, body).told_to_go_on == (1 if body else 0), case


def test_http_1_0_is_never_told_to_go_on(ours: Ours) -> None:
    head, separator, body = next(case.sent for case in ODD if case.name == "Expect is not for it").partition(
        b"\r\n\r\n"
    )
    talk = ours.talk(head + separator, body)
    assert (talk.told_to_go_on, talk.statuses) == (0, [200])


@pytest.mark.parametrize("rest", [b"1\r\nHost: b.example", b"1\r\nHost:", b"0\r\nHost: b.example", b"0"])
def test_the_authority_of_a_target_is_the_host(ours: Ours, rest: bytes) -> None:
    """RFC 9112 §3.2.2."""
    (seen,) = ours.talk(b"GET http://a.example:81?x=y HTTP/1.%b\r\n\r\n" % rest).seen
    assert (seen.target, seen.fields.get(b"host")) == (b"/?x=y", [b"a.example:81"])


def test_our_own_oracle_agrees_with_the_corpus() -> None:
    """It is no better than it is right."""
    for case in (*PLAIN, *ODD, *HOSTILE, *AT_ONCE, *HIDING):
        assert len(grammar.read(case.sent)) == sum(200 in answer for answer in case.answers), case

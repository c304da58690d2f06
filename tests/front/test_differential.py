"""The requests that reach a resource: the same as with stock Twisted, except for `DEPARTURES`."""

from collections.abc import Collection, Sequence
from typing import Literal

import pytest
from msgspec import Struct

from tests.cases import each
from tests.front import grammar
from tests.front.connections import Ours, Stock, in_bytes
from tests.front.corpus import AT_ONCE, HIDING, HOSTILE, ODD, PLAIN, REFUSABLE, Case

UNAMBIGUOUS = (*PLAIN, *ODD, *HOSTILE, *AT_ONCE, *HIDING)
"""Inputs that can be read in one way only, or not at all."""

SPLIT_EVERYWHERE_MAX_BYTES = 130
"""The longest requests that are split in two at every byte."""


class Departure(Struct, frozen=True):
    """A deliberate difference from stock Twisted; docs/explanation/front.md has them as a table.

    Args:
        does: what postd does, and stock Twisted does not; "reads" if both accept the request and read it in two ways.
        why: what postd does instead, and the section that says so.
        cases: keys of cases of the corpus, or `family/*`.
        but: names of cases of a family in which both do the same.
    """

    does: Literal["accepts", "refuses", "reads"]
    why: str
    cases: Collection[str]
    but: Collection[str] = ()

    def covers(self, case: Case) -> bool:
        return case.key in self.cases or (f"{case.family}/*" in self.cases and case.name not in self.but)


DEPARTURES: Sequence[Departure] = (
    Departure(
        "reads", "the target in absolute form names host and path (RFC 9112 §3.2.2)", ["targets in absolute form/*"]
    ),
    Departure(
        "reads",
        "the absolute form of curl's proxy option names host and path (RFC 9112 §3.2.2)",
        ["plain/curl --proxy"],
    ),
    Departure(
        "accepts",
        "a later minor version is read as 1.1 (RFC 9110 §2.5)",
        [
            "versions/*",
            "chunks/on HTTP/1.2",
            "two on one connection/after HTTP/1.9",
        ],
        but=["HTTP/1.1"],
    ),
    Departure(
        "accepts",
        "a quoted pair is part of a quoted string (RFC 9110 §5.6.4)",
        [r"""chunk extensions/;a="\\"" """.rstrip()],
    ),
    Departure("refuses", "CONNECT is not implemented (RFC 9110 §15.6.2)", ["CONNECT/*", "CONNECT with a path/*"]),
    Departure("refuses", "CONNECT is refused before the end of the head", ["at once: CONNECT/*"]),
    Departure("refuses", "the length of a method is limited (RFC 9112 §3)", ["long methods/*"]),
    Departure(
        "refuses",
        "a target is in one of four forms, without user information or fragment (RFC 9112 §3.2, RFC 9110 §4.2.4)",
        ["bad targets/*"],
        but=["an asterisk", r"http://b\xc3\xbccher.example/post"],
    ),
    Departure(
        "refuses",
        "no control byte and no fragment is in a target (RFC 9112 §3.2)",
        [r"invalid bytes in a target/\x7f", r"invalid bytes in a target/\x80", "invalid bytes in a target/#"],
    ),
    Departure("refuses", "Host is one host and port (RFC 9112 §3.2)", ["bad hosts/*", "bad hosts on HTTP/1.0/*"]),
    Departure(
        "refuses", "exactly one Host is required (RFC 9112 §3.2)", ["no Host or several/*"], but=["none on HTTP/1.2"]
    ),
    Departure(
        "refuses",
        "no control byte is in a value (RFC 9110 §5.5)",
        [
            "invalid bytes in a field value/*",
            "invalid first bytes of a field value/*",
            "invalid last bytes of a field value/*",
            "invalid bytes in a Host/*",
            "bad line ends/a vertical tab for a line end",
        ],
        but=[r"\x00", r"\n", r"\r"],
    ),
    Departure(
        "refuses",
        "folded lines are refused (RFC 9112 §5.2)",
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
        "refuses",
        "the only transfer coding is chunked, last and once (RFC 9112 §6.1, §6.3)",
        [
            "bad codings/identity",
            "bad codings without chunks/identity",
            "bad codings and a length/identity",
            "two codings/chunked, then identity",
            "in a bad request after a good one/a bad coding",
        ],
    ),
    Departure("refuses", "HTTP/1.0 has no transfer codings (RFC 9112 §6.1)", ["a coding on HTTP/1.0/*"]),
    Departure(
        "refuses",
        "a chunk size has up to 16 digits (RFC 9112 §7.1 asks for a limit)",
        [
            "bad sizes of chunks/000000000000000013",
            "bad sizes of second chunks/000000000000000013",
            "bad last chunks/17 digits",
        ],
    ),
    Departure("refuses", "the length of a body is limited (reference: Post API)", ["chunks over the limit in total/*"]),
    Departure(
        "refuses",
        "trailers are valid fields, and none of them is for framing (RFC 9112 §7.1.2, RFC 9110 §6.5.1)",
        ["bad trailers/*", "a request in a chunk extension/after a quote"],
        but=[r"X: a\n", r"X: a\r", r"\n", r"\r", r"\x00"],
    ),
    Departure(
        "refuses",
        "chunks end with two CRLF (RFC 9112 §7.1)",
        ["in a bad request after a good one/chunks that end in a line feed"],
    ),
    Departure("refuses", "an unknown expectation is refused (RFC 9110 §10.1.1)", ["unknown expectations/*"]),
    Departure(
        "refuses",
        "the lengths of targets, heads and chunk extensions are limited (reference: Settings)",
        [
            "long targets/a byte too many",
            "long targets/many",
            "large heads/101 fields",
            "endless chunk extensions/many",
        ],
    ),
    Departure(
        "refuses",
        "close may be one of several connection options (RFC 9110 §7.6.1)",
        [
            "after the last request/close, TE",
            "after the last request/two Connection fields",
        ],
    ),
)


@pytest.fixture(scope="module")
def ours() -> Ours:
    return Ours()


@each("family", sorted({case.family for case in UNAMBIGUOUS}))
def test_requests_that_reach_the_resource_are_those_of_stock_twisted(ours: Ours, family: str) -> None:
    stock = Stock()
    differing, alike = [], []
    for case in UNAMBIGUOUS:
        if case.family == family:
            seen, expected = ours.talk(case.sent).seen, stock.seen(case.sent)
            does = [departure.does for departure in DEPARTURES if departure.covers(case)]
            more = len(seen) - len(expected)
            if seen != expected and does != ["accepts" if more > 0 else "refuses" if more else "reads"]:
                differing.append((case.name, does))
            if seen == expected and does:
                alike.append(case.name)
    assert differing == []
    assert alike == [], "in DEPARTURES, but the same as stock Twisted"


def test_departures_name_cases_of_the_corpus() -> None:
    known = {case.key for case in UNAMBIGUOUS} | {f"{case.family}/*" for case in UNAMBIGUOUS}
    assert [key for departure in DEPARTURES for key in departure.cases if key not in known] == []


@each("case", PLAIN, ids=[case.name for case in PLAIN])
def test_requests_of_real_clients_are_accepted(ours: Ours, case: Case) -> None:
    check(ours, case)


@each("family", sorted({case.family for case in (*ODD, *REFUSABLE)}))
def test_valid_requests_are_accepted(ours: Ours, family: str) -> None:
    for case in (*ODD, *REFUSABLE):
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
    """Split into single bytes; the middle of a long input stays in one piece."""
    return [*in_bytes(sent[:500]), *filter(None, [sent[500:-500]]), *in_bytes(sent[500:][-500:])]


def test_request_sent_byte_by_byte_is_read_the_same(ours: Ours) -> None:
    differing = []
    for case in (*PLAIN, *ODD):
        whole = ours.talk(case.sent)
        bytewise = ours.talk(*in_small_pieces(case.sent))
        if (bytewise.seen, bytewise.statuses, bytewise.ended) != (whole.seen, whole.statuses, whole.ended):
            differing.append(case.key)
    assert differing == []


def test_request_sent_in_two_pieces_is_read_the_same(ours: Ours) -> None:
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


def test_expect_100_continue_gets_100_unless_the_body_has_arrived(ours: Ours) -> None:
    """RFC 9110 §10.1.1: once, on HTTP/1.1, and not when the body has begun to arrive."""
    for case in (*PLAIN, *ODD):
        if b"\r\nExpect: 100-" not in case.sent or case.family == "HTTP/1.0":
            continue
        head, separator, body = case.sent.partition(b"\r\n\r\n")
        assert ours.talk(case.sent).continue_count == 0, case
        assert ours.talk(head + separator, body).continue_count == (1 if body else 0), case


def test_http_1_0_request_never_gets_100(ours: Ours) -> None:
    head, separator, body = next(case.sent for case in ODD if case.name == "Expect: 100-continue").partition(
        b"\r\n\r\n"
    )
    talk = ours.talk(head + separator, body)
    assert (talk.continue_count, talk.statuses) == (0, [200])


@each("rest", [b"1\r\nHost: b.example", b"1\r\nHost:", b"0\r\nHost: b.example", b"0"])
def test_authority_of_an_absolute_target_replaces_host(ours: Ours, rest: bytes) -> None:
    """RFC 9112 §3.2.2."""
    (seen,) = ours.talk(b"GET http://a.example:81?x=y HTTP/1.%b\r\n\r\n" % rest).seen
    assert (seen.target, seen.fields.get(b"host")) == (b"/?x=y", [b"a.example:81"])


def test_grammar_accepts_the_same_requests_as_the_corpus() -> None:
    """The oracle of the fuzzing is as strict as the corpus."""
    for case in (*PLAIN, *ODD, *HOSTILE, *AT_ONCE, *HIDING):
        assert len(grammar.read(case.sent)) == sum(200 in answer for answer in case.answers), case

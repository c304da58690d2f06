import time

import pytest

from postd.protocol.challenge import CHALLENGES_MAX, CHALLENGES_MAX_BYTES, Challenge, decode_challenges


@pytest.mark.parametrize(
    ("line", "challenges"),
    [
        (b"", []),
        (b" , ,", []),
        (b'Basic realm="x"', [("basic", {"realm": "x"})]),
        (b'BASIC  REALM = "x" ,charset=UTF-8', [("basic", {"realm": "x", "charset": "UTF-8"})]),
        (b'Basic realm="a, Digest b=\\"c\\""', [("basic", {"realm": 'a, Digest b="c"'})]),
        (b'Digest a="r", b=n, Basic a="r"', [("digest", {"a": "r", "b": "n"}), ("basic", {"a": "r"})]),
        (b'Basic a="r",Digest a="r",b="n"', [("basic", {"a": "r"}), ("digest", {"a": "r", "b": "n"})]),
        (b"Negotiate", [("negotiate", {})]),
        (b"Negotiate, NTLM, Bearer", [("negotiate", {}), ("ntlm", {}), ("bearer", {})]),
        (b'Negotiate YWJj==, Basic realm="r"', [("negotiate", {}), ("basic", {"realm": "r"})]),
        (b"Negotiate a/b+c", [("negotiate", {})]),
        (b'Basic realm="gr\xc3\xbc\xc3\x9fe"', [("basic", {"realm": "grüße"})]),
        (b'Basic realm="\xff", a=b', [("basic", {"a": "b"})]),
        (b"Digest a=b, a=c, d=e", [("digest", {"d": "e"})]),
        (b'Digest a="b', [("digest", {})]),
        (b"Digest a=b c=d", [("digest", {})]),
        (b"=x", []),
        (b'"Basic" realm=x', []),
    ],
)  # fmt: skip
def test_line_of_challenges_is_decoded(line: bytes, challenges: list[tuple[str, dict[str, str]]]) -> None:
    assert decode_challenges([line]) == [Challenge(scheme, parameters) for scheme, parameters in challenges]


def test_challenges_of_several_lines_keep_their_order() -> None:
    assert [one.scheme for one in decode_challenges([b"A x=y, B", b"junk =", b"C"])] == ["a", "b", "junk", "c"]


def test_challenges_beyond_the_limits_are_ignored() -> None:
    assert len(decode_challenges([b"A, " * 100])) == CHALLENGES_MAX
    long = b"A realm=" + b"x" * CHALLENGES_MAX_BYTES
    assert [one.scheme for one in decode_challenges([b"B", long, b"C"])] == ["b"]


@pytest.mark.parametrize("unit", [b"a", b'"', b"a=", b"a ", b", ", b"a=b,", b'a="\\', b"\\", b"a=b, C "])
def test_long_line_takes_little_time(unit: bytes) -> None:
    began = time.process_time()
    decode_challenges([b"Digest " + unit * 20_000])
    assert time.process_time() - began < 5

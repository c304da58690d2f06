from postd.protocol.challenge import CHALLENGES_MAX, CHALLENGES_MAX_BYTES, Challenge, decode_challenges
from tests.cases import each
from tests.linear import Input, check_linear


@each(
    "line, challenges",
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


def test_line_of_challenges_is_linear() -> None:
    units = [b"a", b'"', b"a=", b"a ", b", ", b"a=b,", b'a="\\', b"\\", b"a=b, C "]
    check_linear(
        lambda line: decode_challenges([line]), [Input(b"Digest ", unit) for unit in units], CHALLENGES_MAX_BYTES
    )

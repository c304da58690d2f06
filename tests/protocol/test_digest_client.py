"""Digest on the side of the client."""

import pytest

from postd.protocol.challenge import decode_challenges
from postd.protocol.digest import (
    DigestChallenge,
    ServerAuthenticationError,
    answer_challenge,
    check_authentication_info,
    choose_challenge,
    decode_digest_response,
    encode_digest_response,
    h_a1,
    response_hash,
)
from tests.cases import each

# RFC 7616 §3.9.1
REALM, USER, PASSWORD = "http-auth@example.org", "Mufasa", "Circle of Life"
NONCE, CNONCE = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
OPAQUE = "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"
RESPONSES = {
    "MD5": "8ca523f5e9506fed4657c9700eebdbec",
    "SHA-256": "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
}


@each("algorithm", ["MD5", "SHA-256"])
def test_example_of_the_rfc(algorithm: str) -> None:
    line = f'Digest realm="{REALM}", qop="auth, auth-int", algorithm={algorithm}, nonce="{NONCE}", opaque="{OPAQUE}"'
    challenge = choose_challenge(decode_challenges([line.encode()]))
    assert challenge == DigestChallenge(REALM, NONCE, algorithm, OPAQUE)
    ha1 = h_a1(algorithm, USER, REALM, PASSWORD)
    shown = answer_challenge(challenge, USER, ha1, method="GET", uri="/dir/index.html", count=1, cnonce=CNONCE)
    assert shown.response == RESPONSES[algorithm]
    assert (shown.nc, shown.algorithm) == ("00000001", algorithm)
    sent = encode_digest_response(shown, challenge.opaque)
    assert sent.startswith(b"Digest ")
    assert sent.endswith(f', qop=auth, opaque="{OPAQUE}"'.encode())
    assert decode_digest_response(sent.removeprefix(b"Digest ")) == shown


def test_algorithm_nc_and_qop_are_sent_unquoted() -> None:
    """RFC 7616 §3.4: they must not be quoted, and the other parameters must be."""
    ha1 = h_a1("SHA-256", USER, REALM, PASSWORD)
    challenge = DigestChallenge(REALM, NONCE, "SHA-256", OPAQUE)
    shown = answer_challenge(challenge, USER, ha1, method="GET", uri="/dir/index.html", count=1, cnonce=CNONCE)
    assert encode_digest_response(shown, OPAQUE) == (
        b'Digest username="Mufasa", realm="http-auth@example.org", '
        b'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", uri="/dir/index.html", '
        b'response="753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1", algorithm=SHA-256, '
        b'cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ", nc=00000001, qop=auth, '
        b'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
    )


@each("user", ["a", "jürgen", 'a"b\\c', "a:b", ""])
def test_encoded_response_can_be_decoded(user: str) -> None:
    challenge = DigestChallenge('a "realm"', "n\\n", "SHA-256")
    shown = answer_challenge(challenge, user, "0" * 64, method="PUT", uri='/a?"=\\', count=0xABC, cnonce="c")
    assert decode_digest_response(encode_digest_response(shown, None).removeprefix(b"Digest ")) == shown


def test_first_of_equal_challenges_is_chosen() -> None:
    lines = [
        b'Digest realm="a", nonce=n, qop=auth',
        b'Digest realm="b", nonce=n, qop="auth", algorithm=md5, stale=TRUE',
    ]
    assert choose_challenge(decode_challenges(lines)) == DigestChallenge("a", "n")
    assert choose_challenge(decode_challenges(lines[1:])) == DigestChallenge("b", "n", stale=True)


def test_authentication_info_is_verified() -> None:
    ha1 = h_a1("MD5", USER, REALM, PASSWORD)
    shown = answer_challenge(DigestChallenge(REALM, NONCE), USER, ha1, method="GET", uri="/", count=1, cnonce="c")
    rspauth = response_hash(shown, ha1, "")
    right = f'rspauth="{rspauth}", cnonce="c", nc=00000001, qop=auth'
    assert check_authentication_info(right.encode(), shown, ha1) is None
    assert check_authentication_info(f'{right}, nextnonce="n2"'.encode(), shown, ha1) == "n2"
    assert check_authentication_info(f'rspauth="{rspauth.upper()}"'.encode(), shown, ha1) is None
    assert check_authentication_info(b'nextnonce="n2"', shown, ha1) == "n2"
    for wrong in (
        right.replace("auth=", "auth=x", 1),
        f'rspauth="{shown.response}"',
        "rspauth=\xe4",
        "a b",
        right + ", nc=00000001",
    ):
        with pytest.raises(ServerAuthenticationError):
            check_authentication_info(wrong.encode(), shown, ha1)

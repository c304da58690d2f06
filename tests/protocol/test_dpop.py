"""DPoP proofs: RFC 9449 §4.3 rule by rule, alone and in pairs; thumbprints of RFC 7638."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.dpop import PROOF_MAX_BYTES, ProofError, decode_proof, thumbprint
from tests.cases import each
from tests.issuer import ABSENT, Key, Prover, b64, make_token

NOW = 1_700_000_000.0
METHOD, URL, TOKEN = "GET", "https://posts.example/post", "a-token"
LEEWAY_S = 30.0
ES256 = Key.make("ES256")
ANOTHER = Key.make("ES256", "another")
PROVER = Prover(ES256, now=lambda: NOW)
HASH = PROVER.claims(METHOD, URL, TOKEN)["ath"]


def check(  # noqa: PLR0913 - all but one have their defaults
    proof: str | bytes,
    *,
    method: str = METHOD,
    url: str = URL,
    token: str = TOKEN,
    prover: Prover = PROVER,
    now: float = NOW,
    leeway_s: float = LEEWAY_S,
) -> float:
    """Return until when a proof holds."""
    text = proof.encode("utf-8", "surrogateescape") if isinstance(proof, str) else proof
    bound_to = prover.confirmation["jkt"]
    return decode_proof(text).check(method=method, url=url, token=token, bound_to=bound_to, now=now, leeway_s=leeway_s)


def refusal(proof: str | bytes, **changes: Any) -> str:
    with pytest.raises(ProofError) as raised:
        check(proof, **changes)
    return str(raised.value)


class GoodTests:
    @each("alg", ["ES256", "EdDSA", "PS256", "RS256"])
    def test_proof_is_accepted(self, alg: str) -> None:
        prover = Prover(Key.make(alg), now=lambda: NOW)
        assert check(prover.prove(METHOD, URL, TOKEN), prover=prover) == NOW + 60 + LEEWAY_S

    def test_ed25519_is_another_name_of_eddsa(self) -> None:
        """RFC 9864."""
        prover = Prover(Key.make("EdDSA"), now=lambda: NOW)
        assert check(prover.prove(METHOD, URL, TOKEN, {"alg": "Ed25519"}), prover=prover)

    @each(
        "url",
        [
            *(
                "https://posts.example/post?limit=20",
                "https://posts.example/post#x",
                "https://posts.example/post?a#b?c",
            ),
            *("HTTPS://Posts.Example/post", "https://posts.example:443/post", "https://posts.example/%70ost"),
            "https://posts.example/x/../post",
        ],
    )
    def test_equivalent_url_is_accepted(self, url: str) -> None:
        """RFC 9449 §4.3: query and fragment are ignored, and both are normalized (RFC 3986 §6.2.2, §6.2.3)."""
        assert check(PROVER.prove(METHOD, url, TOKEN))

    def test_further_members_are_ignored(self) -> None:
        header = {"kid": "x", "jku": "https://evil.example", "x5c": ["x"]}
        assert check(PROVER.prove(METHOD, URL, TOKEN, header, nonce="x", exp=1, iss="x"))

    def test_members_of_the_key_beside_its_own_are_ignored(self) -> None:
        key = {**PROVER.public, "kid": "x", "use": "sig", "alg": "ES256", "x5c": ["x"]}
        assert check(PROVER.prove(METHOD, URL, TOKEN, {"jwk": key}))

    @each("ago", [0, 59.9, 89.9, -29.9])
    def test_time_within_the_lifetime_and_the_clock_skew(self, ago: float) -> None:
        assert check(PROVER.prove(METHOD, URL, TOKEN, iat=NOW - ago)) == pytest.approx(NOW - ago + 90)

    def test_id_depends_on_key_and_jti(self) -> None:
        provers = [PROVER, Prover(ANOTHER, now=lambda: NOW)]
        ids = [
            decode_proof(prover.prove(METHOD, URL, TOKEN, jti=jti).encode()).id for prover in provers for jti in "ab"
        ]
        assert len(set(ids)) == 4
        assert decode_proof(PROVER.prove("PUT", "https://else.example/", "x", jti="a").encode()).id == ids[0]


# Each breaks one rule of RFC 9449 §4.3, of the header or of the claims, and nothing else.
HEADER_FAULTS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no typ": ({"typ": ABSENT}, "typ"),
    "typ JWT": ({"typ": "JWT"}, "typ"),
    "typ at+jwt": ({"typ": "at+jwt"}, "typ"),
    "typ a number": ({"typ": 5}, "typ"),
    "alg none": ({"alg": "none"}, "alg"),
    "alg HS256": ({"alg": "HS256"}, "alg"),
    "alg ES384": ({"alg": "ES384"}, "alg"),
    "no alg": ({"alg": ABSENT}, "alg"),
    "no jwk": ({"jwk": ABSENT}, "jwk"),
    "jwk a text": ({"jwk": "x"}, "jwk"),
    "jwk empty": ({"jwk": {}}, "jwk"),
    "private jwk": ({"jwk": {**PROVER.public, "d": "x"}}, "private"),
    "symmetric jwk": ({"jwk": {"kty": "oct", "k": "x"}}, "private"),
    "jwk of another": ({"jwk": ANOTHER.jwk()}, "its key"),
    "crit": ({"crit": ["x"]}, "crit"),
}
CLAIM_FAULTS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no jti": ({"jti": ABSENT}, "jti"),
    "jti empty": ({"jti": ""}, "jti"),
    "jti a number": ({"jti": 5}, "jti"),
    "no htm": ({"htm": ABSENT}, "htm"),
    "another method": ({"htm": "POST"}, "htm"),
    "method in lower case": ({"htm": "get"}, "htm"),
    "htm a list": ({"htm": ["GET"]}, "htm"),
    "no htu": ({"htu": ABSENT}, "htu"),
    "another path": ({"htu": f"{URL}/1"}, "htu"),
    "another path case": ({"htu": "https://posts.example/Post"}, "htu"),
    "another host": ({"htu": "https://posts.example.evil/post"}, "htu"),
    "another scheme": ({"htu": "http://posts.example/post"}, "htu"),
    "another port": ({"htu": "https://posts.example:444/post"}, "htu"),
    "user in htu": ({"htu": "https://x@posts.example/post"}, "htu"),
    "a path": ({"htu": "/post"}, "htu"),
    "no URL": ({"htu": "http://["}, "htu"),
    "htu a number": ({"htu": 5}, "htu"),
    "no iat": ({"iat": ABSENT}, "iat"),
    "iat a text": ({"iat": "1700000000"}, "iat"),
    "iat true": ({"iat": True}, "iat"),
    "iat negative": ({"iat": -1}, "iat"),
    "iat too old": ({"iat": NOW - 90}, "iat"),
    "iat in the future": ({"iat": NOW + 30.1}, "iat"),
    "no ath": ({"ath": ABSENT}, "ath"),
    "ath of another token": ({"ath": b64(b"x" * 32)}, "ath"),
    "ath padded": ({"ath": f"{HASH}="}, "ath"),
    "ath a number": ({"ath": 5}, "ath"),
}
FAULTS = {**HEADER_FAULTS, **CLAIM_FAULTS}


def faulty(*names: str) -> str:
    header = {key: value for name in names if name in HEADER_FAULTS for key, value in HEADER_FAULTS[name][0].items()}
    claims = {key: value for name in names if name in CLAIM_FAULTS for key, value in CLAIM_FAULTS[name][0].items()}
    return PROVER.prove(METHOD, URL, TOKEN, header, **claims)


class FaultTests:
    @each("name", FAULTS)
    def test_each_rule_is_checked(self, name: str) -> None:
        assert FAULTS[name][1] in refusal(faulty(name))

    @each("pair", [*itertools.combinations(FAULTS, 2)])
    def test_two_faults_do_not_make_one_right(self, pair: tuple[str, str]) -> None:
        refusal(faulty(*pair))

    @each("member", ["d", "p", "q", "dp", "dq", "qi", "oth", "k"])
    def test_any_private_member_is_refused(self, member: str) -> None:
        assert refusal(PROVER.prove(METHOD, URL, TOKEN, {"jwk": {**PROVER.public, member: "x"}})) == (
            "jwk has a private member"
        )

    def test_signature_must_be_that_of_the_key(self) -> None:
        claims = PROVER.claims(METHOD, URL, TOKEN)
        assert refusal(make_token(PROVER.header(), claims, ANOTHER)) == "its signature is wrong"
        head, body, signature = make_token(PROVER.header(), claims, ES256).split(".")
        for broken in ("", signature[:-2], signature[:-1] + ("A" if signature[-1] != "A" else "Q"), b64(b"\0" * 64)):
            refusal(f"{head}.{body}.{broken}")

    def test_algorithm_must_fit_the_key(self) -> None:
        """RFC 8725 §3.1: the algorithm in the header does not choose the kind of key."""
        for alg in ("RS256", "PS256", "EdDSA", "Ed25519"):
            refusal(make_token(PROVER.header(alg=alg), PROVER.claims(METHOD, URL, TOKEN), ES256))

    def test_rsa_key_must_be_long_enough(self) -> None:
        prover = Prover(Key.make("PS256", bits=1024), now=lambda: NOW)
        assert "its key cannot be used" in refusal(prover.prove(METHOD, URL, TOKEN), prover=prover)

    def test_malformed_proof_is_refused(self) -> None:
        good = PROVER.prove(METHOD, URL, TOKEN)
        for proof in (
            *("", ".", "..", "a.b.c", "e30.e30.", "x" * 100, f"{good}.x", f"{good} ", f" {good}", "é"),
            make_token(b'{"typ":"dpop+jwt","alg":"ES256","alg":"ES256"}', {}, ES256),
            make_token(PROVER.header(), b'{"jti":"a","jti":"b"}', ES256),
            make_token(PROVER.header(), [], ES256),
        ):
            refusal(proof)

    def test_long_proof_is_refused_before_it_is_decoded(self) -> None:
        assert "bytes" in refusal("x" * (PROOF_MAX_BYTES + 1))
        long = PROVER.prove(METHOD, URL, TOKEN, jti="x" * 5000)
        assert len(long) <= PROOF_MAX_BYTES
        assert check(long)

    def test_request_must_be_that_of_the_proof(self) -> None:
        proof = PROVER.prove(METHOD, URL, TOKEN)
        changes: list[dict[str, Any]] = [{"method": "POST"}, {"url": f"{URL}/"}, {"token": "b"}, {"now": NOW + 90}]
        for changed in (*changes, {"now": NOW - 31}, {"prover": Prover(ANOTHER)}):
            refusal(proof, **changed)

    def test_url_is_normalized_only_if_the_signature_is_right(self) -> None:
        """To normalize a long one takes milliseconds, and the key of a proof is public."""
        claims = PROVER.claims(METHOD, f"https://posts.example{'/.' * 2000}", TOKEN)
        assert "signature" in refusal(make_token(PROVER.header(), claims, ANOTHER))
        assert "htu" in refusal(make_token(PROVER.header(), claims, ES256))

    @given(st.binary(max_size=300))
    def test_no_bytes_raise_anything_else(self, data: bytes) -> None:
        refusal(data)

    @given(
        st.dictionaries(st.sampled_from(["typ", "alg", "jwk", "kid"]), st.recursive(st.none() | st.text(), st.lists))
    )
    def test_no_header_raises_anything_else(self, header: dict[str, Any]) -> None:
        refusal(make_token({**header, "x": 1}, PROVER.claims(METHOD, URL, TOKEN), ES256))

    @given(st.text(max_size=60))
    def test_no_url_raises_anything_else(self, url: str) -> None:
        proof = PROVER.prove(METHOD, f"https://posts.example/{url}", TOKEN)
        try:
            check(proof, url="https://posts.example/")
        except ProofError as error:
            assert str(error) == "htu is another URL"
        else:
            assert not url.partition("?")[0].partition("#")[0].replace(".", "").replace("/", "")


class ThumbprintTests:
    def test_example_of_the_rfc(self) -> None:
        """RFC 7638 §3.1."""
        modulus = (
            "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs"
            "tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajr"
            "n1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
        )
        key = {"kty": "RSA", "n": modulus, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"}
        assert thumbprint(key) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"

    @each("alg", ["ES256", "EdDSA", "RS256"])
    def test_each_kind_of_key(self, alg: str) -> None:
        prover = Prover(Key.make(alg))
        assert thumbprint(prover.public) == prover.confirmation["jkt"]

    def test_malformed_key_has_none(self) -> None:
        good = PROVER.public
        for key in ({}, {"kty": "oct"}, {"kty": ["EC"]}, {"kty": "EC"}, {**good, "x": 5}, {**good, "y": None}):
            with pytest.raises(ProofError):
                thumbprint(key)

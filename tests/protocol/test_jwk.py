"""Key sets, and signatures verified with them: the RFCs' examples, malformed keys and forgeries."""

import base64
import json
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from hypothesis import given
from hypothesis import strategies as st
from joserfc.errors import DecodeError
from joserfc.jws import JWSRegistry
from msgspec.structs import replace

from postd.protocol.jwk import KEYS_MAX, RSA_EXPONENT_MAX, RSA_MAX_BITS, KeySet, KeySetError, SigningKey, decode_key_set
from postd.protocol.jwt import ALGORITHMS, Jwt, decode_jwt
from tests.cases import each
from tests.issuer import ABSENT, EMPTY, Key, Mint, b64, make_token, unb64

RSA, PSS, EC, ED = (Key.make(alg) for alg in ("RS256", "PS256", "ES256", "EdDSA"))
MINT = Mint("https://idp.example", "https://posts.example", RSA, PSS, EC, ED)

# RFC 7515 §A.2, §A.3 and RFC 8037 §A.4: a key, the token that it has signed.
RS256_N = (
    "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMs"
    "D1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdV"
    "MTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"
)
JOE = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
EXAMPLES: dict[str, tuple[dict[str, str], str]] = {
    "RS256": (
        {"kty": "RSA", "n": RS256_N, "e": "AQAB"},
        (
            f"eyJhbGciOiJSUzI1NiJ9.{JOE}."
            "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t"
            "1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12j"
            "zDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQ"
            "Ge77Rw"
        ),
    ),
    "ES256": (
        {
            "kty": "EC",
            "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        },
        (
            f"eyJhbGciOiJFUzI1NiJ9.{JOE}."
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
        ),
    ),
    "EdDSA": (
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        (
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc."
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
        ),
    ),
}


def shown(value: object) -> str:
    """Return a test case's id from its value."""
    return ascii(sorted(value) if isinstance(value, set | frozenset) else value)


def key_set(*entries: Any) -> KeySet:
    return decode_key_set(json.dumps({"keys": entries}).encode())


def only_key(entry: Any) -> SigningKey:
    decoded = key_set(entry)
    assert decoded.left_out == ()
    (key,) = decoded.keys
    return key


def why_left_out(entry: Any) -> str:
    """Return why a key is left out, and check that another key beside it is not."""
    decoded = key_set(entry, EC.jwk(kid="beside"))
    assert [key.key_id for key in decoded.keys] == ["beside"]
    (why,) = decoded.left_out
    assert why.startswith("key 1 of 2: ")
    return why.removeprefix("key 1 of 2: ")


def signed(key: Key, alg: str = "", **header: Any) -> Jwt:
    """Return a token that a key has signed, by another algorithm than its own if one is named."""
    alg = alg or key.alg
    return decode_jwt(make_token(MINT.header(key, alg=alg, **header), MINT.claims(), key, alg=alg))


def example(alg: str) -> Jwt:
    """Return an example of the RFCs; its payload need not be JSON."""
    text, _, signature = EXAMPLES[alg][1].rpartition(".")
    return Jwt({"alg": alg}, {"iss": "joe"}, text.encode(), unb64(signature))


class ExampleTests:
    @each("alg", EXAMPLES)
    def test_examples_of_the_rfcs_verify(self, alg: str) -> None:
        key = only_key(EXAMPLES[alg][0])
        assert key.verify(example(alg))
        for other in EXAMPLES.keys() - {alg}:
            assert not key.verify(example(other))

    @each("alg", EXAMPLES)
    def test_flipped_bit_invalidates_a_signature(self, alg: str) -> None:
        key, jwt = only_key(EXAMPLES[alg][0]), example(alg)
        for at in range(0, 8 * len(jwt.signed), 97):
            assert not key.verify(replace(jwt, signed=flip(jwt.signed, at)))
        for at in range(0, 8 * len(jwt.signature), 41):
            assert not key.verify(replace(jwt, signature=flip(jwt.signature, at)))


def flip(data: bytes, at: int) -> bytes:
    """Return data with one bit flipped."""
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]


class VerifyTests:
    @each("alg", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
    def test_rsa_key_without_alg_verifies_all_rsa_algorithms(self, alg: str) -> None:
        assert only_key(RSA.jwk(alg=ABSENT)).verify(signed(RSA, alg))

    def test_key_verifies_no_other_algorithms(self) -> None:
        p384 = Key.make("ES384")
        assert only_key(p384.jwk()).verify(signed(p384))
        for alg in ("EdDSA", "Ed25519"):  # RFC 8037, RFC 9864
            assert only_key(ED.jwk(alg=ABSENT)).verify(signed(ED, alg))
        p521 = ec.generate_private_key(ec.SECP521R1())
        point = p521.public_key().public_numbers()
        x, y = (b64(number.to_bytes(66, "big")) for number in (point.x, point.y))
        assert only_key({"kty": "EC", "crv": "P-521", "x": x, "y": y}).verify(signed(Key("ES512", "p521", p521)))

    @each("key", [RSA, PSS, EC, ED])
    def test_malformed_signature_does_not_verify(self, key: Key) -> None:
        jwt, ours = signed(key), only_key(key.jwk())
        right = jwt.signature
        assert ours.verify(jwt)
        for wrong in (
            *(b"", b"\0", right[:-1], right + b"\0", b"\0" + right, right[::-1], right * 16),
            *(bytes(len(right)), bytes(len(right) - 1) + b"\1", b"\xff" * len(right), bytes([1]) + bytes(63)),
            *(flip(right, 0), flip(right, 8 * len(right) - 1), flip(right, 4 * len(right))),
            signed(key, x="another token").signature,
        ):
            assert not ours.verify(replace(jwt, signature=wrong))

    def test_malformed_ecdsa_signature_does_not_verify(self) -> None:
        """Zeros were once accepted for any text (CVE-2022-21449); DER is the encoding of certificates."""
        jwt, ours = signed(EC), only_key(EC.jwk())
        right, zero, one = jwt.signature, bytes(32), bytes(31) + b"\1"
        order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551.to_bytes(32, "big")
        for wrong in (
            *(zero + zero, one + one, zero + right[32:], right[:32] + zero, order + order, order + one),
            *(right[32:] + right[:32], b"\0" + right[:32] + b"\0" + right[32:], EC.sign_der(jwt.signed)),
        ):
            assert not ours.verify(replace(jwt, signature=wrong))

    @each("key", [RSA, PSS, EC, ED])
    def test_signature_of_another_key_does_not_verify(self, key: Key) -> None:
        assert not only_key(key.jwk()).verify(signed(Key.make(key.alg)))

    def test_signature_is_bound_to_its_algorithm(self) -> None:
        """RFC 8725 §3.1: the key decides about the algorithm, not the header alone."""
        for alg, made in (("RS256", "PS256"), ("PS256", "RS256"), ("RS256", "RS512"), ("RS512", "RS256")):
            jwt = decode_jwt(make_token(MINT.header(RSA, alg=alg), MINT.claims(), RSA, alg=made))
            assert not only_key(RSA.jwk(alg=ABSENT)).verify(jwt)
        for key in (RSA, PSS, EC, ED):
            for alg in ("RS256", "PS256", "ES256", "ES384", "EdDSA", "RS384", "none", "HS256"):
                jwt = decode_jwt(make_token(MINT.header(key, alg=alg), MINT.claims(), key))
                assert only_key(key.jwk()).verify(jwt) == (alg == key.alg)

    @each("named", [ABSENT, None, "EdDSA", "Ed25519"])
    @each("alg", ["EdDSA", "Ed25519"])
    def test_key_of_ed25519_verifies_both_names(self, named: Any, alg: str) -> None:
        """RFC 9864 §2.2: the algorithm of the key and that of the token may have either name."""
        keys = key_set(ED.jwk(alg=named))
        (found,) = keys.find(signed(ED, alg))
        assert found.verify(signed(ED, alg))

    @each("alg", ["HS256", "HS384", "HS512"])
    def test_public_key_is_not_used_as_an_hmac_secret(self, alg: str) -> None:
        """RFC 8725 §2.1."""
        for key in (RSA, EC, ED):
            for secret in (key.public(), key.public().strip(), json.dumps(key.jwk()).encode(), b""):
                jwt = decode_jwt(make_token(MINT.header(key, alg=alg), MINT.claims(), Key(alg, key.kid, secret)))
                assert key_set(key.jwk(alg=ABSENT)).find(jwt) == []
                assert not only_key(key.jwk(alg=ABSENT)).verify(jwt)
                assert not replace(only_key(key.jwk()), algorithms=frozenset(ALGORITHMS)).verify(jwt)

    def test_empty_signature_does_not_verify(self) -> None:
        for alg in ("none", "None", "NONE"):
            jwt = decode_jwt(make_token(MINT.header(RSA, alg=alg), MINT.claims(), RSA).rpartition(".")[0] + ".")
            assert key_set(*(key.jwk(alg=ABSENT) for key in (RSA, EC, ED))).find(jwt) == []

    def test_degenerate_keys_verify_nothing(self) -> None:
        """They may be imported; using them must neither fail nor take long."""
        jwt = signed(RSA)
        for n, e in (
            (b"\xff" * 2049, b"\1\0\1"),
            (b"\xff" * 3000, b"\1\0\1"),
            (b"\xfe" * 256, b"\1\0\1"),
            (b"\xff" * 256, b"\xff" * 255),
            (b"\xff" * 1024, b"\x7f" + b"\xff" * 1000),
        ):
            for key in key_set({"kty": "RSA", "n": b64(n), "e": b64(e)}).keys:
                for signature in (b"", b"\1", b"\1" * 256, b"\1" * len(n)):
                    assert not key.verify(replace(jwt, signature=signature))

    @pytest.mark.parametrize("error", [DecodeError(), ValueError()], ids=lambda error: type(error).__name__)
    def test_signature_that_the_library_fails_on_does_not_verify(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing raises for the malformed signatures of the other tests, but the interface of joserfc allows it."""
        monkeypatch.setitem(JWSRegistry.algorithms, "ES256", Mock(verify=Mock(side_effect=error)))
        assert not only_key(EC.jwk()).verify(signed(EC))

    @given(data=st.binary(), signature=st.binary(max_size=600) | st.binary(min_size=64, max_size=64))
    def test_random_signature_does_not_verify_or_raise(self, data: bytes, signature: bytes) -> None:
        for key in key_set(*(one.jwk(alg=ABSENT) for one in (RSA, EC, ED))).keys:
            for alg in sorted(key.algorithms):
                assert not key.verify(Jwt({"alg": alg}, {}, data, signature))


class FindTests:
    def test_key_is_found_by_its_kid(self) -> None:
        keys = key_set(RSA.jwk(kid="a"), PSS.jwk(kid="b"), EC.jwk(kid="c"), ED.jwk(kid="d"), RSA.jwk(kid="e"))
        assert [key.key_id for key in keys.find(signed(RSA, kid="a"))] == ["a"]
        assert [key.key_id for key in keys.find(signed(RSA, kid="e"))] == ["e"]
        assert [key.key_id for key in keys.find(signed(ED, kid="d"))] == ["d"]
        assert keys.find(signed(RSA, kid="unknown")) == []

    @each(
        "kid",
        [
            *("A", "a ", " a", "a\0", "a\n", "aa", "\u0430", "../../../../dev/null", "/dev/null", "*", "%"),
            *("x' UNION SELECT 'key' -- ", "https://keys.forged.example", "a|/bin/true", "None", "k" * 4000, "\ud800"),
        ],
    )
    def test_kid_is_only_compared(self, kid: str) -> None:
        """RFC 8725 §3.10."""
        assert key_set(RSA.jwk(kid="a"), EC.jwk(kid=ABSENT)).find(signed(RSA, kid=kid)) == []

    def test_kid_may_be_any_string(self) -> None:
        """Some issuers use paths, Base64, or other scripts."""
        for kid in ("keys/1?x=y", "a b", "schlüssel", "-----BEGIN", "k" * 4000):
            assert len(key_set(RSA.jwk(kid=kid), PSS.jwk()).find(signed(RSA, kid=kid))) == 1

    def test_token_without_kid_needs_exactly_one_fitting_key(self) -> None:
        keys = key_set(RSA.jwk(), PSS.jwk(), EC.jwk())
        for key in (RSA, PSS, EC):
            assert [found.key_id for found in keys.find(signed(key, kid=ABSENT))] == [key.kid]
        assert keys.find(signed(ED, kid=ABSENT)) == []
        assert key_set(RSA.jwk(), RSA.jwk(kid="old")).find(signed(RSA, kid=ABSENT)) == []
        # Both verify RS256: that one of them says nothing of algorithms makes it no worse.
        assert key_set(RSA.jwk(), PSS.jwk(alg=ABSENT)).find(signed(RSA, kid=ABSENT)) == []

    def test_unusable_keys_do_not_count_as_fitting(self) -> None:
        encrypting = RSA.jwk(use="enc", alg="RSA-OAEP", kid="enc")
        keys = key_set(encrypting, Key.make("RS256", bits=1024).jwk(), RSA.jwk())
        assert [key.key_id for key in keys.find(signed(RSA, kid=ABSENT))] == ["RS256"]

    def test_key_without_kid_fits_only_tokens_without_kid(self) -> None:
        for kid in (ABSENT, *EMPTY):
            keys = key_set(RSA.jwk(kid=kid))
            for none in (ABSENT, *EMPTY):
                assert keys.find(signed(RSA, kid=none))[0].key_id is None
            assert keys.find(signed(RSA, kid="RS256")) == []

    def test_keys_of_different_types_may_share_a_kid(self) -> None:
        """RFC 7517 §4.5."""
        keys = key_set(RSA.jwk(kid="x"), EC.jwk(kid="x"), ED.jwk(kid="x"))
        for key in (RSA, EC, ED):
            (found,) = keys.find(signed(key, kid="x"))
            assert found.verify(signed(key, kid="x"))

    def test_all_keys_of_a_shared_kid_are_found(self) -> None:
        other = Key.make("RS256", "x")
        keys = key_set(RSA.jwk(kid="x"), other.jwk())
        for key in (RSA, other):
            assert [found.verify(signed(key, kid="x")) for found in keys.find(signed(key, kid="x"))].count(True) == 1

    def test_kid_of_a_key_for_another_algorithm_finds_nothing(self) -> None:
        keys = key_set(RSA.jwk(), PSS.jwk(), EC.jwk(), ED.jwk())
        for key in (RSA, PSS, EC, ED):
            for other in {"RS256", "PS256", "ES256", "EdDSA"} - {key.alg}:
                assert keys.find(signed(key, kid=other)) == []

    def test_empty_set_finds_nothing(self) -> None:
        assert key_set().find(signed(RSA)) == key_set().find(signed(RSA, kid=ABSENT)) == []


class UsableTests:
    """An unusable key affects no other key."""

    @each(
        "members",
        [
            {},
            {"use": ABSENT},
            {"alg": ABSENT},
            {"use": ABSENT, "alg": ABSENT, "kid": ABSENT},
            {"key_ops": ["verify"]},
            {"key_ops": ["sign", "verify"]},
            {"use": ABSENT, "key_ops": ["verify"]},
            {"x5c": ["not a certificate"], "x5t": "x", "x5t#S256": 5, "x5u": "https://keys.forged.example"},
            {"ext": True, "exp": 1, "nbf": 2**70, "status": None, "": {}},
            {"d": "x", "p": 5, "oth": [{"r": "x"}]},
        ],
    )
    def test_optional_members_are_accepted(self, members: dict[str, Any]) -> None:
        for key in (RSA, PSS, EC, ED):
            assert only_key(key.jwk(**members)).verify(signed(key))

    def test_private_key_is_imported_as_public(self) -> None:
        """An issuer should not publish one."""
        entry = ED.jwk(d=b64(ED.private.private_bytes_raw()))
        only = only_key(entry)
        assert only.verify(signed(ED))
        assert not only.key.is_private
        numbers = RSA.private.private_numbers()
        only = only_key(RSA.jwk(d=b64(numbers.d.to_bytes(256, "big")), p=b64(numbers.p.to_bytes(128, "big"))))
        assert only.verify(signed(RSA))
        assert not only.key.is_private

    @each("alg", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
    def test_alg_limits_a_key(self, alg: str) -> None:
        assert only_key(RSA.jwk(alg=alg)).algorithms == {alg}

    @each(
        "members, why",
        [
            ({"use": "enc"}, "use"),
            ({"use": "enc", "alg": "RSA-OAEP"}, "use"),
            ({"use": "enc", "key_ops": ["verify"]}, "use"),
            ({"use": "SIG"}, "use"),
            ({"use": 5}, "use"),
            ({"use": ["sig"]}, "use"),
            ({"use": {"sig": 1}}, "use"),
            ({"key_ops": ["sign"]}, "key_ops"),
            ({"key_ops": ["encrypt", "wrapKey"]}, "key_ops"),
            ({"key_ops": ["VERIFY"]}, "key_ops"),
            ({"key_ops": [["verify"]]}, "key_ops"),
            ({"key_ops": "verify"}, "key_ops"),
            ({"key_ops": {"verify": 1}}, "key_ops"),
            ({"key_ops": 5}, "key_ops"),
            ({"kid": 5}, "kid"),
            ({"kid": ["RS256"]}, "kid"),
            ({"kid": {"x": 1}}, "kid"),
            ({"kid": True}, "kid"),
            ({"alg": "RSA-OAEP"}, "alg"),
            ({"alg": "HS256"}, "alg"),
            ({"alg": "none"}, "alg"),
            ({"alg": "rs256"}, "alg"),
            ({"alg": 5}, "alg"),
            ({"alg": ["RS256"]}, "alg"),
            ({"alg": ["ES256"]}, "alg"),
            ({"kty": ABSENT}, "kty"),
            ({"kty": None}, "kty"),
            ({"kty": ""}, "kty"),
            ({"kty": 5}, "kty"),
            ({"kty": ["RSA"]}, "kty"),
            ({"kty": {"RSA": 1}}, "kty"),
            ({"kty": "rsa"}, "kty"),
            ({"kty": "AKP"}, "kty"),
            ({"kty": "oct", "k": "c2VjcmV0"}, "symmetric"),
        ],
    )
    def test_key_for_another_use_is_left_out(self, members: dict[str, Any], why: str) -> None:
        for key in (RSA, EC, ED):
            assert why in why_left_out(key.jwk(**members))

    @each("key, alg", [(RSA, "ES256"), (RSA, "EdDSA"), (EC, "RS256"), (EC, "ES384"), (EC, "EdDSA"), (ED, "ES256")])
    def test_alg_of_another_key_type_is_left_out(self, key: Key, alg: str) -> None:
        assert "alg" in why_left_out(key.jwk(alg=alg))

    def test_too_short_rsa_key_is_left_out(self) -> None:
        """RFC 7518 §3.3."""
        for bits in (1024, 2047):
            private = rsa.generate_private_key(65537, bits)
            assert "2048 bits" in why_left_out(Key("RS256", "weak", private).jwk())

    def test_too_long_rsa_key_is_left_out(self) -> None:
        """Verifying takes more than linear time in its length, and blocks the reactor."""
        for bits, known in ((RSA_MAX_BITS, 1), (RSA_MAX_BITS + 1, 0), (8 * RSA_MAX_BITS, 0)):
            n = ((1 << bits) - 1).to_bytes((bits + 7) // 8, "big")
            assert len(key_set(RSA.jwk(n=b64(n))).keys) == known

    def test_rsa_key_with_a_long_exponent_is_left_out(self) -> None:
        """One as long as the modulus takes 200 times as long to verify with, and blocks the reactor."""
        for exponent, known in ((3, 1), (RSA_EXPONENT_MAX, 1), (RSA_EXPONENT_MAX + 2, 0), ((1 << 2047) - 1, 0)):
            e = exponent.to_bytes((exponent.bit_length() + 7) // 8, "big")
            assert len(key_set(RSA.jwk(e=b64(e))).keys) == known

    @each(
        "crv",
        [ABSENT, None, "", "P-256K", "secp256k1", "p-256", "P-384", "P-521", "Ed448", "X25519", 5, ["P-256"], {}],
    )
    def test_unsupported_curve_is_left_out(self, crv: Any) -> None:
        for key in (EC, ED):
            for alg in (key.alg, ABSENT):
                assert why_left_out(key.jwk(crv=crv, alg=alg))

    def test_curves_not_for_signatures_are_left_out(self) -> None:
        """RFC 8037 §3.1: ECDH has keys of the same type."""
        for crv, private in (("X25519", x25519.X25519PrivateKey), ("Ed448", ed448.Ed448PrivateKey)):
            x = b64(private.generate().public_key().public_bytes_raw())
            for members in ({}, {"alg": "EdDSA"}, {"use": "sig"}):
                assert "crv" in why_left_out({"kty": "OKP", "crv": crv, "x": x, **members})


def texts_for(good: str) -> list[Any]:
    """Return values that are not the Base64 of a number."""
    return [
        *(ABSENT, None, True, False, 0, 5, 1235, 65537, 1.5, 10**40, [], [good], {}, {good: 1}, [unb64(good)[0]]),
        *("", "=", good + "===", good + "\n", " " + good, good[:4] + " " + good[4:], good[:2] + "~" + good[2:]),
        *(good + "!!!!", "!!!!", "é", "None", "A", "AA", good[:1], good + ".", "-1~"),
    ]


class MalformedTests:
    """Keys are imported separately."""

    @each(
        "key, name",
        [(RSA, "n"), (RSA, "e"), (EC, "x"), (EC, "y"), (ED, "x")],
    )
    def test_malformed_number_is_left_out(self, key: Key, name: str) -> None:
        for text in texts_for(key.jwk()[name]):
            (why,) = key_set(key.jwk(**{name: text})).left_out
            assert f"its {name} " in why or "public key" in why or "bits" in why, f"{name}: {shown(text)}: {why}"

    @each("key, name", [(RSA, "n"), (RSA, "e"), (EC, "x"), (EC, "y"), (ED, "x")])
    def test_other_spelling_of_a_number_is_accepted(self, key: Key, name: str) -> None:
        """Padding, the standard alphabet and leading zero bytes, which other libraries accept, too."""
        number = unb64(key.jwk()[name])
        padded = base64.urlsafe_b64encode(number + b"").decode()
        standard = base64.b64encode(number).decode()
        texts = [padded, standard, standard.rstrip("=")]
        if key is not ED:
            texts += [b64(b"\0" + number), b64(number.lstrip(b"\0"))]
        for text in texts:
            assert only_key(key.jwk(**{name: text})).verify(signed(key)), text

    def test_short_coordinate_is_accepted(self) -> None:
        """Java's numbers have no leading zero byte."""
        numbers = [ec.derive_private_key(secret, ec.SECP256R1()) for secret in range(1, 2000)]
        short = next(key for key in numbers if key.public_key().public_numbers().x < 2**248)
        key = Key("ES256", "short", short)
        x = short.public_key().public_numbers().x.to_bytes(31, "big")
        assert only_key(key.jwk(x=b64(x))).verify(signed(key, kid="short"))

    @each(
        "fault, why",
        [
            ({"n": "A\nB"}, "its n is not Base64url"),
            ({"n": ABSENT}, "its n is missing"),
            ({"e": ["AQAB"]}, "its e is not Base64url"),
            ({"n": "A"}, "its n is not Base64url"),
            ({"x5c": ["MIIB"], "n": None}, "its n is missing"),
        ],
    )
    def test_reason_names_the_member(self, fault: dict[str, Any], why: str) -> None:
        assert why_left_out(RSA.jwk(**fault)) == why

    def test_invalid_numbers_are_left_out(self) -> None:
        entry = EC.jwk()
        for members in (
            {"y": entry["x"]},
            {"x": entry["y"]},
            {"x": b64(bytes(32)), "y": b64(bytes(32))},
            {"x": b64(b"\xff" * 32)},
            {"x": b64(unb64(entry["x"]) + b"\0")},
            {"x": b64(unb64(entry["x"])[:-1])},
        ):
            assert "its x " in why_left_out(EC.jwk(**members))
        for x in (bytes(31), bytes(33), b"x", bytes(64)):
            assert why_left_out(ED.jwk(x=b64(x))) == f"its x has {len(x)} bytes, not 32"
        for e in (b"\0", b"\1", b"\2", b"\4", bytes(3)):
            assert "its n and e are not those of a public key" in why_left_out(RSA.jwk(e=b64(e)))
        for n in (b"\0", b"\1", bytes(256), b"\5" * 8):
            assert why_left_out(RSA.jwk(n=b64(n)))

    def test_point_of_another_curve_is_left_out(self) -> None:
        other = Key.make("ES384").jwk()
        assert "its x has 48 bytes, not 32" in why_left_out({**other, "crv": "P-256", "alg": "ES256"})
        assert "its x and y are not those of a public key" in why_left_out(EC.jwk(crv="P-384", alg="ES384"))

    @each("entry", [None, True, 5, 1.5, "", "RSA", [], [RSA.jwk()], {}])
    def test_entry_that_is_not_a_key_is_left_out(self, entry: Any) -> None:
        assert why_left_out(entry)

    def test_reason_has_the_number_of_the_key(self) -> None:
        decoded = key_set(RSA.jwk(), 5, EC.jwk(), {"kty": "oct", "k": "x"}, ED.jwk(x="x"), PSS.jwk(use="enc"), ED.jwk())
        assert [key.key_id for key in decoded.keys] == ["RS256", "ES256", "EdDSA"]
        assert [why.partition(": ")[0] for why in decoded.left_out] == [f"key {number} of 7" for number in (2, 4, 5, 6)]

    def test_reason_contains_no_values(self) -> None:
        """A value may be a secret that was put there by mistake."""
        secret = "s3cr3t"
        for name in ("kty", "kid", "use", "key_ops", "alg", "crv", "x", "y", "k"):
            for value in (secret, [secret], {secret: secret}):
                for entry in (EC.jwk(**{name: value}), {"kty": "oct", "k": secret}):
                    assert secret not in " ".join(key_set(entry).left_out)

    def test_key_set_of_keycloak(self) -> None:
        """It has an encryption key among the others, which once broke PyJWT."""
        encrypting = RSA.jwk(kid="enc", use="enc", alg="RSA-OAEP", x5c=["MIIC"], x5t="x")
        decoded = key_set(encrypting, RSA.jwk(x5c=["MIIC"]))
        assert decoded.find(signed(RSA))[0].verify(signed(RSA))
        assert len(decoded.left_out) == 1


class DocumentTests:
    @each(
        "content",
        [
            *(b"", b" ", b"\xff", b"<html>", b"keys", b"{", b'{"keys": [', b'{"keys": []}x', b"[" * 100_000),
            *(
                '{"keys": []}'.encode("utf-16"),
                b'{"keys": [NaN]}',
                b'{"keys": ["\xff"]}',
            ),
            b'{"keys": ["\\ud800"]}',
        ],
    )
    def test_invalid_json_is_refused(self, content: bytes) -> None:
        with pytest.raises(KeySetError, match="not a JSON object"):
            decode_key_set(content)

    def test_byte_order_mark_is_accepted(self) -> None:
        content = b"\xef\xbb\xbf" + json.dumps({"keys": [RSA.jwk()]}).encode()
        assert len(decode_key_set(content).keys) == 1

    @each(
        "document",
        [
            *({}, RSA.jwk(), {"Keys": []}, {"error": "not_found"}),
            *({"keys": value} for value in (None, True, 5, "x", {}, {"0": RSA.jwk()}, RSA.jwk())),
        ],
    )
    def test_document_without_keys_is_refused(self, document: Any) -> None:
        with pytest.raises(KeySetError, match="no list of keys"):
            decode_key_set(json.dumps(document).encode())

    def test_other_members_are_ignored(self) -> None:
        document = {"x": 1, "keys": [RSA.jwk()], "issuer": None}
        assert len(decode_key_set(json.dumps(document).encode()).keys) == 1
        assert decode_key_set(b'{"keys": []}') == KeySet(())

    def test_keys_beyond_the_limit_are_left_out(self) -> None:
        """Decoding keys blocks the reactor."""
        many = [EC.jwk(kid=str(number)) for number in range(KEYS_MAX)]
        assert key_set(*many).left_out == ()
        assert len(key_set(*many).keys) == KEYS_MAX
        decoded = key_set(*many, RSA.jwk(), 5)
        assert [key.key_id for key in decoded.keys] == [str(number) for number in range(KEYS_MAX)]
        assert decoded.left_out == (f"all but the first {KEYS_MAX}",)
        assert key_set(*[5] * KEYS_MAX, RSA.jwk()).keys == ()

    def test_largest_fetched_set_takes_little_time(self) -> None:
        assert len(key_set(*[5] * 100_000).left_out) == KEYS_MAX + 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = ("kty", "kid", "use", "key_ops", "alg", "crv", "n", "e", "x", "y", "d", "x5c")
GOOD = (RSA.jwk(), PSS.jwk(alg=ABSENT, use=ABSENT), EC.jwk(), ED.jwk(alg=ABSENT))


class AnythingTests:
    @given(
        entry=JSON
        | st.builds(
            lambda good, changes: {**good, **changes},
            st.sampled_from(GOOD),
            st.dictionaries(
                st.sampled_from(NAMES),
                JSON
                | st.binary(max_size=300).map(b64)
                | st.sampled_from(["RSA", "EC", "OKP", "oct", "P-384", "Ed25519"]),
                max_size=3,
            ),
        )
    )
    def test_any_entry_is_imported_or_left_out(self, entry: Any) -> None:
        decoded = decode_key_set(orjson.dumps({"keys": [entry, ED.jwk(kid="beside")]}))
        assert len(decoded.keys) + len(decoded.left_out) == 2
        assert decoded.keys[-1].key_id == "beside"
        assert "\n" not in "".join(decoded.left_out)
        for key in decoded.keys[:-1]:
            assert key.algorithms
            for one in (RSA, EC, ED):
                key.verify(signed(one))

    @given(st.binary() | JSON.map(orjson.dumps) | st.lists(JSON).map(lambda keys: orjson.dumps({"keys": keys})))
    def test_any_document_is_decoded_or_refused(self, content: bytes) -> None:
        try:
            assert type(decode_key_set(content)) is KeySet
        except KeySetError as error:
            assert str(error) in {"the key set is not a JSON object", "the key set has no list of keys"}

"""Device Bound Session Credentials: header fields, proofs and texts (W3C draft, and what Chromium 156 sends)."""

import json
from typing import Any

import pytest

from postd.protocol.bound_session import (
    PROOF_MAX_BYTES,
    check_challenge,
    check_proof_cookie,
    decode_device_proof,
    decode_item,
    encode_challenge,
    encode_end,
    encode_instructions,
    encode_registration,
    find_proof_cookie,
    make_challenge,
    make_proof_cookie,
    seal_id,
    unseal_id,
)
from postd.protocol.dpop import ProofError
from tests.cases import each
from tests.device import make_proof
from tests.issuer import ABSENT, Key, b64

EC, RSA, OTHER = Key.make("ES256"), Key.make("RS256"), Key.make("ES256")
SECRET, NOW = bytes(range(32)), 1_800_000_000.0
MINE, YOURS = b"m" * 32, b"y" * 32


class FieldTests:
    @each(
        "lines, value",
        [
            ([b"abc.d-e_f"], b"abc.d-e_f"),  # Chromium
            ([b'"abc.d-e_f"'], b"abc.d-e_f"),  # the draft: a string (RFC 9651)
            ([b' "abc" ;x=1'], b"abc"),
            ([b"abc;x"], b"abc"),
            (None, b""),
            ([], b""),
            ([b""], b""),
            ([b'""'], b""),
            ([b'"abc'], b""),
            ([b"a b"], b""),
            ([b"a", b"b"], b""),
            ([b"a, b"], b""),
            ([b"\xff"], b""),
        ],
    )
    def test_item_is_bare_or_a_string(self, lines: list[bytes] | None, value: bytes) -> None:
        assert decode_item(lines) == value

    def test_fields_are_structured(self) -> None:
        assert encode_registration("/login/bind", "c") == b'(ES256 RS256);path="/login/bind";challenge="c"'
        assert encode_challenge("c") == b'"c"'
        assert encode_challenge("c", "s") == b'"c";id="s"'

    def test_instructions_have_what_draft_and_chromium_need(self) -> None:
        told = json.loads(encode_instructions("s", "https://posts.example", "/login/bind/refresh"))
        assert told == {
            "session_identifier": "s",
            "refresh_url": "/login/bind/refresh",
            "scope": {"origin": "https://posts.example", "include_site": False},
            "credentials": [
                {
                    "type": "cookie",
                    "name": "__Host-session-proof",
                    "attributes": "Path=/; Secure; HttpOnly; SameSite=Lax",
                }
            ],
        }
        assert "origin" not in json.loads(encode_instructions("s", None, "/r"))["scope"]
        assert json.loads(encode_end("s")) == {"session_identifier": "s", "continue": False}


class ProofTests:
    @each("key", [EC, RSA])
    @each(
        "changes",
        [
            {},  # Chromium
            {"claim_aud": "https://posts.example/login/bind", "claim_iat": 1, "claim_sub": "s"},  # as drafts had it
            {"typ": "DBSC+JWT"},
            {"typ": "application/dbsc+jwt"},
        ],
    )
    def test_proof_shows_its_key(self, key: Key, changes: dict[str, Any]) -> None:
        proof = decode_device_proof(make_proof(key, "c", registers=True, **changes).encode(), registers=True)
        proof.verify(proof.key)
        assert proof.challenge == "c"
        assert json.loads(proof.key) == {
            name: value for name, value in key.jwk().items() if name not in {"kid", "alg", "use"}
        }
        refresh = decode_device_proof(make_proof(key, "d", **changes).encode(), registers=False)
        refresh.verify(proof.key)
        assert (refresh.challenge, refresh.key) == ("d", "")

    @each(
        "changes, why",
        [
            ({"alg": "none"}, "alg"),
            ({"alg": "HS256"}, "alg"),
            ({"alg": "ES384"}, "alg"),
            ({"alg": "EdDSA"}, "alg"),
            ({"typ": "dpop+jwt"}, "typ"),
            ({"typ": "JWT"}, "typ"),
            ({"typ": ABSENT}, "typ"),
            ({"crit": ["exp"]}, "crit"),
            ({"jwk": ABSENT}, "jwk"),
            ({"jwk": "key"}, "jwk"),
            ({"jwk": {}}, "jwk"),
            ({"jwk": {"kty": "oct", "k": "AAAA"}}, "jwk"),
            ({"jwk": {**EC.jwk(), "d": "AAAA"}}, "private"),
            ({"jwk": {"kty": "EC", "crv": "P-256", "x": "AAAA"}}, "jwk"),
            ({"claim_jti": ABSENT}, "jti"),
            ({"claim_jti": 1}, "jti"),
            ({"claim_jti": ""}, "jti"),
        ],
    )
    def test_malformed_proof_is_refused(self, changes: dict[str, Any], why: str) -> None:
        with pytest.raises(ProofError, match=why):
            decode_device_proof(make_proof(EC, "c", registers=True, **changes).encode(), registers=True)

    @each("text", [b"", b"x", b"a.b.c", b"..", b"x" * (PROOF_MAX_BYTES + 1), b"{}", b"\xff.\xff.\xff"])
    def test_text_that_is_no_proof_is_refused(self, text: bytes) -> None:
        for registers in (True, False):
            with pytest.raises(ProofError):
                decode_device_proof(text, registers=registers)

    def test_refresh_with_a_key_is_refused(self) -> None:
        with pytest.raises(ProofError, match="key"):
            decode_device_proof(make_proof(EC, "c", registers=True).encode(), registers=False)

    def test_signature_of_another_key_is_refused(self) -> None:
        proof = decode_device_proof(make_proof(EC, "c").encode(), registers=False)
        for key in (OTHER, RSA):
            with pytest.raises(ProofError, match="signature"):
                proof.verify(json.dumps(key.jwk(alg=ABSENT)))
        head, body, _ = make_proof(EC, "c").split(".")
        with pytest.raises(ProofError, match="signature"):
            decode_device_proof(f"{head}.{body}.".encode(), registers=False).verify(json.dumps(EC.jwk()))

    @each("jwk", [Key.make("RS256", bits=1024).jwk(), {"kty": "EC", "crv": "P-256", "x": b64(bytes(32)), "y": "AAAA"}])
    def test_unusable_key_is_refused(self, jwk: dict[str, Any]) -> None:
        proof = decode_device_proof(make_proof(EC, "c", registers=True, jwk=jwk).encode(), registers=True)
        with pytest.raises(ProofError, match="cannot be used"):
            proof.verify(proof.key)


class TextTests:
    def test_challenge_is_for_its_session_alone(self) -> None:
        challenge = make_challenge(SECRET, MINE, NOW + 300)
        assert check_challenge(SECRET, MINE, challenge) == NOW + 300
        assert challenge != make_challenge(SECRET, MINE, NOW + 300)
        assert check_challenge(SECRET, YOURS, challenge) is None
        assert check_challenge(bytes(32), MINE, challenge) is None
        later = f"{int(NOW) + 9000:08x}{challenge[8:]}"
        for forged in ("", challenge[:-1], later, challenge + "A", challenge.upper(), "ü" * 73):
            assert check_challenge(SECRET, MINE, forged) is None

    def test_identifier_hides_the_hash_and_stays_the_same(self) -> None:
        session_id = seal_id(SECRET, MINE)
        assert session_id == seal_id(SECRET, MINE) != seal_id(SECRET, YOURS)
        assert unseal_id(SECRET, session_id.encode()) == MINE
        for forged in (b"", b"x", session_id[:-2].encode(), b64(MINE).encode(), session_id.swapcase().encode()):
            assert unseal_id(SECRET, forged) is None
        assert unseal_id(bytes(32), session_id.encode()) is None

    def test_proof_is_for_its_session_alone(self) -> None:
        def field(value: str) -> bytes:
            return f"__Host-session-proof={value}".encode()

        proof = make_proof_cookie(SECRET, MINE, NOW)
        assert check_proof_cookie(SECRET, MINE, field(proof)) == NOW
        assert check_proof_cookie(SECRET, MINE, b"session=x;" + field(proof) + b" ;a=b") == NOW
        kept = find_proof_cookie(b"session=x;" + field(proof) + b" ;a=b")
        assert (check_proof_cookie(SECRET, MINE, kept), b"session=x" in kept, b"a=b" in kept) == (NOW, False, False)
        assert check_proof_cookie(SECRET, YOURS, field(proof)) == 0
        assert check_proof_cookie(bytes(32), MINE, field(proof)) == 0
        later = f"{int(NOW) + 9000:08x}{proof[8:]}"
        for forged in ("", later, proof[:-1], proof + "0", proof.upper(), f'"{proof}"'):
            assert check_proof_cookie(SECRET, MINE, field(forged)) == 0
        assert check_proof_cookie(SECRET, MINE, b"x" + field(proof)) == 0

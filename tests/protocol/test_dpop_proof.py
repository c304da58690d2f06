"""DPoP proofs as they are made, their keys, and thumbprints, by the examples of RFC 7638 and RFC 9449."""

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from postd.protocol.dpop import ProofError, thumbprint
from postd.protocol.dpop_proof import DPoPKey, make_proof
from tests.cases import each
from tests.issuer import b64, unb64
from tests.proofs import read_proof

URL = "https://resource.example.org/protectedresource"
NOW = 1562262618.9

RFC_7638_JWK = {
    "kty": "RSA",
    "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjB"
    "ZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8"
    "KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_"
    "xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
    "e": "AQAB",
    "alg": "RS256",
    "kid": "2011-04-29",
}
RFC_9449_JWK = {
    "kty": "EC",
    "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
    "y": "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA",
    "crv": "P-256",
}
RFC_9449_TOKEN = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"

EC = ec.generate_private_key(ec.SECP256R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
RSA = rsa.generate_private_key(65537, 2048)


def pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8, password: bytes = b"") -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    encoded: bytes = key.private_bytes(Encoding.PEM, form, encryption)
    return encoded


def number(value: int, size: int = 0) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def ec_jwk(key: Any = EC, **changes: Any) -> dict[str, Any]:
    numbers = key.private_numbers()
    point = numbers.public_numbers
    members = {"x": number(point.x, 32), "y": number(point.y, 32), "d": number(numbers.private_value, 32)}
    return {"kty": "EC", "crv": "P-256", **members, **changes}


def okp_jwk(**changes: Any) -> dict[str, Any]:
    members = {"x": b64(ED25519.public_key().public_bytes_raw()), "d": b64(ED25519.private_bytes_raw())}
    return {"kty": "OKP", "crv": "Ed25519", **members, **changes}


def rsa_jwk(key: Any = RSA, **changes: Any) -> dict[str, Any]:
    numbers = key.private_numbers()
    members = {name: number(getattr(numbers, name)) for name in ("d", "p", "q")}
    members |= {"dp": number(numbers.dmp1), "dq": number(numbers.dmq1), "qi": number(numbers.iqmp)}
    public = numbers.public_numbers
    return {"kty": "RSA", "n": number(public.n), "e": number(public.e), **members, **changes}


def encode(jwk: dict[str, Any]) -> bytes:
    return json.dumps(jwk, indent=2).encode()


def without(jwk: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in jwk.items() if name not in names}


class ThumbprintTests:
    @each(
        "jwk, expected",
        [
            (RFC_7638_JWK, "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"),  # RFC 7638 §3.1
            (RFC_9449_JWK, "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"),  # RFC 9449 §6.1
            (  # RFC 8037 §A.3
                {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
                "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
            ),
        ],
        ids=["RSA", "EC", "OKP"],
    )
    def test_examples_of_the_rfcs(self, jwk: dict[str, str], expected: str) -> None:
        assert thumbprint(jwk) == expected
        assert thumbprint({**dict(reversed(jwk.items())), "use": "sig"}) == expected

    @each("jwk", [{"kty": "oct", "k": "AA"}, {"kty": "RSA", "e": "AQAB"}, {}])
    def test_other_key_is_an_error(self, jwk: dict[str, str]) -> None:
        with pytest.raises(ProofError):
            thumbprint(jwk)


class KeyTests:
    @each(
        "content, algorithm, public",
        [
            (pem(EC), "ES256", without(ec_jwk(), "d")),
            (pem(EC, PrivateFormat.TraditionalOpenSSL), "ES256", without(ec_jwk(), "d")),
            (encode(ec_jwk(kid="a", use="sig", alg="ES256")), "ES256", without(ec_jwk(), "d")),
            (pem(ED25519), "EdDSA", without(okp_jwk(), "d")),
            (encode(okp_jwk()), "EdDSA", without(okp_jwk(), "d")),
            (encode(okp_jwk(alg="Ed25519")), "Ed25519", without(okp_jwk(), "d")),
            (pem(RSA), "PS256", {name: rsa_jwk()[name] for name in ("kty", "n", "e")}),
            (encode(rsa_jwk()), "PS256", {name: rsa_jwk()[name] for name in ("kty", "n", "e")}),
            (
                encode(without(rsa_jwk(alg="RS256"), "p", "q", "dp", "dq", "qi")),
                "RS256",
                {name: rsa_jwk()[name] for name in ("kty", "n", "e")},
            ),
        ],
        ids=["EC", "EC, old", "EC JWK", "Ed25519", "OKP JWK", "OKP JWK, alg", "RSA", "RSA JWK", "RSA JWK, alg"],
    )
    def test_key_signs_with_its_algorithm(self, content: bytes, algorithm: str, public: dict[str, str]) -> None:
        key = DPoPKey.decode(content)
        assert (key.algorithm, key.jwk) == (algorithm, public)
        proof = read_proof(make_proof(key, method="GET", url=URL, now=NOW))
        assert proof.header == {"typ": "dpop+jwt", "alg": algorithm, "jwk": public}
        assert proof.thumbprint == key.thumbprint

    @each(
        "content, why",
        [
            (b"", "is not a private key in PEM or a JWK"),
            (pem(EC)[:90], "is not a private key in PEM or a JWK"),
            (b"{", "is not JSON, though it begins like a JWK"),
            (pem(EC, password=b"x"), "is protected by a password"),
            (
                EC.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
                "has a public key; the private one is needed",
            ),
            (encode(without(ec_jwk(), "d")), "has a public key; the private one is needed"),
            (encode({"kty": "oct", "k": "AA"}), "is a JWK whose kty is not EC, OKP or RSA"),
            (encode({"keys": [ec_jwk()]}), "is a JWK whose kty is not EC, OKP or RSA"),
            (encode(ec_jwk(kty=["EC"])), "is a JWK whose kty is not EC, OKP or RSA"),
            (pem(ec.generate_private_key(ec.SECP384R1())), "is not an EC P-256, Ed25519 or RSA key"),
            (pem(ed448.Ed448PrivateKey.generate()), "is not an EC P-256, Ed25519 or RSA key"),
            (pem(rsa.generate_private_key(65537, 1024)), "is an RSA key of 1024 bits, fewer than 2048"),
            (encode(rsa_jwk(rsa.generate_private_key(65537, 1024))), "is an RSA key of 1024 bits, fewer than 2048"),
            (encode(ec_jwk(alg="ES384")), "is a key for ES256, and its alg is another"),
            (encode(rsa_jwk(alg="RS512")), "is a key for PS256 or RS256, and its alg is another"),
            (encode(ec_jwk(d=ec_jwk(ec.generate_private_key(ec.SECP256R1()))["d"])), "is a malformed JWK"),
            (encode(okp_jwk(x=b64(bytes(32)))), "has a public key that is not its private key's"),
            (encode(okp_jwk(d="AA")), "is a malformed JWK"),
            (encode(ec_jwk(d=5)), "is a malformed JWK"),
            (encode(ec_jwk(alg=["ES256"])), "is a malformed JWK"),
            (encode(rsa_jwk(d=rsa_jwk()["dp"])), "is a malformed JWK"),
        ],  # keys differ from process to process
    )
    def test_unusable_key_is_refused_with_the_reason(self, content: bytes, why: str) -> None:
        with pytest.raises(ValueError) as caught:
            DPoPKey.decode(content)
        assert str(caught.value).startswith(why)

    def test_generated_key_is_p256_and_survives_pem(self) -> None:
        key = DPoPKey.generate()
        assert (key.algorithm, key.jwk["crv"]) == ("ES256", "P-256")
        assert key.encode_pem().startswith(b"-----BEGIN PRIVATE KEY-----\n")
        assert DPoPKey.decode(key.encode_pem()).jwk == key.jwk
        assert DPoPKey.generate().jwk != key.jwk

    def test_repr_contains_no_private_key(self) -> None:
        key = DPoPKey.decode(encode(ec_jwk()))
        assert repr(key) == f"DPoPKey('ES256', '{key.thumbprint}')"
        assert str(ec_jwk()["d"]) not in f"{key!r} {key}"


class ProofTests:
    key = DPoPKey.decode(pem(EC))

    def test_token_request_has_neither_hash_nor_nonce(self) -> None:
        claims = read_proof(make_proof(self.key, method="POST", url=URL, now=NOW)).claims
        assert len(unb64(claims.pop("jti"))) == 16
        assert claims == {"htm": "POST", "htu": URL, "iat": 1562262618}

    def test_resource_request_has_the_hash_of_its_token(self) -> None:
        """RFC 9449 §7.1."""
        text = make_proof(self.key, method="GET", url=URL, now=NOW, token=RFC_9449_TOKEN, nonce="n-1")
        claims = read_proof(text).claims
        assert (claims["ath"], claims["nonce"]) == ("fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo", "n-1")

    def test_every_proof_has_an_identifier_of_its_own(self) -> None:
        texts = [make_proof(self.key, method="GET", url=URL, now=NOW) for _ in range(50)]
        assert len({read_proof(text).claims["jti"] for text in texts}) == 50

    @each(
        "url, htu",
        [
            ("https://a.example/p?q=1#f", "https://a.example/p"),
            ("https://a.example/p#f?q", "https://a.example/p"),
            ("https://a.example?q", "https://a.example/"),
            ("HTTPS://A.Example:443/P;x=%2f", "https://a.example/P;x=%2f"),
            ("http://a.example:80/", "http://a.example/"),
            ("https://a.example:80/", "https://a.example:80/"),
            ("http://127.0.0.1:8080/a//b/", "http://127.0.0.1:8080/a//b/"),
            ("http://[::1]:8080/", "http://[::1]:8080/"),
        ],
    )
    def test_target_is_normalized_without_query_and_fragment(self, url: str, htu: str) -> None:
        assert read_proof(make_proof(self.key, method="GET", url=url, now=NOW)).claims["htu"] == htu

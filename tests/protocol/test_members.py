"""Null and empty members count as absent, in every document of other programs.

For each document the cases are generated: each member with each empty value, pairs of members, and all optional members
at once. An optional member is as absent; a required one has the error of a missing one.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from postd.protocol.discovery import MetadataError, decode_document, endpoint_of
from postd.protocol.dpop import ProofError, decode_proof
from postd.protocol.dpop_proof import DPoPKey
from postd.protocol.jwk import KeySetError, decode_key_set
from postd.protocol.jwt import TokenError, TokenPolicy, decode_jwt
from postd.protocol.members import decode_object, member, present
from tests.cases import each
from tests.issuer import ABSENT, EMPTY, Key, Mint, Prover, b64, make_token

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://idp.example", "https://posts.example"
RSA, EC, ED = (Key.make(alg) for alg in ("RS256", "ES256", "EdDSA"))
MINT = Mint(ISSUER, AUDIENCE, EC, now=lambda: NOW)
PROVER = Prover(EC, now=lambda: NOW)
POLICY = TokenPolicy(ISSUER, frozenset({AUDIENCE}))
URL, TOKEN = f"{AUDIENCE}/post", "a.token"


class Document(NamedTuple):
    """A document, whose members are read by a function.

    Args:
        read: returns what the document says; raises ValueError if it is refused.
        required: its required members.
        optional: the names of the optional members that this server or its libraries know.
    """

    read: Callable[[Mapping[str, Any]], object]
    required: Mapping[str, Any]
    optional: tuple[str, ...]


def read_key(entry: Mapping[str, Any]) -> object:
    decoded = decode_key_set(json.dumps({"keys": [entry]}).encode())
    if decoded.left_out:
        raise KeySetError(decoded.left_out[0])
    (key,) = decoded.keys
    return key.key_id, key.algorithms, key.key.as_dict(private=False)


def read_header(header: Mapping[str, Any]) -> object:
    jwt = decode_jwt(make_token(header, MINT.claims(), EC))
    POLICY.check_header(jwt)
    return jwt.algorithm, jwt.key_id


def read_claims(typ: str) -> Callable[[Mapping[str, Any]], object]:
    def read(claims: Mapping[str, Any]) -> object:
        accepted = POLICY.check_claims(decode_jwt(make_token(MINT.header(typ=typ), claims, EC)), NOW)
        return accepted.user, accepted.scopes, accepted.expires_at, accepted.key_thumbprint

    return read


def read_introspection(answer: Mapping[str, Any]) -> object:
    accepted = POLICY.check_introspection(answer, NOW)
    return accepted.user, accepted.scopes, accepted.expires_at, accepted.key_thumbprint


def read_metadata(document: Mapping[str, Any]) -> object:
    return endpoint_of(decode_document(json.dumps(document).encode(), ISSUER), "jwks_uri")


def read_proof(header: Mapping[str, Any], claims: Mapping[str, Any]) -> object:
    proof = decode_proof(make_token(header, claims, EC).encode())
    thumbprint = PROVER.confirmation["jkt"]
    return proof.check(method="GET", url=URL, token=TOKEN, bound_to=thumbprint, now=NOW, leeway_s=0), proof.thumbprint


def read_private_key(entry: Mapping[str, Any]) -> object:
    key = DPoPKey.decode(json.dumps(entry).encode())
    return key.algorithm, key.jwk


def proof_claims() -> dict[str, Any]:
    return PROVER.claims("GET", URL, TOKEN)


JWK_NAMES = ("kid", "use", "key_ops", "alg", "ext", "x5c", "x5t", "x5t#S256", "x5u", "oth", "d", "p", "q", "dp", "k")
HEADER_NAMES = ("kid", "typ", "cty", "jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256")
CLAIM_NAMES = (
    "nbf",
    "iat",
    "jti",
    "scope",
    "scp",
    "cnf",
    "azp",
    "client_id",
    "nonce",
    "at_hash",
    "auth_time",
    "events",
)
ED_PRIVATE = b64(ED.private.private_bytes_raw())
JWT_REQUIRED = MINT.claims(iat=ABSENT)

DOCUMENTS = {
    "RSA key of a key set": Document(read_key, RSA.jwk(kid=ABSENT, use=ABSENT, alg=ABSENT), JWK_NAMES),
    "EC key of a key set": Document(read_key, EC.jwk(kid=ABSENT, use=ABSENT, alg=ABSENT), JWK_NAMES),
    "OKP key of a key set": Document(read_key, ED.jwk(kid=ABSENT, use=ABSENT, alg=ABSENT), JWK_NAMES),
    "JWT header": Document(read_header, {"alg": "ES256"}, HEADER_NAMES),
    "claims of an access token": Document(read_claims("at+jwt"), JWT_REQUIRED, CLAIM_NAMES),
    "claims of a JWT": Document(read_claims("JWT"), JWT_REQUIRED, CLAIM_NAMES),
    "introspection": Document(
        read_introspection,
        {"active": True, "client_id": "app"},
        (*(name for name in CLAIM_NAMES if name != "client_id"), "iss", "aud", "exp", "sub", "username", "token_type"),
    ),
    "metadata": Document(
        read_metadata,
        {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks"},
        ("scopes_supported", "token_endpoint", "dpop_signing_alg_values_supported", "introspection_endpoint"),
    ),
    "header of a proof": Document(
        lambda header: read_proof(header, proof_claims()),
        {"typ": "dpop+jwt", "alg": "ES256", "jwk": PROVER.public},
        ("kid", "cty", "jku", "x5u", "x5c"),
    ),
    "claims of a proof": Document(
        lambda claims: read_proof(PROVER.header(), claims), proof_claims(), ("nonce", "exp", "nbf", "iss", "sub")
    ),
    "key of a proof": Document(
        lambda key: read_proof(PROVER.header(jwk=key), proof_claims()), PROVER.public, JWK_NAMES
    ),
    "private key": Document(
        read_private_key, {**ED.jwk(kid=ABSENT, use=ABSENT, alg=ABSENT), "d": ED_PRIVATE}, tuple(set(JWK_NAMES) - {"d"})
    ),
}


def outcome(document: Document, members: Mapping[str, Any]) -> object:
    """Return what a document says, or the reason why it is refused."""
    try:
        return document.read({name: value for name, value in members.items() if value is not ABSENT})
    except (KeySetError, TokenError, MetadataError, ProofError, ValueError) as error:
        return f"refused: {error}"


def cases(document: Document) -> Iterator[dict[str, Any]]:
    for name, value in itertools.product(document.optional, EMPTY):
        yield {name: value}
    for pair, value in itertools.product(itertools.combinations(document.optional, 2), EMPTY):
        yield dict.fromkeys(pair, value)
    for value in EMPTY:
        yield dict.fromkeys(document.optional, value)


@each("name", DOCUMENTS)
def test_empty_optional_member_is_as_absent(name: str) -> None:
    document = DOCUMENTS[name]
    without = outcome(document, {name: value for name, value in document.required.items() if value is not ABSENT})
    assert not str(without).startswith("refused"), without
    for changes in cases(document):
        # Fresh proofs have another jti each, which is no part of the outcome.
        assert outcome(document, {**document.required, **changes}) == without, changes


@each("name", DOCUMENTS)
def test_empty_required_member_is_as_missing(name: str) -> None:
    document = DOCUMENTS[name]
    for required in document.required:
        missing = outcome(document, {**document.required, required: ABSENT})
        assert str(missing).startswith("refused"), required
        for value in EMPTY:
            assert outcome(document, {**document.required, required: value}) == missing, (required, value)


@each("value", [0, 0.0, False, True, " ", [None], [[]], {"": None}, "null"])
def test_other_values_are_present(value: object) -> None:
    assert member({"x": value}, "x", "default") == value
    assert present({"x": value, "y": None}) == {"x": value}


def test_confirmation_with_empty_methods_is_as_absent() -> None:
    """Serializers of whole objects write both methods of the confirmation of a token that has one or none."""
    policy = TokenPolicy(ISSUER, frozenset({AUDIENCE}), dpop="accept")
    for value in EMPTY:
        cnf = {"jkt": "x", "x5t#S256": value, "jwk": value}
        assert policy.check_claims(decode_jwt(MINT.token(cnf=cnf)), NOW).key_thumbprint == "x"
        assert policy.check_claims(decode_jwt(MINT.token(cnf={"jkt": value})), NOW).key_thumbprint == ""


@each("value", [None, 5, ["sign"], ["x"], "enc"])
@each("name", ["key_ops", "use", "alg", "kid", "ext", "exp"])
def test_optional_members_of_the_key_of_a_proof_are_ignored(name: str, value: object) -> None:
    assert read_proof(PROVER.header(jwk={**PROVER.public, name: value}), proof_claims())


@each("key", ["EdDSA", "Ed25519", ABSENT])
@each("alg", ["EdDSA", "Ed25519"])
def test_proof_has_either_name_of_ed25519(key: Any, alg: str) -> None:
    prover = Prover(ED, now=lambda: NOW)
    proof = make_token(prover.header(alg=alg, jwk=ED.jwk(alg=key)), prover.claims("GET", URL, TOKEN), ED)
    bound_to = prover.confirmation["jkt"]
    assert decode_proof(proof.encode()).check(
        method="GET", url=URL, token=TOKEN, bound_to=bound_to, now=NOW, leeway_s=0
    )


@each("content", [b"", b"null", b"[]", b"5", b'"x"', b"{", b"\xff", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf{}"])
def test_document_without_an_object_has_none(content: bytes) -> None:
    assert decode_object(content) is None


def test_document_may_begin_with_a_byte_order_mark() -> None:
    assert decode_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_number_of_cases() -> None:
    """The family is not empty."""
    assert sum(1 for document in DOCUMENTS.values() for _ in cases(document)) > 3000


def test_empty_list_of_critical_extensions_is_refused() -> None:
    """RFC 7515 §4.1.11 forbids it; null is as absent."""
    with pytest.raises(TokenError, match="crit"):
        read_header({"alg": "ES256", "crit": []})
    assert read_header({"alg": "ES256", "crit": None, "b64": None})

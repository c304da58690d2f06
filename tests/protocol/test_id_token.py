"""ID tokens, UserInfo and logout tokens."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from postd.protocol.base64url import encode_base64url
from postd.protocol.id_token import IdTokenPolicy, Person
from postd.protocol.jwt import Jwt, TokenError
from tests.cases import each

NOW = 1_800_000_000.0
ISSUER, CLIENT, NONCE, ACCESS = "https://idp.example", "app", "a nonce", "an access token"
POLICY = IdTokenPolicy(ISSUER, CLIENT)
CLAIMS = {"iss": ISSUER, "aud": CLIENT, "sub": "42", "exp": NOW + 60, "iat": NOW, "nonce": NONCE}
EVENT = "http://schemas.openid.net/event/backchannel-logout"
LOGOUT = {"iss": ISSUER, "aud": CLIENT, "iat": NOW, "exp": NOW + 60, "jti": "1", "sub": "42", "events": {EVENT: {}}}
ABSENT: list[Any] = [None, "", [], {}]
"""Values that count as no value."""


def make_jwt(claims: dict[str, Any], **header: Any) -> Jwt:
    return Jwt({"alg": "ES256", **header}, claims, b"", b"")


def check(changes: dict[str, Any] | None = None, policy: IdTokenPolicy = POLICY, **options: Any) -> dict[str, object]:
    arguments: dict[str, Any] = {"nonce": NONCE, "access_token": ACCESS, "now": NOW, **options}
    return policy.check(make_jwt({**CLAIMS, **(changes or {})}), **arguments)


def without(claims: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in claims.items() if key != name}


@each("header", [{}, {"typ": "JWT"}, {"typ": "jwt"}, {"typ": "application/jwt"}, {"typ": "", "kid": ""}, {"typ": None}])
def test_token_without_type_and_key_id_is_accepted(header: dict[str, Any]) -> None:
    assert POLICY.check(make_jwt(CLAIMS, **header), nonce=NONCE, access_token=ACCESS, now=NOW) == CLAIMS


@each("name", ["iss", "aud", "sub", "exp", "iat", "nonce"])
def test_required_claim_that_is_absent_null_or_empty_is_refused(name: str) -> None:
    for claims in [without(CLAIMS, name), *[{**CLAIMS, name: value} for value in ABSENT]]:
        with pytest.raises(TokenError, match=f"{name}.* (missing|another)"):
            POLICY.check(make_jwt(claims), nonce=NONCE, access_token=ACCESS, now=NOW)


@each("name", ["azp", "at_hash", "auth_time", "nbf", "name", "sid", "acr"])
def test_optional_claim_that_is_null_or_empty_counts_as_absent(name: str) -> None:
    for value in ABSENT:
        assert check({name: value}) == CLAIMS


@each(
    "changes",
    [
        {"iss": f"{ISSUER}/"},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": [CLIENT, "other"]},
        {"aud": [CLIENT, "other"], "azp": "other"},
        {"aud": [CLIENT, 1], "azp": CLIENT},
        {"aud": 1},
        {"azp": "other"},
        {"azp": [CLIENT]},
        {"exp": NOW - 30},
        {"exp": str(NOW + 60)},
        {"exp": True},
        {"iat": NOW + 31},
        {"iat": "now"},
        {"nbf": NOW + 31},
        {"nonce": "other"},
        {"nonce": [NONCE]},
        {"sub": 42},
        {"sub": "a" * 256},
        {"sub": "a\nb"},
        {"at_hash": encode_base64url(bytes(16))},
        {"at_hash": 1},
    ],
)
def test_wrong_claim_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenError):
        check(changes)


@each(
    "changes",
    [
        {"aud": [CLIENT]},
        {"aud": [CLIENT, "other"], "azp": CLIENT},
        {"azp": CLIENT},
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"iat": NOW + 30},
        {"iat": NOW - 86400},
    ],
)
def test_unusual_claim_is_accepted(changes: dict[str, Any]) -> None:
    assert check(changes) == {**CLAIMS, **changes}


@each("kind", ["at+jwt", "application/at+jwt", "logout+jwt", "secevent+jwt", "dpop+jwt", "AT+JWT"])
def test_token_of_another_kind_is_refused(kind: str) -> None:
    with pytest.raises(TokenError, match="typ"):
        POLICY.check(make_jwt(CLAIMS, typ=kind), nonce=NONCE, access_token=ACCESS, now=NOW)


@each(
    "algorithm, name",
    [
        ("RS256", "sha256"),
        ("PS384", "sha384"),
        ("ES512", "sha512"),
        ("RS512", "sha512"),
        ("EdDSA", "sha512"),
        ("EdDSA", "sha256"),
        ("Ed25519", "sha512"),
    ],
)
def test_hash_of_the_access_token_is_that_of_the_signature(algorithm: str, name: str) -> None:
    digest = hashlib.new(name, ACCESS.encode()).digest()
    jwt = make_jwt({**CLAIMS, "at_hash": encode_base64url(digest[: len(digest) // 2])}, alg=algorithm)
    assert POLICY.check(jwt, nonce=NONCE, access_token=ACCESS, now=NOW)
    for other in ("another", ""):
        with pytest.raises(TokenError, match="at_hash"):
            POLICY.check(jwt, nonce=NONCE, access_token=other, now=NOW)


def test_algorithms_are_those_of_the_policy() -> None:
    policy = IdTokenPolicy(ISSUER, CLIENT, algorithms=frozenset({"RS512", "EdDSA"}))
    for accepted in ("RS512", "EdDSA", "Ed25519"):
        policy.check_header(make_jwt(CLAIMS, alg=accepted))
    for refused in ("RS256", "HS256", "none", "rs512"):
        with pytest.raises(TokenError, match=f"alg is not accepted here: {refused}"):
            policy.check_header(make_jwt(CLAIMS, alg=refused))


@each("authenticated, accepted", [(NOW, True), (NOW - 30, True), (NOW - 31, False), (None, False), ("", False)])
def test_fresh_sign_in_needs_the_time_of_authentication(authenticated: Any, accepted: bool) -> None:  # noqa: FBT001 - a case
    changes = {"auth_time": authenticated}
    if accepted:
        assert check(changes, authenticated_since=NOW)
    else:
        with pytest.raises(TokenError, match="auth_time"):
            check(changes, authenticated_since=NOW)
    assert check(changes)


PROFILE = {"name": "Alice", "preferred_username": "ali", "email": "a@example.com"}


@each(
    "claims, options, needed",
    [
        (PROFILE, {}, False),
        ({"email": "a@example.com"}, {}, False),
        ({}, {}, True),
        (PROFILE, {"name_claim": "nickname"}, True),
        ({"nickname": "A"}, {"name_claim": "nickname"}, False),
        (PROFILE, {"user_claim": "uid"}, True),
        (PROFILE, {"user_claim": "email"}, True),
        ({**PROFILE, "email_verified": False}, {"user_claim": "email"}, False),
        (PROFILE, {"required_claims": {"groups": ("staff",)}}, True),
        ({**PROFILE, "groups": ["other"]}, {"required_claims": {"groups": ("staff",)}}, False),
    ],
)
def test_user_info_is_needed_for_missing_claims_alone(claims: Any, options: Any, needed: bool) -> None:  # noqa: FBT001 - a case
    assert replace(POLICY, **options).needs_user_info({**CLAIMS, **claims}) is needed


def test_null_and_empty_claims_are_taken_from_user_info() -> None:
    for value in ABSENT:
        claims = check({"name": value, "preferred_username": value, "email": value})
        assert POLICY.needs_user_info(claims)
        assert POLICY.add_user_info(claims, {"sub": "42", "name": "Alice", "email": value}) == {
            **CLAIMS,
            "name": "Alice",
        }


@each("answer", [{}, {"sub": None}, {"sub": ""}, {"sub": "43"}, {"sub": 42}, {"sub": ["42"]}])
def test_user_info_about_another_user_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(TokenError, match="sub of UserInfo"):
        POLICY.add_user_info(CLAIMS, answer)


def test_claims_of_the_token_count_more_than_those_of_user_info() -> None:
    merged = POLICY.add_user_info({**CLAIMS, "name": "Alice"}, {"sub": "42", "name": "Mallory", "groups": ["staff"]})
    assert merged == {**CLAIMS, "name": "Alice", "groups": ["staff"]}


@each(
    "token, answer, found",
    [
        ({"email": "a@x", "email_verified": True}, {"email": "b@x", "email_verified": False}, ("a@x", True)),
        ({"email": "a@x"}, {"email": "b@x", "email_verified": True}, ("b@x", True)),
        ({"email": "a@x"}, {"email_verified": True}, ("a@x", None)),
        ({"email_verified": True}, {"email": "b@x"}, ("b@x", None)),
        ({}, {"email": "b@x", "email_verified": False}, ("b@x", False)),
        ({"email": "a@x"}, {}, ("a@x", None)),
    ],
)
def test_address_and_its_verification_come_from_one_source(token: Any, answer: Any, found: Any) -> None:
    merged = POLICY.add_user_info({**CLAIMS, **token}, {"sub": "42", **answer})
    assert (merged.get("email"), merged.get("email_verified")) == found


@each("verified", [None, False, "true", 1, "", []])
def test_unverified_address_is_no_account(verified: Any) -> None:
    policy = replace(POLICY, user_claim="email")
    claims = {**CLAIMS, "email": "a@example.com"}
    assert policy.find_person({**claims, "email_verified": True}).name == "a@example.com"
    with pytest.raises(TokenError, match="email is not verified"):
        policy.find_person({**claims, "email_verified": verified})


@each(
    "claims, name_claim, shown",
    [
        (PROFILE, "", "Alice"),
        ({**PROFILE, "name": 1}, "", "ali"),
        ({**PROFILE, "name": "  "}, "", "ali"),
        ({**PROFILE, "name": "a\u202eb"}, "", "ali"),
        ({**PROFILE, "name": "a" * 256}, "", "ali"),
        ({"email": "a@example.com"}, "", "a@example.com"),
        ({}, "", "42"),
        (PROFILE, "preferred_username", "ali"),
        (PROFILE, "nickname", "42"),
    ],
)
def test_shown_name_is_the_first_usable_one(claims: Any, name_claim: str, shown: str) -> None:
    assert replace(POLICY, name_claim=name_claim).find_person({**CLAIMS, **claims}).shown_name == shown


@each("value, accepted", [("staff", True), (["a", "staff"], True), ("other", False), ([], False), (True, False)])
def test_required_claim_has_an_accepted_value(value: Any, accepted: bool) -> None:  # noqa: FBT001 - a case
    policy = replace(POLICY, required_claims={"groups": ("staff", "admins")})
    if accepted:
        assert policy.find_person({**CLAIMS, "groups": value}).name == "42"
    else:
        with pytest.raises(TokenError, match="groups is not accepted here"):
            policy.find_person({**CLAIMS, "groups": value})
    with pytest.raises(TokenError, match="groups is missing"):
        policy.find_person(CLAIMS)


@each("value", [None, 1, ["a"], "a" * 256, "a\nb"])
def test_account_is_a_valid_name(value: Any) -> None:
    with pytest.raises(TokenError, match="uid is"):
        replace(POLICY, user_claim="uid").find_person({**CLAIMS, "uid": value} if value is not None else CLAIMS)


def test_session_at_the_provider_is_kept() -> None:
    assert POLICY.find_person({**CLAIMS, "sid": "s1"}) == Person("42", "42", "42", "s1", {**CLAIMS, "sid": "s1"})
    assert POLICY.find_person({**CLAIMS, "sid": 1}).sid == ""


def check_logout(changes: dict[str, Any] | None = None, **header: Any) -> Any:
    return POLICY.check_logout(make_jwt({**LOGOUT, **(changes or {})}, **header), NOW)


@each("header", [{}, {"typ": "logout+jwt"}, {"typ": "application/logout+jwt"}, {"typ": "JWT"}, {"typ": None}])
def test_logout_token_is_accepted(header: dict[str, Any]) -> None:
    token = check_logout(**header)
    assert (token.subject, token.sid, token.expires) == ("42", "", NOW + 90)


def test_logout_token_names_a_user_a_session_or_both() -> None:
    assert check_logout({"sub": None, "sid": "s1"}).sid == "s1"
    both = check_logout({"sid": "s1"})
    assert (both.subject, both.sid) == ("42", "s1")


def test_logout_token_is_remembered_as_long_as_it_is_accepted() -> None:
    assert check_logout({"exp": NOW + 86400}).expires == NOW + 600 + 30
    assert check_logout().id == check_logout({"sub": "43"}).id
    assert check_logout().id != check_logout({"jti": "2"}).id


@each("name", ["iss", "aud", "iat", "exp", "jti", "sub", "events"])
def test_claim_of_a_logout_token_that_is_absent_null_or_empty_is_refused(name: str) -> None:
    for claims in [without(LOGOUT, name), *[{**LOGOUT, name: value} for value in ABSENT]]:
        with pytest.raises(TokenError):
            POLICY.check_logout(make_jwt(claims), NOW)


@each(
    "changes",
    [
        {"iss": f"{ISSUER}/"},
        {"aud": "other"},
        {"iat": NOW - 631},
        {"iat": NOW + 31},
        {"exp": NOW - 30},
        {"events": [EVENT]},
        {"events": {"other": {}}},
        {"events": {EVENT: None}},
        {"events": {EVENT: ""}},
        {"nonce": "n"},
        {"jti": 1},
        {"sub": 1},
        {"sid": ["s1"]},
    ],
)
def test_wrong_logout_token_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TokenError):
        check_logout(changes)


@each("kind", ["at+jwt", "id+jwt", "secevent+jwt", "x"])
def test_logout_token_of_another_type_is_refused(kind: str) -> None:
    with pytest.raises(TokenError, match="typ"):
        check_logout(typ=kind)


def test_id_token_is_no_logout_token_and_the_other_way() -> None:
    with pytest.raises(TokenError):
        POLICY.check_logout(make_jwt(CLAIMS), NOW)
    with pytest.raises(TokenError, match="nonce"):
        check({**LOGOUT, "nonce": None})


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@each("check_any", [check, check_logout, lambda changes: POLICY.find_person(check(changes))])
@given(st.dictionaries(st.sampled_from([*CLAIMS, *LOGOUT, "azp", "at_hash", "auth_time", "sid", "name"]), JSON))
def test_any_claims_are_accepted_or_refused(
    check_any: Callable[[dict[str, Any]], Any], changes: dict[str, Any]
) -> None:
    try:
        check_any(changes)
    except TokenError as error:
        assert "\n" not in str(error)

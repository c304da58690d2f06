"""Challenges, options and answers of passkeys (Web Authentication Level 3)."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.base64url import decode_base64url, encode_base64url
from postd.protocol.webauthn import (
    CHALLENGE_S,
    ChallengeError,
    RelyingParty,
    WebAuthnError,
    check_authenticator_data,
    check_challenge,
    decode_assertion,
    decode_registration,
    find_rp_id,
    make_challenge,
    make_creation_options,
    make_request_options,
    make_user_handle,
)
from tests.authenticator import AT, ED, Authenticator
from tests.cases import each

PARTY = RelyingParty("https://posts.example", "posts.example", "postd")
KEY, NOW = bytes(32), 1_800_000_000.0
SESSION = b"s" * 32
CREATION = json.loads(make_creation_options(PARTY, b"c" * 56, handle=b"h" * 32, name="alice", existing=[b"one"]))
REQUEST = json.loads(make_request_options(PARTY, b"c" * 56))


@each(
    "origin, expected",
    [
        ("https://posts.example", "posts.example"),
        ("https://posts.example:8443", "posts.example"),
        ("http://localhost:8080", "localhost"),
        ("http://posts.localhost:8080", "posts.localhost"),
        ("https://localhost", "localhost"),
        ("http://posts.example", None),
        ("http://127.0.0.1:8080", None),
        ("https://192.0.2.1", None),
        ("https://[2001:db8::1]", None),
        ("http://localhost.example", None),
        ("http://notlocalhost", None),
    ],
)
def test_rp_id_is_the_host_where_browsers_have_passkeys(origin: str, expected: str | None) -> None:
    assert find_rp_id(origin) == expected


def test_challenge_is_valid_for_its_purpose_and_binding_until_it_expires() -> None:
    challenge = make_challenge(KEY, "sign-in", SESSION, NOW)
    assert challenge != make_challenge(KEY, "sign-in", SESSION, NOW)
    assert check_challenge(challenge, KEY, "sign-in", SESSION, NOW + CHALLENGE_S - 1) == NOW + CHALLENGE_S
    with pytest.raises(ChallengeError, match="expired"):
        check_challenge(challenge, KEY, "sign-in", SESSION, NOW + CHALLENGE_S)
    for arguments in (
        (challenge, KEY, "registration", SESSION, NOW),
        (challenge, KEY, "sign-in", b"t" * 32, NOW),
        (challenge, b"k" * 32, "sign-in", SESSION, NOW),
        (challenge[:-1], KEY, "sign-in", SESSION, NOW),
        (b"", KEY, "sign-in", SESSION, NOW),
        (b"planted" * 8, KEY, "sign-in", SESSION, NOW),
    ):
        with pytest.raises(ChallengeError, match="none for this"):
            check_challenge(*arguments)


@given(st.integers(0, 55), st.integers(1, 255))
def test_altered_challenge_is_refused(place: int, change: int) -> None:
    challenge = bytearray(make_challenge(KEY, "sign-in", SESSION, NOW))
    challenge[place] ^= change
    with pytest.raises(ChallengeError):
        check_challenge(bytes(challenge), KEY, "sign-in", SESSION, NOW)


def test_user_handle_differs_by_account_and_entry() -> None:
    cases = [("alice", b"e" * 16), ("alice", b"f" * 16), ("bob", b"e" * 16), ("e", b"e" * 15), ("", b"alice")]
    handles = {make_user_handle(KEY, account, entry) for account, entry in cases}
    assert len(handles) == len(cases)
    assert {len(handle) for handle in handles} == {32}


def test_options_require_discoverable_passkeys_of_verified_users() -> None:
    assert CREATION["authenticatorSelection"] == {
        "residentKey": "required",
        "requireResidentKey": True,
        "userVerification": "required",
    }
    assert CREATION["attestation"] == "none"
    assert [one["alg"] for one in CREATION["pubKeyCredParams"]] == [-7, -8, -257]
    assert CREATION["excludeCredentials"] == [{"type": "public-key", "id": encode_base64url(b"one")}]
    assert (CREATION["rp"]["id"], CREATION["user"]["name"]) == ("posts.example", "alice")
    members = {"timeout": 300_000, "rpId": "posts.example", "allowCredentials": [], "userVerification": "required"}
    assert members | {"challenge": encode_base64url(b"c" * 56)} == REQUEST


def test_answers_are_decoded() -> None:
    device = Authenticator(PARTY.origin)
    made = decode_registration(device.create(CREATION), PARTY)
    assert (made.credential_id, made.challenge) == (device.credential_id, b"c" * 56)
    answer = decode_assertion(device.get(REQUEST), PARTY)
    assert (answer.credential_id, answer.challenge, answer.user_handle) == (device.credential_id, b"c" * 56, b"h" * 32)
    assert decode_assertion(device.get(REQUEST, user_handle=None), PARTY).user_handle is None


@each(
    "changes, why",
    [
        ({"origin": "https://posts.example:8443"}, "another origin"),
        ({"origin": "http://posts.example"}, "another origin"),
        ({"origin": "https://www.posts.example"}, "another origin"),
        ({"origin": "https://posts.example/"}, "another origin"),
        ({"crossOrigin": True}, "embedded"),
        ({"crossOrigin": True, "topOrigin": "https://posts.example"}, "embedded"),
        ({"topOrigin": "https://other.example"}, "embedded"),
        ({"crossOrigin": "true"}, "malformed"),
        ({"type": "payment.get"}, "not of type"),
        ({"type": "webauthn.get "}, "not of type"),
        ({"challenge": "!"}, "not Base64url"),
        ({"challenge": 1}, "malformed"),
    ],
)
def test_other_client_data_are_refused(changes: dict[str, Any], why: str) -> None:
    device = Authenticator(PARTY.origin)
    device.create(CREATION)
    with pytest.raises(WebAuthnError, match=why):
        decode_assertion(device.get(REQUEST, **changes), PARTY)
    with pytest.raises(WebAuthnError, match=why):
        decode_registration(device.create(CREATION, **changes), PARTY)


def test_answer_of_the_other_kind_is_refused() -> None:
    device = Authenticator(PARTY.origin)
    made = json.loads(device.create(CREATION))
    answer = json.loads(device.get(REQUEST))
    answer["response"]["clientDataJSON"], made["response"]["clientDataJSON"] = (
        made["response"]["clientDataJSON"],
        answer["response"]["clientDataJSON"],
    )
    with pytest.raises(WebAuthnError, match="not of type"):
        decode_assertion(json.dumps(answer), PARTY)
    with pytest.raises(WebAuthnError, match="not of type"):
        decode_registration(json.dumps(made), PARTY)


@each(
    "change",
    [
        lambda one: one.update(type="password"),
        lambda one: one.update(id="x" + one["id"]),
        lambda one: one.update(id="", rawId=""),
        lambda one: one.update(id="AA" * 1024, rawId="AA" * 1024),
        lambda one: one.update(rawId=None),
        lambda one: one.pop("rawId"),
        lambda one: one.update(response=[]),
        lambda one: one["response"].pop("signature"),
        lambda one: one["response"].update(userHandle=7),
        lambda one: one["response"].update(signature="=" * 8),
        lambda one: one["response"].update(authenticatorData="é"),
        lambda one: one["response"].update(clientDataJSON=encode_base64url(b"\xff{}")),
        lambda one: one["response"].update(clientDataJSON=encode_base64url(b"[" * 3000)),
    ],
    ids=map(str, range(13)),
)
def test_malformed_assertion_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    device = Authenticator(PARTY.origin)
    device.create(CREATION)
    answer = json.loads(device.get(REQUEST))
    change(answer)
    with pytest.raises(WebAuthnError):
        decode_assertion(json.dumps(answer), PARTY)


@each(
    "text", ["", "{", "null", "[]", "7", '{"id": 1}', "[" * 8000, '{"x":' * 4000, '"\\ud800"', "\0", '{"id":"\\ud800"}']
)
def test_text_without_a_credential_is_refused(text: str) -> None:
    for decode in (decode_assertion, decode_registration):
        with pytest.raises(WebAuthnError):
            decode(text, PARTY)


@each(
    "data",
    [
        b"",
        bytes(36),
        bytes(38),
        bytes(32) + bytes([AT]) + bytes(4),
        bytes(32) + bytes([AT]) + bytes(4) + bytes(16) + b"\xff\xff" + bytes(40),
        bytes(32) + bytes([ED]) + bytes(4) + b"\xa0\xa0",
        bytes(32) + bytes([ED]) + bytes(4) + bytes.fromhex("c101"),
        bytes(32) + bytes([AT]) + bytes(4) + bytes(18) + b"\x81" * 5,
    ],
)
def test_authenticator_data_have_what_their_flags_announce(data: bytes) -> None:
    with pytest.raises(WebAuthnError):
        check_authenticator_data(data)


@given(st.text(max_size=400) | st.binary(max_size=400).map(lambda data: json.dumps(encode_base64url(data))))
def test_arbitrary_text_is_refused(text: str) -> None:
    for decode in (decode_assertion, decode_registration):
        with pytest.raises(WebAuthnError):
            decode(text, PARTY)


@given(
    st.sampled_from(["clientDataJSON", "authenticatorData", "signature"]),
    st.integers(0, 140),
    st.integers(0, 140),
    st.binary(max_size=60),
)
def test_altered_member_is_decoded_or_refused(name: str, start: int, end: int, inserted: bytes) -> None:
    device = Authenticator(PARTY.origin)
    device.create(CREATION)
    answer = json.loads(device.get(REQUEST))
    content = decode_base64url(answer["response"][name].encode())
    answer["response"][name] = encode_base64url(content[:start] + inserted + content[end:])
    with suppress(WebAuthnError):
        decode_assertion(json.dumps(answer), PARTY)

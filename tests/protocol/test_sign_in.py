"""The request to an OpenID provider, its answer, and the options of a provider."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.sealing import seal, unseal
from postd.protocol.sign_in import (
    PENDING_S,
    Callback,
    CallbackError,
    PendingSignIn,
    basic_auth,
    check_button,
    check_id,
    choose_client_auth,
    decode_callback,
    find_contradiction,
    make_authorization_url,
    make_sign_out_url,
)
from tests.cases import each

NOW = 1_800_000_000.0
ISSUER = "https://idp.example"
VERIFIER, CHALLENGE = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
"""The example of RFC 7636, appendix B."""
PENDING = PendingSignIn("s" * 43, "n" * 43, VERIFIER, "https://app.example/login/x/callback", "/board", False, NOW)  # noqa: FBT003 - a field


def test_authorization_url_has_what_providers_demand() -> None:
    url = make_authorization_url(f"{ISSUER}/auth", "an app", ["openid", "profile"], PENDING)
    assert parse_qs(urlsplit(url).query) == {
        "response_type": ["code"],
        "client_id": ["an app"],
        "redirect_uri": [PENDING.redirect_uri],
        "scope": ["openid profile"],
        "state": [PENDING.state],
        "nonce": [PENDING.nonce],
        "code_challenge": [CHALLENGE],
        "code_challenge_method": ["S256"],
    }


def test_query_of_the_endpoint_is_kept() -> None:
    assert make_authorization_url(f"{ISSUER}/auth?realm=a", "app", ["openid"], PENDING).startswith(
        f"{ISSUER}/auth?realm=a&response_type=code&"
    )
    assert make_sign_out_url(f"{ISSUER}/out?a=b", "app", "a token", "https://app.example/") == (
        f"{ISSUER}/out?a=b&id_token_hint=a+token&client_id=app&post_logout_redirect_uri=https%3A%2F%2Fapp.example%2F"
    )


def test_fresh_sign_in_asks_for_authentication_now() -> None:
    pending = PendingSignIn.begin("https://app.example/", "", NOW, fresh=True)
    assert parse_qs(urlsplit(make_authorization_url(ISSUER, "app", ["openid"], pending)).query)["max_age"] == ["0"]


def test_secrets_of_a_sign_in_are_new_and_different() -> None:
    made = [PendingSignIn.begin("https://app.example/", "", NOW, fresh=False) for _ in range(2)]
    assert len({secret for one in made for secret in (one.state, one.nonce, one.verifier)}) == 6
    assert all(len(one.verifier) == 43 for one in made)


@given(st.text(), st.floats(0, 1e12), st.booleans())
def test_pending_sign_in_survives_sealing(back: str, begun: float, fresh: bool) -> None:  # noqa: FBT001 - generated
    pending = PendingSignIn("s", "n", "v", "https://app.example/", back, fresh, begun)
    sealed = seal(bytes(32), pending.encode(), "example").encode()
    content = unseal(bytes(32), sealed, "example")
    assert content is not None
    assert PendingSignIn.decode(content) == pending
    assert unseal(bytes(31) + b"1", sealed, "example") is None
    assert unseal(bytes(32), sealed, "other") is None


@given(st.binary(max_size=100))
def test_other_text_is_not_unsealed(sealed: bytes) -> None:
    assert unseal(bytes(32), sealed, "example") is None


@given(st.binary(max_size=100))
def test_other_content_is_no_pending_sign_in(content: bytes) -> None:
    assert PendingSignIn.decode(content) is None


@each(
    "parameters, why",
    [
        ({"code": ["c"]}, "state is missing"),
        ({"code": ["c"], "state": [""]}, "state is missing"),
        ({"state": ["s"]}, "it needs either code or error"),
        ({"state": ["s"], "code": [""]}, "it needs either code or error"),
        ({"state": ["s"], "code": ["c"], "error": ["access_denied"]}, "it needs either code or error"),
        *[({"state": ["s"], "code": ["c"], name: ["s", "s"]}, f"{name} is there twice") for name in ("state", "code")],
        ({"state": ["s"], "code": ["c"], "iss": [ISSUER, ISSUER]}, "iss is there twice"),
        ({"state": ["s"], "error": ["e", "e"]}, "error is there twice"),
    ],
)
def test_malformed_callback_is_refused(parameters: dict[str, list[str]], why: str) -> None:
    with pytest.raises(CallbackError, match=why):
        decode_callback(parameters)


def test_empty_parameters_of_a_callback_count_as_absent() -> None:
    assert decode_callback({"state": ["s"], "code": ["c"], "error": [""], "iss": [""]}) == Callback("s", "c")


@each(
    "state, after_s, accepted",
    [
        (PENDING.state, 0, True),
        (PENDING.state, PENDING_S - 1, True),
        (PENDING.state, PENDING_S, False),
        (PENDING.state, -30, True),
        (PENDING.state, -PENDING_S, False),
        ("x" * 43, 0, False),
        ("\N{SNOWMAN}", 0, False),
    ],
)
def test_state_is_that_of_a_live_sign_in(state: str, after_s: float, accepted: bool) -> None:  # noqa: FBT001 - a case
    answer = Callback(state, "code")
    if accepted:
        assert answer.check_state(PENDING, NOW + after_s) is PENDING
    else:
        with pytest.raises(CallbackError):
            answer.check_state(PENDING, NOW + after_s)
    with pytest.raises(CallbackError):
        answer.check_state(None, NOW)


@each(
    "announced, sent, accepted",
    [
        (True, ISSUER, True),
        (True, "", False),
        (True, f"{ISSUER}/", False),
        (None, "", True),
        (None, ISSUER, True),
        (None, "https://other.example", False),
        (False, "", True),
        ("", "", True),
        ([], "", True),
    ],
)
def test_issuer_of_the_answer_is_checked(announced: Any, sent: str, accepted: bool) -> None:  # noqa: FBT001 - a case
    metadata = {"authorization_response_iss_parameter_supported": announced}
    answer = Callback("s", "code", issuer=sent)
    if accepted:
        answer.check_issuer(ISSUER, metadata)
    else:
        with pytest.raises(CallbackError, match="iss is"):
            answer.check_issuer(ISSUER, metadata)


BASIC, POST, KEY = "client_secret_basic", "client_secret_post", "private_key_jwt"


@each(
    "announced, secret, key, chosen",
    [
        (None, True, False, BASIC),
        ([], True, False, BASIC),
        ("", True, False, BASIC),
        ([POST, BASIC], True, False, BASIC),
        ([POST], True, False, POST),
        ([KEY], True, False, BASIC),
        ([POST, KEY], False, True, KEY),
        ([POST, KEY], True, True, POST),
        ([KEY], True, True, KEY),
        (None, False, True, KEY),
        ([BASIC], False, False, "none"),
        ("text", True, False, BASIC),
    ],
)
def test_client_authentication_is_chosen_by_discovery(announced: Any, secret: Any, key: Any, chosen: str) -> None:
    metadata = {"token_endpoint_auth_methods_supported": announced}
    assert choose_client_auth("auto", metadata, secret=secret, key=key) == chosen
    assert choose_client_auth("client_secret_post", metadata, secret=secret, key=key) == POST


def test_client_is_form_encoded_for_basic() -> None:
    assert basic_auth("a:b", "100% secret: 1 + 1") == ("a%3Ab", "100%25+secret%3A+1+%2B+1")


@each(
    "changed, key",
    [
        ({}, ""),
        ({"client_id": ""}, "client_id"),
        ({"scopes": ["profile"]}, "scopes"),
        ({"scopes": ["openid", "a b"]}, "scopes"),
        ({"scopes": ["openid", 'a"']}, "scopes"),
        ({"client_auth": BASIC}, "client_auth"),
        ({"client_auth": POST, "client_key_file": "key"}, "client_auth"),
        ({"client_auth": KEY, "client_secret_file": "secret"}, "client_auth"),
        ({"client_auth": "none", "client_secret_file": "secret"}, "client_auth"),
        ({"client_auth": KEY, "client_key_file": "key"}, ""),
        ({"client_auth": POST, "client_secret_file": "secret"}, ""),
        ({"client_auth": "none"}, ""),
    ],
)
def test_contradicting_options_are_named(changed: dict[str, Any], key: str) -> None:
    options: dict[str, Any] = {"client_id": "app", "client_secret_file": "", "client_key_file": ""}
    options |= {"client_auth": "auto", "scopes": ["openid"]}
    found, why = find_contradiction(**{**options, **changed})
    assert (found, bool(why)) == (key, bool(key))


@each("value", ["", "A", "a_b", "a/b", "a b", "ä", "bind", "passkey", "session", "a" * 65])
def test_invalid_id_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"is not an id|is reserved"):
        check_id(value)


@each("value", ["", "  ", "a\nb", "\u202ea", "a" * 65])
def test_invalid_name_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        check_button(value)

"""`postd.testing.Provider`: what it demands of a client, and its faults. tests/protect/test_sign_in_faults.py has what
`Protection` does about them.
"""

import hashlib
import json
import time
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.web.resource import IResource, Resource

from postd.client import SignInError
from postd.protect import Protection
from postd.protocol.base64url import encode_base64url
from postd.reactor import IReactor
from postd.testing import Provider, Server, basic

REACTOR = cast(IReactor, global_reactor)
BACK = "http://127.0.0.1/back"
VERIFIER = "v" * 43
ASKED = {
    "response_type": "code",
    "client_id": "app",
    "redirect_uri": BACK,
    "scope": "openid profile",
    "state": "a state",
    "nonce": "a nonce",
    "code_challenge": encode_base64url(hashlib.sha256(VERIFIER.encode()).digest()),
    "code_challenge_method": "S256",
}
SECRET = "100% secret: 1 + 1"


async def ask(provider: Provider, path: str, form: dict[str, str] | None = None, **keywords: Any) -> Any:
    """Return the response of the provider, redirects included; a form is sent by POST."""
    method = "GET" if form is None else "POST"
    url = provider.url + path
    response = await provider.client().request(method, url, data=form, allow_redirects=False, **keywords)
    response.body = await response.content()
    return response


def parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def new_code(provider: Provider, **changes: str) -> str:
    return parameters(provider.authorize(f"{provider.url}/authorize?{urlencode({**ASKED, **changes})}"))["code"]


def grant(given: str, **changes: str) -> dict[str, str]:
    form = {"grant_type": "authorization_code", "code": given, "redirect_uri": BACK, "code_verifier": VERIFIER}
    return {name: value for name, value in {**form, "client_id": "app", **changes}.items() if value}


async def id_token_of(provider: Provider, token: str) -> dict[str, Any]:
    keys = KeySet.import_key_set(json.loads((await ask(provider, "/keys")).body))
    return jwt.decode(token, keys).claims


@ensureDeferred
async def test_user_is_signed_in_and_out() -> None:
    async with Provider(REACTOR) as provider:
        provider.user = "bob"
        provider.id_token_claims = {"groups": ["staff"]}
        redirect = await ask(provider, f"/authorize?{urlencode(ASKED)}")
        assert redirect.code == 302
        back = parameters(redirect.headers.getRawHeaders("Location")[0])
        assert (back["state"], back["iss"]) == ("a state", provider.url)
        answer = json.loads((await ask(provider, "/token", grant(back["code"]))).body)
        claims = await id_token_of(provider, answer["id_token"])
        expected = {"iss": provider.url, "aud": "app", "sub": "bob", "nonce": "a nonce", "groups": ["staff"]}
        assert {name: claims[name] for name in expected} == expected
        user = await ask(provider, "/userinfo", headers={"Authorization": f"Bearer {answer['access_token']}"})
        assert json.loads(user.body) == {"sub": "bob", "name": "Alice"}
        assert provider.sessions == {claims["sid"]: "bob"}
        leave = {"id_token_hint": answer["id_token"], "client_id": "app", "post_logout_redirect_uri": BACK}
        left = await ask(provider, f"/logout?{urlencode(leave)}")
        assert (left.code, left.headers.getRawHeaders("Location")) == (302, [BACK])
        assert provider.sessions == {}
        assert [name for name, _ in provider.requests] == ["authorization", "token", "userinfo", "end_session"]


@ensureDeferred
async def test_authentication_request_is_checked() -> None:
    async with Provider(REACTOR) as provider:
        for name, value in (
            ("response_type", "token"),
            ("client_id", "other"),
            ("code_challenge_method", "plain"),
            ("nonce", ""),
            ("state", ""),
            ("scope", "profile"),
        ):
            answer = await ask(provider, f"/authorize?{urlencode({**ASKED, name: value})}")
            assert (answer.code, answer.body.decode().partition(":")[0]) == (400, name)


@ensureDeferred
async def test_grant_is_checked() -> None:
    async with Provider(REACTOR) as provider:
        for name, value in (
            ("code_verifier", "w" * 43),
            ("code_verifier", ""),
            ("redirect_uri", f"{BACK}/x"),
            ("code", "x"),
            ("grant_type", "x"),
        ):
            answer = await ask(provider, "/token", grant(new_code(provider), **{name: value}))
            assert (answer.code, json.loads(answer.body)) == (400, {"error": "invalid_grant"}), name


@ensureDeferred
async def test_code_is_good_once() -> None:
    async with Provider(REACTOR) as provider:
        code = new_code(provider)
        assert [(await ask(provider, "/token", grant(code))).code for _ in range(2)] == [200, 400]


@ensureDeferred
async def test_client_authenticates_by_an_accepted_method() -> None:
    async with Provider(REACTOR, client_secret=SECRET) as provider:
        by_post = {"client_secret": SECRET}
        by_basic = {"headers": basic("app", "100%25+secret%3A+1+%2B+1")}
        for fields, keywords, status in (
            (by_post, {}, 200),
            ({}, by_basic, 200),
            (by_post, by_basic, 401),
            ({}, {}, 401),
            ({"client_secret": "x"}, {}, 401),
            ({}, {"headers": basic("app", SECRET)}, 401),
        ):
            answer = await ask(provider, "/token", grant(new_code(provider), **fields), **keywords)
            assert answer.code == status, (fields, keywords)


@ensureDeferred
async def test_assertion_of_the_client_is_good_once_and_for_the_issuer() -> None:
    key = ECKey.generate_key("P-256")
    async with Provider(REACTOR, client_key=key.as_dict(private=False)) as provider:
        claims = {"iss": "app", "sub": "app", "aud": provider.url, "exp": int(time.time()) + 60, "jti": "1"}
        for changes, status in (
            ({}, 200),
            ({}, 401),
            ({"jti": "2", "aud": f"{provider.url}/token"}, 401),
            ({"jti": "3", "exp": 1}, 401),
            ({"jti": "4", "aud": [provider.url]}, 200),
        ):
            assertion = jwt.encode({"alg": "ES256"}, {**claims, **changes}, key)
            kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            fields = {"client_assertion": assertion, "client_assertion_type": kind}
            answer = await ask(provider, "/token", grant(new_code(provider), **fields))
            assert answer.code == status, changes


@ensureDeferred
async def test_error_is_answered_instead_of_a_code() -> None:
    async with Provider(REACTOR) as provider:
        provider.error = "access_denied"
        back = parameters(provider.authorize(f"{provider.url}/authorize?{urlencode(ASKED)}"))
        assert back == {"error": "access_denied", "state": "a state", "iss": provider.url}
        assert provider.sessions == {}


@ensureDeferred
async def test_key_is_replaced_in_the_key_set() -> None:
    async with Provider(REACTOR) as provider:
        new_code(provider)
        old = provider.logout_token()
        provider.rotate_key()
        new = provider.logout_token(sid=None, sub="carol")
        claims = await id_token_of(provider, new)
        assert ("sid" in claims, claims["sub"]) == (False, "carol")
        with pytest.raises(JoseError, match="No key for kid"):
            await id_token_of(provider, old)


@ensureDeferred
async def test_fault_is_one_of_the_names() -> None:
    async with Provider(REACTOR) as provider:
        with pytest.raises(ValueError, match="fault: expected a name"):
            provider.fault = "authorization: no state"
        provider.fault = "authorization: state missing"
        assert "state" not in parameters(provider.authorize(f"{provider.url}/authorize?{urlencode(ASKED)}"))


@ensureDeferred
async def test_form_may_have_another_path_and_the_provider_another_id() -> None:
    async with Provider(REACTOR) as provider:
        trusted = provider.trusted("company", name="Company")
        async with (
            Protection(REACTOR, providers=[trusted], sign_in="/account/") as protection,
            Server(REACTOR, below(b"account", protection.pages())) as server,
        ):
            assert await provider.sign_in_at(server, path="/account/")
            assert await provider.log_out_at(server, path="/account/") == 200


def below(name: bytes, resource: IResource) -> Resource:
    root = Resource()
    root.putChild(name, resource)
    return root


@ensureDeferred
async def test_sign_in_that_begins_no_session_is_an_error() -> None:
    async with (
        Provider(REACTOR) as provider,
        Protection(REACTOR, providers=[provider.trusted()]) as protection,
        Server(REACTOR, protection.pages()) as server,
    ):
        with pytest.raises(SignInError, match="404, and no sign-in has begun"):
            await provider.sign_in_at(server, path="/elsewhere")
        provider.error = "access_denied"
        with pytest.raises(SignInError, match="401, and no session has begun"):
            await provider.sign_in_at(server)

"""Sign-in at an OpenID provider, on a stock site (reference: Sign-in by OpenID Connect)."""

import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest
from joserfc.jwk import ECKey
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent
from twisted.web.resource import Resource

from postd.auth.sign_in import REQUEST_MAX_S
from postd.http.peer import PeerResolver
from postd.protect import Protection, identity, provider
from postd.reactor import IReactor
from postd.testing import Provider, Server
from tests.authenticator import Authenticator
from tests.cases import each
from tests.held_reactor import HeldReactor
from tests.sign_in import HTML, Browser, parameters
from tests.web.clients import account

REACTOR = cast(IReactor, global_reactor)
SECRET = "100% secret: 1 + 1"
FORM = "/sign-in"
BEGIN = f"{FORM}/login/example"
CALLBACK = f"{BEGIN}/callback"


class Who(Resource):
    """Says who the client is."""

    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        client = identity(request)
        assert client is not None
        return f"{client.account} {client.name} {client.scheme} {client.issuer} {client.shown_name}".encode()


class Site:
    """A program with a provider's button, and its provider."""

    def __init__(self, idp: Provider, protection: Protection, server: Server) -> None:
        self.idp, self.protection, self.server = idp, protection, server

    def browser(self) -> Browser:
        return Browser(self.server.url, self.server.client(), BEGIN)


@asynccontextmanager
async def running(
    tmp_path: Path,
    *,
    client: dict[str, Any] | None = None,
    client_auth: list[str] | None = None,
    arguments: dict[str, Any] | None = None,
    reactor: Any = REACTOR,
    **options: Any,
) -> AsyncIterator[Site]:
    """Run a program with a provider: `client` are arguments of the provider, `options` those of `provider()`."""
    (tmp_path / "secret").write_text(SECRET)
    options = {"client_id": "app", "client_secret_file": str(tmp_path / "secret"), **options}
    async with Provider(REACTOR, **(client or {"client_secret": SECRET})) as idp:
        idp.client_auth = client_auth or idp.client_auth
        trusted = provider("example", idp.url, name="Example", **options)
        async with Protection(reactor, providers=[trusted], sign_in=FORM, **(arguments or {})) as protection:
            root = Resource()
            root.putChild(b"sign-in", protection.pages(after="/who"))
            root.putChild(b"who", protection.protect(Who(), "session"))
            async with Server(REACTOR, root, on_port=True) as server:
                yield Site(idp, protection, server)


@contextmanager
def captured() -> Iterator[list[str]]:
    """Collect the lines of the log; none of them has a code, a token or a secret."""
    lines = list[str]()
    with capturedLogs() as events:
        yield lines
    # A stock site logs whole targets; that of postd does not.
    lines += [line for line in map(formatEvent, events) if " HTTP/1.1" not in line]
    assert not any(re.search(r"eyJ|[A-Za-z0-9_-]{40}", line) for line in lines), lines


@ensureDeferred
async def test_sign_in_begins_a_session(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        with captured() as lines:
            response = await browser.sign_in(site.idp)
        assert (response.code, response.location) == (302, "/who"), response.text
        shown = await browser.get("/who")
        assert shown.text == f"{site.idp.url}#alice alice session {site.idp.url} Alice"
        assert [*browser.cookies] == [("session", "/")]
        assert f"signed in: '{site.idp.url}#alice' from 127.0.0.1 by sign_in example" in lines


@ensureDeferred
async def test_sign_in_over_tls_offers_to_bind_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerResolver, "is_secure", lambda _, request: request.path.endswith(b"/callback"))
    async with running(tmp_path, arguments={"bind_sessions": True}) as site:
        response = await site.browser().sign_in(site.idp)
        assert response.code == 302
        (offer,) = response.headers.getRawHeaders("Secure-Session-Registration")
        assert offer.startswith(f'(ES256 RS256);path="{FORM}/login/bind";challenge="')


@ensureDeferred
async def test_request_to_the_provider_has_state_nonce_and_pkce(tmp_path: Path) -> None:
    async with running(tmp_path, scopes=["openid", "email"]) as site:
        browser = site.browser()
        first, second = [parameters(await browser.begin(query)) for query in ("", "?fresh=1")]
        assert first.keys() == {
            *("response_type", "client_id", "redirect_uri", "scope", "state", "nonce"),
            *("code_challenge", "code_challenge_method"),
        }
        assert (first["redirect_uri"], first["scope"]) == (f"{site.server.url}{CALLBACK}", "openid email")
        assert second["max_age"] == "0"
        assert all(first[name] != second[name] for name in ("state", "nonce", "code_challenge"))


@ensureDeferred
async def test_cookie_of_a_pending_sign_in_is_bound_to_its_path(tmp_path: Path) -> None:
    async with running(tmp_path, arguments={"secure": "always"}) as site:
        response = await site.browser().get(BEGIN)
        (line,) = response.headers.getRawHeaders("Set-Cookie")
        pattern = rf"sign-in-[\w-]{{12}}=[\w-]+; Path={BEGIN}; Max-Age=600; HttpOnly; SameSite=Lax; Secure"
        assert re.fullmatch(pattern, line)
        state = parameters(response.location)["state"]
        assert state not in base64.urlsafe_b64decode(line.partition("=")[2].partition(";")[0] + "==").decode("latin-1")
        assert response.headers.getRawHeaders("Cache-Control") == ["no-store"]


@ensureDeferred
async def test_next_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        for given, after in (
            ("/who?a=b&c=d", "/who?a=b&c=d"),
            ("//other.example", "/who"),
            ("https://other.example", "/who"),
            ("/a" * 1024, "/a" * 1024),
        ):
            browser = site.browser()
            assert (await browser.sign_in(site.idp, f"?{urlencode({'next': given})}")).location == after


@ensureDeferred
async def test_sign_in_ends_the_earlier_session(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser, thief = site.browser(), site.browser()
        await browser.sign_in(site.idp)
        thief.cookies = {**browser.cookies}
        await browser.sign_in(site.idp)
        assert browser.cookies != thief.cookies
        assert (await browser.get("/who")).code == 200
        assert (await thief.get("/who")).location.startswith(FORM)


@ensureDeferred
async def test_tabs_finish_in_any_order(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        urls = [await browser.begin(f"?next=/{number}") for number in range(8)]
        for number in (7, 0, 3):
            response = await browser.get(site.idp.authorize(urls[number]))
            assert response.location == f"/{number}"


@ensureDeferred
async def test_oldest_of_more_than_8_pending_sign_ins_is_expired(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        urls = [await browser.begin() for _ in range(10)]
        assert len(browser.cookies) == 8
        assert [(await browser.get(site.idp.authorize(url))).code for url in urls] == [400] * 2 + [302] * 8


@ensureDeferred
async def test_cookies_of_pending_sign_ins_fit_into_a_request(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        for _ in range(9):
            url = await browser.begin("?next=/" + "a" * 2000)
        assert sum(len(name) + len(value) for (name, _), value in browser.cookies.items()) <= 8 * 1024
        assert (await browser.get(site.idp.authorize(url))).location == "/" + "a" * 2000


@ensureDeferred
async def test_planted_cookies_do_not_prevent_a_sign_in(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        browser.cookies = {(f"sign-in-{number:012}", "/"): "x" * 60 for number in range(40)}
        browser.cookies["session", FORM] = "planted"
        url = await browser.begin()
        state = parameters(url)["state"]
        browser.cookies[f"sign-in-{state[:12]}", "/"] = "planted"
        assert (await browser.get(site.idp.authorize(url))).code == 302


@ensureDeferred
async def test_callback_is_used_once(tmp_path: Path) -> None:
    """Reloading it, the Back key, and a bookmark."""
    async with running(tmp_path) as site:
        browser = site.browser()
        url = await browser.begin()
        kept = {**browser.cookies}
        callback = site.idp.authorize(url)
        assert (await browser.get(callback)).code == 302
        for cookies in ({**browser.cookies}, kept):
            browser.cookies = cookies
            with captured() as lines:
                response = await browser.get(callback)
            assert response.code == 400
            assert f'<a href="{BEGIN}">Sign in with Example</a>' in response.text
            assert any(line.startswith("login refused: sign_in - from 127.0.0.1: example: state ") for line in lines)
        assert [name for name, _ in site.idp.requests].count("token") == 1
        program = await browser.get(callback, headers={"Accept": "*/*"})
        assert (program.code, program.text) == (400, "Bad Request\n")


@ensureDeferred
async def test_state_of_another_browser_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        alice, mallory = site.browser(), site.browser()
        callback = site.idp.authorize(await mallory.begin())
        await alice.begin()
        assert (await alice.get(callback)).code == 400
        assert [name for name, _ in site.idp.requests].count("token") == 0
        assert (await mallory.get(callback)).code == 302  # it was not used up by that


@ensureDeferred
async def test_code_is_not_sent_to_a_provider_that_has_got_the_id_since(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/logins.db"
    async with Provider(REACTOR) as other, running(tmp_path, arguments={"store": store}) as site:
        first = site.browser()
        callback = site.idp.authorize(await first.begin())
        trusted = provider("example", other.url, name="Example", client_id="app")
        async with Protection(REACTOR, providers=[trusted], sign_in=FORM, store=store) as protection:
            root = Resource()
            root.putChild(b"sign-in", protection.pages())
            async with Server(REACTOR, root, on_port=True) as server:
                again = Browser(server.url, server.client(), BEGIN)
                again.cookies = first.cookies
                # With the `iss` that would pass: not all providers send one.
                sent = {**parameters(callback), "iss": other.url}
                assert (await again.get(f"{CALLBACK}?{urlencode(sent)}")).code == 400
        assert "token" not in [name for name, _ in other.requests]


@ensureDeferred
async def test_error_uses_the_state_up(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        url = await browser.begin()
        state = parameters(url)["state"]
        kept = {**browser.cookies}
        query = urlencode({"error": "login_required", "state": state, "iss": site.idp.url})
        assert (await browser.get(f"{CALLBACK}?{query}")).code == 401
        browser.cookies = kept
        assert (await browser.get(f"{CALLBACK}?{query}")).code == 400
        assert (await browser.get(site.idp.authorize(url))).code == 400


@ensureDeferred
async def test_code_of_another_issuer_is_not_sent_on(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        for changed in ("https://other.example", None):
            browser = site.browser()
            callback = site.idp.authorize(await browser.begin())
            wanted = {**parameters(callback), "iss": changed}
            query = urlencode({name: value for name, value in wanted.items() if value is not None})
            assert (await browser.get(f"{CALLBACK}?{query}")).code == 400
        assert [name for name, _ in site.idp.requests] == ["authorization"] * 2


@ensureDeferred
@pytest.mark.parametrize(
    "error, alert",
    [
        ("access_denied", "Example did not sign you in: access was denied."),
        ("login_required", "Example did not sign you in."),
        ("<script>", "Example did not sign you in."),
    ],
)
async def test_error_of_the_provider_is_a_failed_sign_in(tmp_path: Path, error: str, alert: str) -> None:
    async with running(tmp_path) as site:
        for accept in (HTML["Accept"], "*/*"):
            browser = site.browser()
            state = parameters(await browser.begin("?next=/kept"))["state"]
            query = urlencode({"error": error, "error_description": "free text", "state": state, "iss": site.idp.url})
            with captured() as lines:
                response = await browser.get(f"{CALLBACK}?{query}", headers={"Accept": accept})
            assert response.code == 401
            assert response.headers.getRawHeaders("WWW-Authenticate")[0].startswith("Cookie realm=")
            assert "free text" not in response.text + "".join(lines)
            if accept == "*/*":
                assert response.text == "Login failed\n"
            else:
                assert f'role="alert">{alert}</p>' in response.text
                assert f'<a class="button" href="{BEGIN}?next=/kept">Sign in with Example</a>' in response.text
        assert any("example: the provider answers" in line for line in lines)


@ensureDeferred
@pytest.mark.parametrize(
    "fault, why",
    [
        ("token: invalid_grant", "the provider refuses the code: invalid_grant"),
        ("token: invalid_client", "the provider refuses the code: invalid_client"),
        ("token: no id_token", "has no ID token"),
        ("id_token: signature", "its signature is wrong"),
        ("id_token: aud of another client", "aud is missing, or another client"),
        ("id_token: alg none", "alg is not accepted here: none"),
        ("userinfo: sub of another user", "sub of UserInfo"),
    ],
)
async def test_refused_code_or_token_is_a_failed_sign_in(tmp_path: Path, fault: str, why: str) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        site.idp.fault = fault
        with captured() as lines:
            response = await browser.sign_in(site.idp)
        assert response.code == 401
        assert 'role="alert">Example did not sign you in.</p>' in response.text
        assert [
            line
            for line in lines
            if line.startswith("login refused: sign_in - from 127.0.0.1: example: ") and why in line
        ]
        assert not any(name == "session" for name, _ in browser.cookies)


@ensureDeferred
async def test_refused_codes_are_throttled_by_address(tmp_path: Path) -> None:
    async with running(tmp_path, arguments={"address_failures": 2, "failures": 2}) as site:
        site.idp.fault = "token: invalid_grant"
        codes = [(await site.browser().sign_in(site.idp)).code for _ in range(3)]
        assert codes == [401, 401, 429]
        response = await site.browser().sign_in(site.idp)
        assert response.headers.getRawHeaders("Retry-After") != [None]
        assert "Too many failed logins. Try again in" in response.text


@ensureDeferred
@pytest.mark.parametrize("fault", ["token: status 500", "token: not JSON", "token: redirect", "userinfo: status 500"])
async def test_provider_that_fails_is_503(tmp_path: Path, fault: str) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        site.idp.fault = fault
        with captured() as lines:
            response = await browser.sign_in(site.idp)
        assert (response.code, response.headers.getRawHeaders("Retry-After")) == (503, ["1"])
        assert 'role="alert">Example cannot be reached. Try again in 1 second.</p>' in response.text
        assert any(line.startswith(f"sign_in example: {site.idp.url}/") for line in lines)


@ensureDeferred
async def test_provider_that_asks_to_wait_gets_no_request(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        site.idp.fault = "token: status 429"
        response = await site.browser().sign_in(site.idp)
        assert (response.code, response.headers.getRawHeaders("Retry-After")) == (503, ["7"])
        site.idp.fault = ""
        assert (await site.browser().sign_in(site.idp)).code == 503
        assert [name for name, _ in site.idp.requests].count("token") == 1


@ensureDeferred
async def test_provider_that_hangs_is_503_after_a_limit(tmp_path: Path) -> None:
    reactor = HeldReactor()
    async with running(tmp_path, reactor=reactor) as site:
        site.idp.fault = "token: no response"
        signing_in = Deferred.fromCoroutine(site.browser().sign_in(site.idp, "?next=/kept"))
        await until_token_is_asked_for(site.idp)
        reactor.advance(REQUEST_MAX_S)
        response = await signing_in
        assert response.code == 503
        assert f'href="{BEGIN}?next=/kept"' in response.text


async def until_token_is_asked_for(idp: Provider) -> None:
    while not any(name == "token" for name, _ in idp.requests):
        await deferLater(REACTOR, 0.01)


@ensureDeferred
async def test_program_stops_while_a_provider_hangs(tmp_path: Path) -> None:
    """The request to the provider ends, and leaves no timer."""
    async with running(tmp_path) as site:
        site.idp.fault = "token: no response"
        signing_in = Deferred.fromCoroutine(site.browser().sign_in(site.idp))
        await until_token_is_asked_for(site.idp)
        await site.protection.stop()
        assert (await signing_in).code == 503


@ensureDeferred
@pytest.mark.parametrize(
    "fault",
    ["metadata: status 500", "metadata: issuer of another provider", "metadata: authorization_endpoint missing"],
)
async def test_unusable_discovery_is_503(tmp_path: Path, fault: str) -> None:
    async with Provider(REACTOR, client_secret=SECRET) as idp:
        idp.fault = fault
        trusted = provider("example", idp.url, name="Example", client_id="app")
        async with Protection(REACTOR, providers=[trusted], sign_in=FORM) as protection:
            root = Resource()
            root.putChild(b"sign-in", protection.pages())
            async with Server(REACTOR, root, on_port=True) as server:
                browser = Browser(server.url, server.client(), BEGIN)
                response = await browser.get(BEGIN)
                assert (response.code, browser.cookies) == (503, {})
                assert response.headers.getRawHeaders("Retry-After")
                assert "Example cannot be reached." in response.text
                program = await browser.get(BEGIN, headers={"Accept": "*/*"})
                assert (program.code, program.text) == (503, "Service Unavailable\n")


@ensureDeferred
async def test_keys_rotated_between_code_and_token_are_fetched(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        callback = site.idp.authorize(await browser.begin())
        site.idp.rotate_key()
        assert (await browser.get(callback)).code == 302


@ensureDeferred
async def test_fresh_sign_in_needs_an_authentication_of_now(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        assert (await site.browser().sign_in(site.idp, "?fresh=1")).code == 302
        for auth_time in (int(time.time()) - 3600, None):
            site.idp.id_token_claims = {"auth_time": auth_time}
            assert (await site.browser().sign_in(site.idp, "?fresh=1")).code == 401
            assert (await site.browser().sign_in(site.idp)).code == 302


@ensureDeferred
async def test_user_info_is_asked_for_missing_claims_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.browser().sign_in(site.idp)
        assert [name for name, _ in site.idp.requests].count("userinfo") == 1
        site.idp.id_token_claims = {"preferred_username": "ali"}
        browser = site.browser()
        await browser.sign_in(site.idp)
        assert [name for name, _ in site.idp.requests].count("userinfo") == 1
        assert (await browser.get("/who")).text.endswith(" ali")


@ensureDeferred
async def test_required_claim_is_checked(tmp_path: Path) -> None:
    async with running(tmp_path, required_claims={"groups": ["staff"]}) as site:
        assert (await site.browser().sign_in(site.idp)).code == 401
        site.idp.userinfo = {"groups": ["other", "staff"]}
        assert (await site.browser().sign_in(site.idp)).code == 302


@ensureDeferred
@pytest.mark.parametrize("auth", ["client_secret_basic", "client_secret_post", "none", "private_key_jwt"])
async def test_client_authenticates_as_the_provider_announces(tmp_path: Path, auth: str) -> None:
    key = ECKey.generate_key("P-256", {"kid": "k"})
    (tmp_path / "key").write_bytes(json.dumps(key.as_dict(private=True)).encode())
    client: dict[str, Any] = {"client_secret": SECRET}
    options: dict[str, Any] = {}
    if auth == "none":
        client, options = {"client_id": "app"}, {"client_secret_file": ""}
    if auth == "private_key_jwt":
        client, options = {"client_key": key.as_dict(private=False)}, {"client_key_file": str(tmp_path / "key")}
        options["client_secret_file"] = ""
    async with running(tmp_path, client=client, client_auth=[auth], **options) as site:
        assert (await site.browser().sign_in(site.idp)).code == 302


async def log_out(site: Site, **form: str) -> Any:
    url = f"{site.server.url}{BEGIN}/back-channel-logout"
    response: Any = await site.server.client().post(url, data=form)
    response.text = (await response.content()).decode()
    return response


@ensureDeferred
async def test_back_channel_logout_ends_the_session_that_it_names(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        first, second = site.browser(), site.browser()
        await first.sign_in(site.idp)
        await second.sign_in(site.idp)
        response = await log_out(site, logout_token=site.idp.logout_token())
        assert (response.code, response.headers.getRawHeaders("Cache-Control")) == (200, ["no-store"])
        assert [(await browser.get("/who")).code for browser in (first, second)] == [200, 302]
        response = await log_out(site, logout_token=site.idp.logout_token(sid=None))
        assert (response.code, (await first.get("/who")).code) == (200, 302)


@ensureDeferred
async def test_logout_token_is_used_once(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        await site.browser().sign_in(site.idp)
        token = site.idp.logout_token()
        assert [(await log_out(site, logout_token=token)).code for _ in range(2)] == [200, 400]


@ensureDeferred
async def test_wrong_logout_token_is_a_400_problem(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        await browser.sign_in(site.idp)
        for form in (
            {},
            {"logout_token": "opaque"},
            {"logout_token": site.idp.logout_token(aud="other")},
            {"logout_token": site.idp.logout_token(nonce="n")},
            {"logout_token": "x" * 9000},
        ):
            with captured() as lines:
                response = await log_out(site, **form)
            assert response.code == 400
            assert response.headers.getRawHeaders("Content-Type") == ["application/problem+json"]
            assert any("example: logout token: " in line for line in lines)
        assert (await browser.get("/who")).code == 200


@ensureDeferred
async def test_sign_out_goes_on_to_the_provider(tmp_path: Path) -> None:
    async with running(tmp_path, logout="provider") as site:
        browser = site.browser()
        await browser.sign_in(site.idp)
        page = await browser.get(f"{FORM}/logout")
        assert f"form-action 'self' {site.idp.url};" in page.headers.getRawHeaders("Content-Security-Policy")[0]
        kept = {**browser.cookies}
        response = await browser.get(f"{FORM}/logout", "POST")
        sent = parameters(response.location)
        assert response.code == 302
        assert response.location.startswith(f"{site.idp.url}/logout?")
        assert (sent["client_id"], sent["post_logout_redirect_uri"]) == ("app", f"{site.server.url}{FORM}")
        assert browser.cookies == {}
        browser.cookies = kept
        assert (await browser.get("/who")).code == 302
        ended = await site.idp.client().get(response.location, allow_redirects=False)
        await ended.content()
        assert (ended.code, site.idp.sessions) == (302, {})
        # Without a session it stays here.
        assert (await browser.get(f"{FORM}/logout", "POST")).location == FORM


@ensureDeferred
async def test_sign_out_stays_here_by_default(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        await browser.sign_in(site.idp)
        page = await browser.get(f"{FORM}/logout")
        assert "form-action 'self';" in page.headers.getRawHeaders("Content-Security-Policy")[0]
        assert (await browser.get(f"{FORM}/logout", "POST")).location == FORM
        assert len(site.idp.sessions) == 1


@ensureDeferred
async def test_form_has_buttons_and_no_fields_without_accounts(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(account("alice"))
    (tmp_path / "empty").write_text("")
    for users, has_fields in ((None, False), (tmp_path / "empty", False), (tmp_path / "users", True)):
        async with running(tmp_path, arguments={"users": users}) as site:
            browser = site.browser()
            page = await browser.get(f"{FORM}?next=/who")
            assert ('type="password"' in page.text) is has_fields
            assert f'<a class="button" href="{BEGIN}?next=/who">Sign in with Example</a>' in page.text
            program = await browser.get(FORM, headers={"Accept": "*/*"})
            assert 'type="password"' in program.text
            assert "Example" not in program.text


@ensureDeferred
async def test_reload_keeps_keys_and_sessions(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        browser = site.browser()
        await browser.sign_in(site.idp)
        url = await site.browser().begin()
        site.idp.fault = "metadata: status 500"
        await site.protection.reload(failures=3)
        assert (await browser.get("/who")).code == 200
        assert parameters(url).keys() == parameters(await browser.begin()).keys()
        assert (await browser.sign_in(site.idp)).code == 302


@ensureDeferred
async def test_sessions_of_another_client_id_are_not_valid(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/logins.db"
    async with running(tmp_path, arguments={"store": store}) as site:
        browser = site.browser()
        await browser.sign_in(site.idp)
        issuer = site.idp.url
        assert (await browser.get("/who")).code == 200
    for changed, code in (({}, 200), ({"user_claim": "email"}, 302), ({"client_id": "other"}, 302)):
        options: dict[str, Any] = {"client_id": "app", **changed}
        trusted = provider("example", issuer, name="Example", **options)
        async with (
            Protection(REACTOR, providers=[trusted], sign_in=FORM, store=store) as protection,
            Server(REACTOR, protection.protect(Who(), "session"), on_port=True) as server,
        ):
            again = Browser(server.url, server.client(), BEGIN)
            again.cookies = browser.cookies
            assert (await again.get("/who")).code == code


@each(
    "arguments, key",
    [
        ({"id": "A"}, "id"),
        ({"id": "session"}, "id"),
        ({"id": 1}, "id"),
        ({"issuer": "http://idp.example"}, "issuer"),
        ({"name": ""}, "name"),
        ({"client_id": ""}, "client_id"),
        ({"client_id": 1}, "client_id"),
        ({"scopes": ["profile"]}, "scopes"),
        ({"scopes": "openid"}, "scopes"),
        ({"client_auth": "basic"}, "client_auth"),
        ({"client_auth": "private_key_jwt"}, "client_auth"),
        ({"algorithms": ["HS256"]}, "algorithms"),
        ({"user_claim": ""}, "user_claim"),
        ({"required_claims": {"a": []}}, "required_claims"),
        ({"required_claims": ["a"]}, "required_claims"),
        ({"logout": "both"}, "logout"),
        ({"ca_file": None}, "ca_file"),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, Any], key: str) -> None:
    right = {"id": "example", "issuer": "https://idp.example", "name": "Example", "client_id": "app"}
    with pytest.raises(ValueError, match=f"^{key}: "):
        provider(**{**right, **arguments})


@each(
    "key, file, why",
    [
        ("client_secret_file", "none", "cannot be read"),
        ("client_secret_file", "empty", "has no text in its first line"),
        ("client_key_file", "none", "cannot be read"),
        ("client_key_file", "empty", "is not a private key"),
        ("ca_file", "none", "cannot be read"),
    ],
)
def test_file_that_cannot_be_used_is_named(tmp_path: Path, key: str, file: str, why: str) -> None:
    (tmp_path / "empty").write_text("\n")
    options: dict[str, Any] = {"client_id": "app", key: f"{tmp_path}/{file}"}
    trusted = provider("example", "https://idp.example", name="Example", **options)
    with pytest.raises(ValueError, match=re.escape(why)) as raised:
        Protection(REACTOR, providers=[trusted])
    assert str(raised.value).startswith(f"providers: example: {key}: {tmp_path}/{file}: {why}")


def test_providers_of_a_program_differ() -> None:
    one = provider("example", "https://idp.example", name="Example", client_id="app")
    for wrong in ([one, one], ["example"], one, "example"):
        with pytest.raises(ValueError, match=r"^providers: "):
            Protection(REACTOR, providers=cast(Any, wrong))


@ensureDeferred
async def test_user_of_a_provider_signs_in_by_a_passkey(tmp_path: Path) -> None:
    async with running(tmp_path, arguments={"passkeys": True}) as site:
        origin = site.server.url.replace("127.0.0.1", "localhost")
        device, browser = Authenticator(origin), Browser(origin, site.server.client(), BEGIN)
        await browser.sign_in(site.idp, "?fresh=1")
        options = json.loads((await browser.get(f"{FORM}/account/passkeys/options")).text)
        assert options["user"]["name"] == "Alice"
        fields = {"credential": device.create(options), "label": "phone"}
        added = await browser.get(f"{FORM}/account/passkeys", "POST", data=fields)
        assert (added.code, added.location) == (303, f"{FORM}/account/passkeys?done=added#done"), added.text
        other = Browser(origin, site.server.client(), BEGIN)
        request = json.loads((await other.get(f"{FORM}/login/passkey")).text)
        signed_in = await other.get(f"{FORM}/login/passkey", "POST", data={"credential": device.get(request)})
        assert (signed_in.code, signed_in.location) == (302, "/who"), signed_in.text
        shown = await other.get("/who")
        assert shown.text == f"{site.idp.url}#alice alice session {site.idp.url} Alice"
        token = site.idp.logout_token(sid=None)
        ended = await browser.get(f"{BEGIN}/back-channel-logout", "POST", data={"logout_token": token})
        assert ended.code == 200
        assert (await other.get("/who")).code == 302

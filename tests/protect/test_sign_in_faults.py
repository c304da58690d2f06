"""A sign-in at a provider that breaks one rule is refused: the log has the reason, the page has none of it."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from msgspec import Struct, field
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from postd.auth.sign_in import REQUEST_MAX_S
from postd.protect import Protection
from postd.reactor import IReactor
from postd.testing import Provider, Server
from postd.testing.credentials import Fields
from tests.held_reactor import HeldReactor

REACTOR = cast(IReactor, global_reactor)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
START = "/login/provider"

OUTAGES = {
    "metadata: issuer of another provider": "the document is not this issuer's",
    "metadata: issuer with a slash": "the document is not this issuer's",
    "metadata: authorization_endpoint missing": "no authorization_endpoint",
    "metadata: authorization_endpoint over http": "no authorization_endpoint",
    "metadata: authorization_endpoint is a script": "no authorization_endpoint",
    "metadata: token_endpoint missing": "no token_endpoint",
    "metadata: not JSON": "not a JSON object",
    "metadata: status 404": "404",
    "metadata: status 500": "500",
    "metadata: no response": "no response",
    "keys: none": "keys",
    "keys: not JSON": "keys",
    "keys: status 500": "500",
    "token: a list": "not a JSON object",
    "token: not JSON": "not a JSON object",
    "token: empty": "not a JSON object",
    "token: a megabyte": "more than 256 KiB",
    "token: redirect": "302",
    "token: status 429": "429",
    "token: status 500": "500",
    "token: status 503": "503",
    "token: no response": "no response",
    "userinfo: status 500": "500",
    "userinfo: no response": "no response",
}
"""Faults that are the provider's outages: 503, with what the log has of them."""

FOREIGN = {
    "authorization: iss missing": "iss is missing",
    "authorization: iss of another provider": "iss is another issuer",
    "authorization: iss twice": "iss is there twice",
    "authorization: state missing": "state is missing",
    "authorization: other state": "state is not that",
    "authorization: state twice": "state is there twice",
    "authorization: code missing": "code",
    "authorization: code empty": "code",
    "authorization: code twice": "code is there twice",
}
"""Authorization responses that belong to no sign-in, or may be another provider's: 400."""

REFUSALS = {
    "authorization: unknown code": "invalid_grant",
    "token: no id_token": "no ID token",
    "token: id_token is null": "no ID token",
    "token: id_token is a number": "no ID token",
    "token: id_token is not a JWT": "JWT",
    "token: no access_token": "access",
    "token: other token_type": "token_type",
    "token: invalid_grant": "invalid_grant",
    "token: invalid_client": "invalid_client",
    "id_token: iss of another provider": "iss is another issuer",
    "id_token: iss with a slash": "iss is another issuer",
    "id_token: iss missing": "iss is",
    "id_token: aud of another client": "aud",
    "id_token: aud missing": "aud",
    "id_token: aud empty": "aud",
    "id_token: several aud without azp": "azp is missing",
    "id_token: several aud, azp of another client": "azp is another client",
    "id_token: azp of another client": "azp is another client",
    "id_token: signature": "signature",
    "id_token: no signature": "signature",
    "id_token: key of another provider": "signature",
    "id_token: unknown kid": "no key",
    "id_token: key in its header": "no key",
    "id_token: alg none": "alg",
    "id_token: HS256 with the client secret": "alg",
    "id_token: HS256 with the public key": "alg",
    "id_token: critical extension": "crit",
    "id_token: encrypted": "encrypted",
    "id_token: typ of an access token": "typ",
    "id_token: typ of a logout token": "typ",
    "id_token: exp in the past": "exp",
    "id_token: exp missing": "exp",
    "id_token: exp is text": "exp",
    "id_token: iat in the future": "iat",
    "id_token: iat missing": "iat",
    "id_token: nbf in the future": "nbf",
    "id_token: nonce missing": "nonce",
    "id_token: other nonce": "nonce",
    "id_token: auth_time missing": "auth_time",
    "id_token: auth_time in the past": "auth_time",
    "id_token: at_hash of another token": "at_hash",
    "id_token: at_hash is a number": "at_hash",
    "id_token: sub missing": "sub",
    "id_token: sub empty": "sub",
    "id_token: sub is a number": "sub",
    "id_token: claim twice": "malformed",
    "userinfo: sub of another user": "sub of UserInfo",
    "userinfo: sub missing": "sub of UserInfo",
    "userinfo: not JSON": "UserInfo",
    "userinfo: status 401": "UserInfo",
}
"""Codes and tokens that are refused: 401."""

LOGOUTS = {
    "logout_token: typ of an access token": "typ",
    "logout_token: signature": "signature",
    "logout_token: key of another provider": "signature",
    "logout_token: alg none": "alg",
    "logout_token: HS256 with the client secret": "alg",
    "logout_token: iss of another provider": "iss",
    "logout_token: iss missing": "iss",
    "logout_token: aud of another client": "aud",
    "logout_token: aud missing": "aud",
    "logout_token: iat missing": "iat",
    "logout_token: iat in the past": "iat",
    "logout_token: iat in the future": "iat",
    "logout_token: exp missing": "exp",
    "logout_token: exp in the past": "exp",
    "logout_token: neither sub nor sid": "sub and sid",
    "logout_token: sub is a number": "sub",
    "logout_token: sid is a number": "sid",
    "logout_token: events missing": "events",
    "logout_token: events without the event": "events",
    "logout_token: events is a list": "events",
    "logout_token: event is text": "events",
    "logout_token: nonce": "nonce",
    "logout_token: jti missing": "jti",
    "logout_token: jti is a number": "jti",
    "logout: no logout_token": "logout_token",
    "logout: logout_token twice": "logout_token",
    "logout: not a JWT": "JWT",
    "logout: a megabyte": "",
}
"""Logout tokens: 400 (the last one 413), and the session stays."""

UNSEEN = {"grant: verifier is not checked"}
"""What an application cannot see by itself."""


class Answer(Struct):
    status: int
    fields: Mapping[str, str]
    body: str


class Visitor(Struct):
    """A browser of an application that has the form at its root."""

    provider: Provider
    server: Server
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, url: str, accept: str = BROWSER) -> Answer:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers: Fields = {"Accept": accept, **({"Cookie": cookie} if cookie else {})}
        response = await self.server.client().get(url, headers=headers, allow_redirects=False)
        fields = {name.decode(): values[-1].decode() for name, values in response.headers.getAllRawHeaders()}
        for cookie in response.headers.getRawHeaders("Set-Cookie", []):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies.pop(name, None)
            if value:
                self.cookies[name] = value
        return Answer(response.code, fields, await response.text())

    async def begin(self, query: str = "") -> Answer:
        return await self.get(f"{self.server.url}{START}{query}")

    async def sign_in(self, query: str = "", accept: str = BROWSER) -> Answer:
        begun = await self.begin(query)
        if begun.status != 302:
            return begun
        return await self.get(self.provider.authorize(begun.fields["Location"]), accept)

    async def until_asked(self, stage: str) -> None:
        """Wait until the provider has a request of a stage; that for metadata is made when the application starts."""
        while stage not in {"metadata", *(name for name, _ in self.provider.requests)}:
            await deferLater(REACTOR, 0.01)

    async def is_signed_in(self) -> bool:
        return (await self.get(f"{self.server.url}/")).status == 302


@asynccontextmanager
async def visit(fault: str = "", reactor: Any = REACTOR) -> AsyncIterator[Visitor]:
    """Yield a visitor of an application whose provider has a fault."""
    async with Provider(REACTOR) as provider:
        provider.fault = fault
        async with (
            Protection(reactor, providers=[provider.trusted()]) as protection,
            Server(REACTOR, protection.pages()) as server,
        ):
            yield Visitor(provider, server)


def lines_of(events: Sequence[dict[str, Any]]) -> str:
    """Return the log of postd; the access lines of a stock site are Twisted's, and have all of a URL."""
    return "\n".join(formatEvent(event) for event in events if event["log_namespace"].startswith("postd."))


def check_secrets(lines: str, visitor: Visitor) -> None:
    """Check that a log has no code, token, state or verifier."""
    for _, parameters in visitor.provider.requests:
        for name in ("code", "code_verifier", "state", "nonce", "id_token_hint"):
            assert parameters.get(name, "-" * 99) not in lines, name
    assert "eyJ" not in lines


def test_each_fault_is_tested() -> None:
    assert Provider.FAULTS.keys() == OUTAGES.keys() | FOREIGN.keys() | REFUSALS.keys() | LOGOUTS.keys() | UNSEEN


@pytest.mark.parametrize(
    ("faults", "status"), [(OUTAGES, 503), (FOREIGN, 400), (REFUSALS, 401)], ids=["outages", "foreign", "refusals"]
)
@ensureDeferred
async def test_fault_is_refused(faults: Mapping[str, str], status: int) -> None:
    pages, wrong = set(), {}
    for fault, reason in faults.items():
        reactor = HeldReactor()
        with capturedLogs() as events:
            async with visit(fault, reactor) as visitor:
                answering = Deferred.fromCoroutine(visitor.sign_in("?fresh=1" if "auth_time" in fault else ""))
                if "no response" in fault:
                    await visitor.until_asked(fault.partition(":")[0])
                    reactor.advance(REQUEST_MAX_S)
                answer = await answering
                is_signed_in = await visitor.is_signed_in()
        lines = lines_of(events)
        check_secrets(lines, visitor)
        pages.add(re.sub("in [0-9]+ seconds?", "later", answer.body))
        if (answer.status, is_signed_in, reason in lines) != (status, False, True):
            wrong[fault] = (answer.status, is_signed_in, lines)
        assert ("Retry-After" in answer.fields) == (status == 503), fault
    assert not wrong, "\n".join(f"{fault}: {seen}" for fault, seen in wrong.items())
    assert len(pages) == 1, "the page depends on the reason"


@ensureDeferred
async def test_logout_token_with_a_fault_ends_no_session() -> None:
    wrong = {}
    async with visit() as visitor:
        assert (await visitor.sign_in()).status == 302
        for fault, reason in LOGOUTS.items():
            visitor.provider.fault = fault
            with capturedLogs() as events:
                status = await visitor.provider.log_out_at(visitor.server)
            lines = lines_of(events)
            check_secrets(lines, visitor)
            if not (status in {400, 413} and reason in lines and await visitor.is_signed_in()):
                wrong[fault] = (status, lines)
        assert not wrong, "\n".join(f"{fault}: {seen}" for fault, seen in wrong.items())
        visitor.provider.fault = ""
        token = visitor.provider.logout_token()
        assert await visitor.provider.log_out_at(visitor.server, token) == 200
        assert not await visitor.is_signed_in()
        assert await visitor.provider.log_out_at(visitor.server, token) == 400


@ensureDeferred
async def test_logout_token_of_the_user_or_of_the_session_ends_it() -> None:
    for claims in ({"sid": None}, {"sub": None}, {}):
        async with visit() as visitor, visit() as other:
            for one in (visitor, other):
                assert (await one.sign_in()).status == 302
            token = visitor.provider.logout_token(**claims)
            assert await other.provider.log_out_at(other.server, token) == 400
            assert await visitor.provider.log_out_at(visitor.server, token) == 200
            assert [await one.is_signed_in() for one in (visitor, other)] == [False, True]


@ensureDeferred
async def test_right_sign_in_needs_no_log_line_of_refusal() -> None:
    async with visit() as visitor:
        with capturedLogs() as events:
            answer = await visitor.sign_in()
        assert (answer.status, answer.fields["Location"]) == (302, "/")
        assert await visitor.is_signed_in()
        assert "refused" not in lines_of(events)


@ensureDeferred
async def test_program_gets_text() -> None:
    for fault, status, text in (
        ("id_token: other nonce", 401, "Login failed\n"),
        ("authorization: other state", 400, ""),
        ("token: status 500", 503, ""),
    ):
        async with visit(fault) as visitor:
            answer = await visitor.sign_in(accept="*/*")
            assert (answer.status, answer.fields["Content-Type"]) == (status, "text/plain; charset=utf-8")
            assert answer.body == text or not text


@ensureDeferred
async def test_key_is_replaced_between_code_and_token() -> None:
    async with visit() as visitor:
        assert (await visitor.sign_in()).status == 302
        begun = await visitor.begin()
        back = visitor.provider.authorize(begun.fields["Location"])
        visitor.provider.rotate_key()
        assert (await visitor.get(back)).status == 302


@ensureDeferred
async def test_code_of_another_sign_in_is_refused() -> None:
    """A code that somebody else got, in the victim's callback: with PKCE, and by `nonce` where it is not checked."""
    for fault, reason in (("", "invalid_grant"), ("grant: verifier is not checked", "nonce")):
        async with visit(fault) as victim:
            mine, theirs = [
                parse_qs(urlsplit(victim.provider.authorize((await victim.begin()).fields["Location"])).query)
                for _ in range(2)
            ]
            query = urlencode({name: values[0] for name, values in mine.items()} | {"code": theirs["code"][0]})
            with capturedLogs() as events:
                answer = await victim.get(f"{victim.server.url}{START}/callback?{query}")
            assert (answer.status, reason in lines_of(events)) == (401, True)


@ensureDeferred
async def test_code_is_not_sent_to_the_provider_that_did_not_issue_it() -> None:
    """Mix-up (RFC 9207 §1): the answer of an attacker's provider at the honest one's callback, and the reverse."""
    async with visit("authorization: iss of another provider") as visitor:
        await visitor.sign_in()
        assert [name for name, _ in visitor.provider.requests] == ["authorization"]


@ensureDeferred
async def test_error_of_the_provider_is_not_shown() -> None:
    for error in ("access_denied", "login_required", "<script>alert(1)</script>", "x" * 5000):
        async with visit() as visitor:
            visitor.provider.error = error
            with capturedLogs() as events:
                answer = await visitor.sign_in()
            assert answer.status == 401
            assert error not in answer.body
            assert ("login refused" in lines_of(events), error * 2 in lines_of(events)) == (True, False)

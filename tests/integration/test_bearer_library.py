"""The checker, the keys and the guard in an application that is not postd: a resource of its own behind our front."""

import inspect
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, cast

import pytest
import treq
from pytest_twisted import async_yield_fixture, ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent
from twisted.web.http_headers import Headers
from twisted.web.pages import notFound
from twisted.web.resource import IResource, Resource
from twisted.web.static import Data

from postd.auth.bearer import BearerChecker
from postd.auth.bearer import Issuer as Trusted
from postd.auth.portal import CoroutinePortal
from postd.front.factory import HttpFactory
from postd.http.peer import PeerResolver
from postd.protect.bearer import AcceptedTokens, BearerCredentialFactory
from postd.protect.guard import Guard, ProtectedResource, Realm
from postd.protect.mounted import MountedResources
from postd.protocol.jwt import TokenPolicy
from postd.reactor import IReactor
from postd.settings.schema import Limits
from postd.settings.values import ByteCount
from tests.issuer import INTROSPECTION, Issuer, Key

AUDIENCE = "https://api.example"
KEY = Key.make("ES256")
CHALLENGE = 'Bearer realm="my realm"'
LINES_MAX = 15


class Echo(Resource):
    """The protected resource, which shows the owner of the token."""

    def getChild(self, path: bytes, request: Any) -> IResource:
        return notFound()

    def render_GET(self, request: Any) -> bytes:
        return f"hello {request.identity.account}".encode()

    def render_POST(self, request: Any) -> bytes:
        return b"%d bytes: %s" % (len(body := request.content.read()), body)


def hello(issuer: Issuer) -> bytes:
    return f"hello {issuer.issuer}#alice".encode()


def make_app() -> Resource:
    root = Echo()
    root.putChild(b"", Echo())
    root.putChild(b"child", Data(b"a child", "text/plain"))
    return root


def protect(resource: IResource, url: str, reactor: IReactor, **settings: Any) -> tuple[HttpFactory, Trusted]:
    issuer = Trusted(TokenPolicy(url, frozenset({AUDIENCE})), reactor=reactor, **settings)
    portal = CoroutinePortal(Realm(), [BearerChecker([issuer])])
    factory = BearerCredentialFactory(
        AcceptedTokens("my realm", [issuer], MountedResources()), ProtectedResource(PeerResolver())
    )
    root = Resource()
    root.putChild(b"open", Data(b"for all", "text/plain"))
    root.putChild(b"api", Guard(portal, [factory], resource))
    issuer.start()
    return HttpFactory(root, limits=Limits(max_body_bytes=ByteCount(1024**2)), reactor=reactor), issuer


@async_yield_fixture
async def issuer() -> AsyncIterator[Issuer]:
    with ExitStack() as stack:
        yield stack.enter_context(Issuer(AUDIENCE, KEY))
        await deferToThread(stack.close)  # connections may have to be ended here before they end there


@asynccontextmanager
async def serving(issuer: Issuer, **settings: Any) -> AsyncIterator[str]:
    """Serve the application; give its URL."""
    site, trusted = protect(make_app(), issuer.issuer, cast(IReactor, global_reactor), **settings)
    site.noisy = False
    port: Any = cast(Any, global_reactor).listenTCP(0, site, interface="127.0.0.1")
    try:
        yield f"http://127.0.0.1:{port.getHost().port}"
    finally:
        trusted.stop()
        await port.stopListening()


async def ask(method: str, url: str, token: str | None = None, **options: Any) -> tuple[int, bytes, list[str]]:
    """Return the status, the body, and the challenges of an answer."""
    headers = Headers({} if token is None else {"Authorization": [f"Bearer {token}"]})
    answer = await treq.request(method, url, headers=headers, persistent=False, **options)
    return answer.code, await answer.content(), answer.headers.getRawHeaders("WWW-Authenticate", [])


def test_protection_takes_few_lines() -> None:
    """docs/how-to/protect.md has them, too."""
    assert len(inspect.getsource(protect).splitlines()) < LINES_MAX


@ensureDeferred
async def test_missing_token_is_challenged(issuer: Issuer) -> None:
    async with serving(issuer) as url:
        assert await ask("GET", f"{url}/open") == (200, b"for all", [])
        for method in ("GET", "POST", "DELETE"):
            assert await ask(method, f"{url}/api") == (401, b"Unauthorized\n", [CHALLENGE])
        assert await ask("GET", f"{url}/api/child") == (401, b"Unauthorized\n", [CHALLENGE])


@ensureDeferred
async def test_valid_token_is_accepted(issuer: Issuer) -> None:
    async with serving(issuer) as url:
        assert await ask("GET", f"{url}/api", issuer.token()) == (200, hello(issuer), [])
        assert await ask("GET", f"{url}/api/", issuer.token()) == (200, hello(issuer), [])


@ensureDeferred
@pytest.mark.parametrize("body", [b"a body", b"x" * 1_000_000])
async def test_request_body_reaches_the_resource(issuer: Issuer, body: bytes) -> None:
    """Also the first one, while the keys are being fetched."""
    async with serving(issuer) as url:
        for _ in range(2):
            status, answered, _ = await ask("POST", f"{url}/api", issuer.token(), data=body)
            assert (status, answered) == (200, b"%d bytes: %s" % (len(body), body))


@ensureDeferred
async def test_child_resources_are_protected(issuer: Issuer) -> None:
    async with serving(issuer) as url:
        for _ in range(2):
            assert await ask("GET", f"{url}/api/child", issuer.token()) == (200, b"a child", [])
        assert (await ask("GET", f"{url}/api/missing", issuer.token()))[0] == 404
        assert (await ask("HEAD", f"{url}/api/child", issuer.token()))[:2] == (200, b"")


@ensureDeferred
async def test_invalid_token_is_401(issuer: Issuer) -> None:
    refused = f'{CHALLENGE}, error="invalid_token", error_description="The access token is invalid"'
    expired = f'{CHALLENGE}, error="invalid_token", error_description="The access token expired"'
    async with serving(issuer) as url:
        for token in ("made-up", issuer.token(aud="https://elsewhere.example"), issuer.token(Key.make("ES256"))):
            assert await ask("GET", f"{url}/api", token) == (401, b"Unauthorized\n", [refused])
        assert await ask("GET", f"{url}/api", issuer.token(exp=1)) == (401, b"Unauthorized\n", [expired])


@ensureDeferred
async def test_missing_scope_is_403(issuer: Issuer) -> None:
    forbidden = f'{CHALLENGE}, error="insufficient_scope", scope="api:write"'
    async with serving(issuer, read_scope="api:read", write_scope="api:write") as url:
        reader = issuer.token(scope="api:read")
        assert await ask("GET", f"{url}/api", reader) == (200, hello(issuer), [])
        assert await ask("POST", f"{url}/api", reader, data=b"a") == (403, b"Forbidden\n", [forbidden])
        writer = issuer.token(scope="api:write")
        assert await ask("POST", f"{url}/api", writer, data=b"a") == (200, b"1 bytes: a", [])


@ensureDeferred
async def test_opaque_token_is_accepted(issuer: Issuer) -> None:
    issuer.active["an-opaque-token"] = issuer.claims()
    async with serving(issuer, introspection_endpoint=issuer.origin + INTROSPECTION) as url:
        assert await ask("GET", f"{url}/api", "an-opaque-token") == (200, hello(issuer), [])
        assert (await ask("GET", f"{url}/api", "another"))[0] == 401


@ensureDeferred
async def test_unreachable_issuer_is_503(issuer: Issuer) -> None:
    """Without a challenge, on which a client would drop a valid token; requests without a token are unaffected."""
    issuer.stop()
    async with serving(issuer) as url:
        headers = Headers({"Authorization": [f"Bearer {issuer.token()}"]})
        answer = await treq.get(f"{url}/api", headers=headers, persistent=False)
        assert (answer.code, answer.headers.getRawHeaders("WWW-Authenticate")) == (503, None)
        assert answer.headers.getRawHeaders("Retry-After") == ["1"]
        assert await answer.text() == "Service Unavailable\n"
        assert await ask("GET", f"{url}/api") == (401, b"Unauthorized\n", [CHALLENGE])
        assert (await ask("GET", f"{url}/open"))[0] == 200


@ensureDeferred
async def test_held_keys_outlive_the_issuer(issuer: Issuer) -> None:
    async with serving(issuer) as url:
        assert (await ask("GET", f"{url}/api", issuer.token()))[0] == 200
        issuer.stop()
        assert (await ask("GET", f"{url}/api", issuer.token()))[0] == 200


@ensureDeferred
async def test_log_has_no_token_and_no_traceback(issuer: Issuer) -> None:
    tokens = [issuer.token(), issuer.token(exp=1), "made-up"]
    with capturedLogs() as events:
        async with serving(issuer) as url:
            for token in tokens:
                await ask("GET", f"{url}/api", token)
    assert [event for event in events if "log_failure" in event] == []
    lines = [formatEvent(event) or "" for event in events]
    assert [line for line in lines if any(token in line for token in tokens)] == []

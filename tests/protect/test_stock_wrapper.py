"""Factories and checkers of `Protection` in stock `twisted.web.guard`, and protected parts of a Klein application."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import treq
from klein import Klein
from pytest_twisted import ensureDeferred
from twisted.cred.error import LoginFailed
from twisted.cred.portal import IRealm, Portal
from twisted.web.guard import HTTPAuthSessionWrapper
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site
from twisted.web.static import Data
from twisted.web.test.requesthelper import DummyChannel
from zope.interface import implementer

from postd.client import AuthClient, Basic, Digest
from postd.protect import Protection, identity
from tests.client.server import REACTOR
from tests.web.clients import PASSWORD, account


@implementer(IRealm)
class GreetingRealm:
    def requestAvatar(self, avatarId: bytes | tuple[()], mind: object, *interfaces: object) -> Any:
        return IResource, Data(b"Hello %b" % bytes(avatarId), "text/plain"), lambda: None


@ensureDeferred
@pytest.mark.parametrize("store", ["memory:", "sqlite:logins.db"])
async def test_first_request_to_a_stock_wrapper_is_challenged(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that has to be waited for, too: the wrapper itself waits for no challenge."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users").write_text(account("alice"))
    async with Protection(REACTOR, users="users", store=store) as protection:
        portal = Portal(GreetingRealm(), protection.portal.checkers.values())
        root = Resource()
        root.putChild(b"private", HTTPAuthSessionWrapper(portal, protection.factories.values()))
        port = REACTOR.listenTCP(0, Site(root), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}/private"
        try:
            assert (await treq.get(url, persistent=False)).code == 401
            for auth in (Digest("alice", PASSWORD), Basic("alice", PASSWORD)):
                async with AuthClient(REACTOR, url, auth) as client:
                    assert await (await client.get(url)).text() == "Hello alice"
        finally:
            await port.stopListening()


def test_credentials_for_another_url_fail_as_a_login_does(tmp_path: Path) -> None:
    """The wrapper answers 401 then, and 500 for any other exception."""
    (tmp_path / "users").write_text(account("alice"))
    factory = Protection(REACTOR, users=tmp_path / "users").factories["digest"]
    sent = b'username="alice", realm="postd", nonce="x", uri="/other", response="%b", qop=auth, nc=00000001, cnonce="x"'
    request = Request(DummyChannel())
    request.method, request.uri, request.path = b"GET", b"/private", b"/private"
    with pytest.raises(LoginFailed, match="uri"):
        factory.decode(sent % (b"0" * 32), request)


def test_cross_site_write_fails_as_a_login_does(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(account("alice"))
    factory = Protection(REACTOR, users=tmp_path / "users").factories["basic"]
    request = Request(DummyChannel())
    request.method, request.uri, request.path = b"POST", b"/private", b"/private"
    factory.decode(b64encode(b"alice:x"), request)
    request.requestHeaders.setRawHeaders(b"Origin", [b"http://evil.example"])
    with pytest.raises(LoginFailed, match="another site"):
        factory.decode(b64encode(b"alice:x"), request)


@ensureDeferred
async def test_part_of_a_klein_application_is_protected(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(account("alice"))
    app, inner = Klein(), Klein()

    @inner.route("/")
    @inner.route("/sub")
    def show(request: Any) -> str:
        found = identity(request)
        return f"{found and found.name} at {request.path.decode()}"

    app.route("/")(show)
    async with Protection(REACTOR, users=tmp_path / "users") as protection:
        protected = protection.protect(inner.resource(), "basic")

        @app.route("/staff/", branch=True)
        def staff(_request: Any) -> IResource:
            return protected

        port = REACTOR.listenTCP(0, Site(app.resource()), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}"
        try:
            assert (await treq.get(f"{url}/staff/", persistent=False)).code == 401
            async with AuthClient(REACTOR, url, Basic("alice", PASSWORD)) as client:
                assert await (await client.get(f"{url}/")).text() == "None at /"
                assert await (await client.get(f"{url}/staff/")).text() == "alice at /staff/"
                assert await (await client.get(f"{url}/staff/sub")).text() == "alice at /staff/sub"
        finally:
            await port.stopListening()

"""A program with a `Protection` on a stock site, and a client in memory."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast
from unittest.mock import patch
from urllib.parse import urlencode

from twisted.cred.checkers import ICredentialsChecker, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import IUsernamePassword
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.web.resource import IResource, Resource
from zope.interface import implementer

from postd.protect import Identity, Protection, identity
from postd.protect.schemes.issuers import Issuers
from postd.protocol.jwk import decode_key_set
from postd.reactor import IReactor
from tests.helpers import InlineHashThreads, InMemoryApi, Response, result_of
from tests.http.fronts import make_stock_site
from tests.issuer import Key, Mint
from tests.protect.test_bearer import FixedKeySource
from tests.web.clients import PASSWORD, Proof, challenges_in
from tests.web.wire import FORM, ask

ISSUER, AUDIENCE = "https://idp.example", "https://app.example"
MINT = Mint(ISSUER, AUDIENCE, Key.make("ES256", "the-key"), now=time.time)
STOCK = InMemoryUsernamePasswordDatabaseDontUse(alice=PASSWORD.encode())


class Name(Resource):
    """A resource of an application: its body says who the client is, `at` is the path below the guard."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Identity | None] = []

    def render_GET(self, request: Any) -> bytes:
        client = identity(request)
        self.clients.append(client)
        at = b"/".join(request.postpath)
        return b"open" if client is None else f"{client.name} {client.scheme} {client.issuer} {at.decode()}".encode()

    def render_POST(self, request: Any) -> bytes:
        return self.render_GET(request)


class Program:
    """A program with a `Protection` on a stock site, and a clock that stands still; `tests.web.wire` is the client."""

    def __init__(self, **arguments: Any) -> None:
        self.clock = MemoryReactorClock()
        self.clock.rightNow = InMemoryApi.START_S
        with patch("postd.protect.assembly.HashThreads", InlineHashThreads):
            self.protection = Protection(cast(IReactor, self.clock), **arguments)
        for _, issuers in self.protection._authentication.background:  # noqa: SLF001 - else it would fetch their keys
            assert isinstance(issuers, Issuers)
            for one in issuers.by_source.values():
                keys: Any = one.keys
                keys.find = FixedKeySource(decode_key_set(json.dumps(MINT.key_set()).encode())).find
        self.name = Name()
        self.root = Resource()
        self.site = make_stock_site(self.root, self.clock)

    def mount(self, path: str, *schemes: Any, resource: IResource | None = None, **more: Any) -> None:
        guarded = self.protection.protect(self.name if resource is None else resource, *schemes, **more)
        self.root.putChild(path.encode(), guarded)

    def get(self, path: str, headers: Mapping[str, Any] | None = None, method: str = "GET", **more: Any) -> Response:
        return ask(self, method, path, headers=headers, **more)

    def start(self) -> None:
        result_of(self.protection.start())

    def stop(self) -> None:
        result_of(self.protection.stop())


MakeProgram = Callable[..., Program]


def bearer(token: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {token}"}


def digest(program: Program, path: str = "/digest", **parts: str) -> dict[str, Any]:
    nonce = challenges_in(program.get(path))[0].nonce
    return Proof(**{"nonce": nonce, "uri": path, **parts}).headers()


def log_in(program: Program, path: str = "/login", **more: Any) -> dict[str, Any]:
    form = urlencode({"username": "alice", "password": PASSWORD}).encode()
    cookie = ask(program, "POST", path, form, {"Content-Type": FORM}, **more).header("Set-Cookie") or ""
    return {"Cookie": cookie.partition(";")[0]}


@implementer(ICredentialsChecker)
class PendingChecker:
    """A stock checker whose answers a test gives."""

    credentialInterfaces = (IUsernamePassword,)

    def __init__(self) -> None:
        self.answer: Deferred[Any] = Deferred()

    def requestAvatarId(self, _credentials: Any) -> Deferred[Any]:
        self.answer = Deferred()
        return self.answer


def waits(program: Program) -> list[Any]:
    """Return what is left on the clock, without what the site has there for a connection."""
    return [call for call in program.clock.getDelayedCalls() if "HTTPChannel" not in str(call)]

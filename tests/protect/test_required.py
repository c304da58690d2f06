"""`Protection.required` before routes of Klein, and `wsgi` before applications of WSGI."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import treq
from klein import Klein
from pytest_twisted import ensureDeferred
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import deferLater
from twisted.web.resource import IResource
from twisted.web.server import Site
from twisted.web.static import Data
from twisted.web.template import Element, TagLoader, tags
from werkzeug.exceptions import NotFound

from postd.client import AuthClient, Basic, Digest
from postd.protect import Protection, identity, wsgi
from tests.cases import each
from tests.client.server import REACTOR
from tests.http.fronts import make_stock_site
from tests.protect.program import STOCK, PendingChecker, Program, waits
from tests.web.clients import PASSWORD, account, basic
from tests.web.wire import begin


class Greeting(Element):
    loader = TagLoader(tags.p("rendered"))


class Application:
    """A Klein application with a route for each kind of result."""

    def __init__(self, protection: Protection) -> None:
        self.app = app = Klein()
        self.called: list[str] = []
        required = protection.required("basic")

        @app.route("/text/<name>")
        @required
        def text(request: Any, name: str) -> str:
            client = identity(request)
            self.called.append(name)
            return f"{client and client.name} {name}"

        @app.route("/bytes")
        @required
        def in_bytes(_request: Any) -> bytes:
            return b"bytes"

        @app.route("/deferred")
        @required
        def deferred(_request: Any) -> "Deferred[str]":
            return succeed("deferred")

        @app.route("/coroutine")
        @required
        async def coroutine(_request: Any) -> str:
            return await succeed("coroutine")

        @app.route("/element")
        @required
        def element(_request: Any) -> Element:
            return Greeting()

        @app.route("/tree/", branch=True)
        @required
        def tree(_request: Any) -> IResource:
            resource = Data(b"tree", "text/plain")
            resource.isLeaf = True
            return resource

        @app.route("/missing")
        @required
        def missing(_request: Any) -> str:
            raise NotFound

        @app.route("/bob", methods=["GET", "POST"])
        @protection.required("basic", users=["bob"])
        def bob(_request: Any) -> str:
            return "bob"

        @app.route("/open")
        def is_open(request: Any) -> str:
            return str(identity(request))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "users").write_text(account("alice") + account("bob"))
    program = Program(users=tmp_path / "users")
    program.start()
    yield program
    program.stop()


@pytest.fixture
def application(program: Program) -> Application:
    made = Application(program.protection)
    program.site = make_stock_site(made.app.resource(), program.clock)
    return made


@each(
    "path, body",
    [
        ("/text/x", b"alice x"),
        ("/bytes", b"bytes"),
        ("/deferred", b"deferred"),
        ("/coroutine", b"coroutine"),
        ("/element", b"<!DOCTYPE html>\n<p>rendered</p>"),
        ("/tree/", b"tree"),
        ("/tree/below", b"tree"),
    ],
)
@pytest.mark.usefixtures("application")
def test_route_responds_as_without_protection(program: Program, path: str, body: bytes) -> None:
    answer = program.get(path, basic())
    assert (answer.status, answer.body) == (200, body)
    assert (answer.header("Cache-Control"), answer.header("Vary")) == ("private", "Authorization")


def test_route_is_not_called_without_right_credentials(program: Program, application: Application) -> None:
    for headers in ({}, basic(password="x"), basic("eve")):
        answer = program.get("/text/x", headers)
        assert (answer.status, answer.body) == (401, b"Unauthorized\n")
        assert answer.header("WWW-Authenticate") == 'Basic realm="postd"'
    assert application.called == []


@pytest.mark.usefixtures("application")
def test_rule_is_that_of_the_route(program: Program) -> None:
    assert program.get("/bob", basic("bob")).body == b"bob"
    assert program.get("/bob", basic()).status == 403
    assert program.get("/bob", {**basic("bob"), "Origin": "http://evil.example"}, "POST").status == 403
    assert program.get("/open", basic()).body == b"None"


@pytest.mark.usefixtures("application")
def test_errors_are_those_of_klein_and_of_the_guard(program: Program) -> None:
    assert program.get("/missing", basic()).status == 404
    assert program.get("/text/x", {"Authorization": ["Basic x"] * 2}).status == 400
    for _ in range(10):
        program.get("/text/x", basic(password="x"))
    answer = program.get("/text/x", basic())
    assert (answer.status, answer.header("Retry-After")) == (429, "300")


def test_login_of_a_route_continues_when_the_client_disconnects() -> None:
    checker = PendingChecker()
    program = Program(users=checker, failures=1)
    program.start()
    application = Application(program.protection)
    program.site = make_stock_site(application.app.resource(), program.clock)
    for answer in (succeed(b"alice"), fail(UnauthorizedLogin())):
        begin(program, "GET", "/text/x", headers=basic()).disconnect()
        assert not checker.answer.called
        answer.chainDeferred(checker.answer)
    assert application.called == []  # there is no client any more
    assert program.get("/text/x", basic()).status == 429  # the failure was counted
    program.stop()
    assert not waits(program)


def test_methods_of_an_instance_may_be_routes(program: Program) -> None:
    required = program.protection.required("basic")

    class Pages:
        app = Klein()

        @app.route("/")
        @required
        def show(self, request: Any) -> str:
            client = identity(request)
            return f"{type(self).__name__} {client and client.name}"

    program.site = make_stock_site(Pages().app.resource(), program.clock)
    assert program.get("/", basic()).body == b"Pages alice"


@pytest.mark.parametrize(
    ("schemes", "more", "name"),
    [((), {}, "schemes"), (("oauth",), {}, "schemes"), (("basic",), {"users": "alice"}, "users")],
)
def test_error_names_the_argument(program: Program, schemes: Any, more: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"\A{name}: "):
        program.protection.required(*schemes, **more)


def environment(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Respond with the variables of the client."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    names = ("REMOTE_USER", "AUTH_TYPE", "HTTP_AUTHORIZATION", "PATH_INFO", "REQUEST_METHOD")
    body = environ["wsgi.input"].read()
    return [" ".join(str(environ.get(name)) for name in names).encode("latin-1"), b" ", body]


@ensureDeferred
async def test_wsgi_application_gets_the_identity_and_no_credentials(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(account("alice") + account("jürgen"))
    async with Protection(REACTOR, users=tmp_path / "users") as protection:
        root = wsgi(protection, environment, "digest", "basic", users=["alice", "jürgen"])
        port = REACTOR.listenTCP(0, Site(root), interface="127.0.0.1")
        url = f"http://127.0.0.1:{port.getHost().port}/x"
        try:
            assert (await treq.get(url, persistent=False)).code == 401
            forged: Any = {"Remote-User": "eve", "Remote_User": "eve", "Auth-Type": "x"}
            for auth, expected in (
                (Digest("alice", PASSWORD), "alice digest"),
                (Basic("alice", PASSWORD), "alice basic"),
                (Basic("jürgen", PASSWORD), "jürgen basic"),
            ):
                async with AuthClient(REACTOR, url, auth) as client:
                    answer = await client.post(url, data=b"body", headers=forged)
                    assert (await answer.content()).decode() == f"{expected} None /x POST body"
        finally:
            await port.stopListening()
            await deferLater(REACTOR, 0)


def test_error_of_a_wsgi_application_names_the_argument(program: Program) -> None:
    for protection in (None, "x", Protection, program.protection.portal):
        with pytest.raises(ValueError, match=r"\Aprotection: expected a Protection"):
            wsgi(protection, environment, "basic")  # type: ignore[arg-type]
    for application in (None, "x", object()):
        with pytest.raises(ValueError, match=r"\Aapplication: "):
            wsgi(program.protection, application, "basic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\Aschemes: digest needs a user file"):
        wsgi(Program(users=STOCK).protection, environment, "digest")

"""`postd.protect.Protection` on a stock site (contract: Protecting other applications)."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any, cast, get_args
from unittest.mock import patch
from urllib.parse import quote, urlencode

import pytest
from klein import Klein
from twisted.cred.checkers import FilePasswordDB, ICredentialsChecker
from twisted.cred.error import UnauthorizedLogin
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.web.guard import HTTPAuthSessionWrapper
from twisted.web.iweb import ICredentialFactory
from twisted.web.resource import IResource, Resource
from zope.interface import implementer
from zope.interface.verify import verifyObject

from postd.auth.credentials import IBearerCredentials, IDigestCredentials, IPasswordCredentials
from postd.auth.introspection import REQUESTS_MAX
from postd.protect import Protection, identity, issuer
from postd.protect.protection import STORE_WAIT_MAX_S
from postd.protocol.personal_token import make_token
from postd.reactor import IReactor
from postd.scheme_names import SCHEMES, SchemeName
from tests.cases import each
from tests.helpers import InlineHashThreads, Response, result_of
from tests.http.fronts import make_stock_site
from tests.protect.program import (
    AUDIENCE,
    ISSUER,
    MINT,
    STOCK,
    MakeProgram,
    Name,
    PendingChecker,
    Program,
    bearer,
    digest,
    log_in,
    waits,
)
from tests.web.clients import PASSWORD, Proof, account, basic, challenges_in
from tests.web.wire import FORM, ask, begin


@pytest.fixture
def make(make_program: MakeProgram) -> MakeProgram:
    """A function that makes and starts a program."""
    return make_program


@pytest.fixture
def program(make: MakeProgram) -> Program:
    """One with all schemes."""
    program = make(issuers=[issuer(ISSUER, audience=AUDIENCE)])
    for path in ("basic", "digest", "session", "bearer"):
        program.mount(path, path)
    program.mount("all", "basic", "digest", "session", "bearer")
    program.root.putChild(b"", program.protection.pages())
    for name in (b"login", b"logout"):
        program.root.putChild(name, program.protection.pages().getChildWithDefault(name, cast(Any, None)))
    return program


class ArgumentTests:
    NUMBERS = ("nonce_lifetime_s", "window_s", "session_idle_s", "session_lifetime_s")
    COUNTS = ("failures", "address_failures", "account_failures")

    @each(
        "name, value",
        [
            *(("realm", value) for value in ("", 'a"b', "a\\b", "bücher", "a\nb", 5, None, b"postd")),
            *(("users", value) for value in ("", 5, b"users", type(STOCK), ["alice"], object())),
            *(("issuers", value) for value in ("", ISSUER, 5, [ISSUER], issuer(ISSUER, audience="x"), [None])),
            ("issuers", [issuer(ISSUER, audience="x"), issuer(ISSUER, audience="y")]),
            ("issuers", [issuer(ISSUER, audience="x", ca_file="/nowhere")]),
            *(("store", value) for value in ("", "memory", "memory:x", "sqlite:", "redis:", "mysql://x", 5, None)),
            *(("digest_algorithms", value) for value in ("MD5", "", (), ["SHA-512"], ["md5"], [5], 5, None, [""])),
            *((name, value) for name in (*NUMBERS, *COUNTS) for value in (0, -1, True, False, "5", None, [5])),
            *((name, value) for name in NUMBERS for value in (float("nan"), float("inf"), 1e308, 3650 * 86400 + 1)),
            *((name, value) for name in COUNTS for value in (1.5, 10.0)),
            *(("sign_in", value) for value in ("", "x", "//x", "/x?y", "/x#y", "/ä", "/ x", 5, None, b"/")),
            *(
                ("trusted_proxies", value)
                for value in ("10.0.0.0/8", "unix", ["x"], [""], [5], 5, None, ["10.0.0.1/8"])
            ),
        ],
    )
    def test_error_of_an_argument_names_it(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"\A{name}: "):
            Protection(cast(IReactor, MemoryReactorClock()), **{name: value})

    @pytest.mark.parametrize("value", [None, "users", Clock, FilePasswordDB("users")])
    def test_reactor_is_one(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"\Areactor: expected a reactor, got "):
            Protection(value)

    def test_error_of_the_user_file_names_the_argument(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text("alice:secret\n")
        for users in (tmp_path / "users", str(tmp_path / "users"), tmp_path):
            with pytest.raises(ValueError, match=r"\Ausers: "):
                Protection(cast(IReactor, MemoryReactorClock()), users=users)

    def test_error_of_a_store_does_not_show_its_password(self) -> None:
        with pytest.raises(ValueError, match=r"\Astore: ") as caught:
            Protection(cast(IReactor, MemoryReactorClock()), store="redis://user:s3cret@host:port")
        assert "s3cret" not in str(caught.value)

    @each(
        "name, value",
        [
            *(("url", value) for value in ("", "x", "ftp://x", 5, None)),
            *(("audience", value) for value in ("", [], [""], [5], 5, None, b"x")),
            *(("algorithms", value) for value in ("ES256", [], ["HS256"], ["none"], 5, [5])),
            *(("token_types", value) for value in ("JWT", [], [""], 5)),
            *(("scope_claims", value) for value in ("scope", [""], 5)),
            *(("user_claim", value) for value in ("", 5, None)),
            *((name, value) for name in ("read_scope", "write_scope") for value in ('a"b', 5, None, ["a"])),
            *((name, value) for name in ("jwks_uri", "introspection_endpoint") for value in ("x", "ftp://x", 5)),
            *(("required_claims", value) for value in ("x", ["x"])),
            ("required_claims", {"x": None}),
            ("required_claims", {"x": []}),
            ("required_claims", {"x": [None]}),
            *(("leeway", value) for value in (True, -1, "x", None, float("nan"), float("inf"))),
            *(("ca_file", value) for value in (5, None)),
            ("client_secret_file", "secret"),
        ],
    )
    def test_error_of_an_argument_of_an_issuer_names_it(self, name: str, value: Any) -> None:
        arguments: dict[str, Any] = {"url": ISSUER, "audience": AUDIENCE, name: value}
        with pytest.raises(ValueError, match=rf"\A{name}: "):
            issuer(arguments.pop("url"), **arguments)

    @each(
        "schemes, more, name",
        [
            *(((), {}, "schemes"), (("Basic",), {}, "schemes"), (("form",), {}, "schemes"), (("",), {}, "schemes")),
            *(
                (("basic", "oauth"), {}, "schemes"),
                ((["basic", "digest"],), {}, "schemes"),
                (("bearer",), {}, "schemes"),
            ),
            *((("basic",), {"users": users}, "users") for users in ("alice", 5, None, [5], [""])),
            *((("basic",), {"read_scope": scope}, "read_scope") for scope in ('a"b', 5, None, ["a"])),
            *((("basic",), {"write_scope": scope}, "write_scope") for scope in ('a"b', 5, None, ["a"])),
        ],
    )
    def test_error_of_what_is_protected_names_the_argument(
        self, make: MakeProgram, schemes: tuple[Any, ...], more: dict[str, Any], name: str
    ) -> None:
        with pytest.raises(ValueError, match=rf"\A{name}: "):
            make().protection.protect(Resource(), *schemes, **more)

    def test_names_of_schemes_are_those_of_the_server(self) -> None:
        assert {*get_args(SchemeName)} <= {*SCHEMES}

    def test_error_without_schemes_lists_them(self, make: MakeProgram) -> None:
        with pytest.raises(ValueError, match="one or more of digest, bearer, basic, session, token"):
            make().protection.protect(Resource())

    def test_only_a_resource_can_be_protected(self, make: MakeProgram) -> None:
        for resource in (None, "x", Resource, lambda _: b""):
            with pytest.raises(ValueError, match=r"\Aresource: "):
                make().protection.protect(cast(Any, resource), "basic")

    def test_stock_checker_has_no_digest(self, make: MakeProgram) -> None:
        with pytest.raises(ValueError, match="schemes: digest needs a user file"):
            make(users=STOCK).protection.protect(Resource(), "basic", "digest")

    def test_schemes_need_users_or_issuers(self, make: MakeProgram) -> None:
        protection = make(users=None).protection
        for scheme in ("basic", "digest", "session"):
            with pytest.raises(ValueError, match=f"schemes: {scheme} needs users"):
                protection.protect(Resource(), scheme)
        with pytest.raises(ValueError, match="schemes: bearer needs issuers"):
            protection.protect(Resource(), "bearer")
        with pytest.raises(ValueError, match="pages: "):
            protection.pages()
        with pytest.raises(ValueError, match="metadata: "):
            protection.metadata()

    @each("after", ["", "x", "//evil.example", "https://evil.example", "/x\r\nX: y", 5, None])
    def test_error_of_the_page_after_signing_in_names_the_argument(self, make: MakeProgram, after: Any) -> None:
        with pytest.raises(ValueError, match=r"\Aafter: "):
            make().protection.pages(after)

    def test_it_is_started_once(self, make: MakeProgram) -> None:
        with pytest.raises(RuntimeError):
            make().start()


class IdentityTests:
    def test_identity_says_who_the_client_is(self, program: Program) -> None:
        for path, headers, said in (
            ("/basic", basic(), b"alice basic  "),
            ("/digest", digest(program), b"alice digest  "),
            ("/session", log_in(program), b"alice session  "),
            ("/bearer", bearer(MINT.token(scope="a b")), f"alice bearer {ISSUER} ".encode()),
        ):
            answer = program.get(path, headers)
            assert (answer.status, answer.body) == (200, said)
        client = program.name.clients[-1]
        assert client is not None
        assert client.scopes == {"a", "b"}
        assert client.claims["aud"] == AUDIENCE

    def test_unprotected_resource_has_no_identity(self, program: Program) -> None:
        program.root.putChild(b"open", program.name)
        for headers in ({}, basic(), log_in(program), bearer(MINT.token())):
            assert program.get("/open", headers).body == b"open"

    def test_claims_are_read_only_and_each_request_has_its_own(self, program: Program) -> None:
        headers = bearer(MINT.token(groups=["staff"], address={"country": "NZ"}))
        program.get("/bearer", headers)
        first = program.name.clients[-1]
        assert first is not None
        claims: Any = first.claims
        with pytest.raises(TypeError):
            claims["sub"] = "root"
        claims["groups"].append("admin")
        claims["address"]["country"] = "AU"
        assert first.claims["groups"] == ["staff"]
        program.get("/bearer", headers)
        second = program.name.clients[-1]
        assert second is not None
        assert (second.claims["groups"], second.claims["address"]) == (["staff"], {"country": "NZ"})

    def test_guards_of_one_resource_do_not_share_clients(self, program: Program) -> None:
        program.get("/basic", basic())
        program.get("/basic", basic("bob"))
        assert [client and client.name for client in program.name.clients] == ["alice", "bob"]


class RuleTests:
    def test_pages_for_browsers_lead_to_the_form_where_it_is(self, make: MakeProgram) -> None:
        program = make(sign_in="/sign-in")
        program.root.putChild(b"sign-in", program.protection.pages())
        for schemes in (["basic"], ["basic", "session"]):
            program.mount("page", *schemes)
            answer = program.get("/page", {"Accept": "text/html, */*;q=0.5"})
            assert (answer.status, answer.header("Content-Type")) == (401, "text/html; charset=utf-8")
            assert b"Reload this page" in answer.body
            assert (b'<a href="/sign-in">' in answer.body) == ("session" in schemes)
        fields = urlencode({"username": "alice", "password": "wrong"}).encode()
        asked = ask(program, "GET", "/sign-in/login/session")
        assert (asked.status, asked.header("WWW-Authenticate")) == (
            401,
            'Cookie realm="postd", form-action="/sign-in/login", cookie-name=session',
        )
        assert ask(program, "GET", "/sign-in/login/sessions").status == 404
        failed = ask(program, "POST", "/sign-in/login", fields, {"Content-Type": FORM, "Accept": "text/html"})
        assert failed.status == 401
        assert b'action="/sign-in/login"' in failed.body

    def test_browser_that_opens_a_page_is_led_to_the_form_and_back(self, make: MakeProgram) -> None:
        program = make(sign_in="/sign-in")
        program.root.putChild(b"sign-in", program.protection.pages(after="/app"))
        program.mount("page", "basic", "session")
        program.mount("app", "session")
        for path in ("/page/x?a=b", "/app"):
            location = program.get(path, {"Sec-Fetch-Mode": "navigate"}).header("Location") or ""
            assert location == f"/sign-in?next={quote(path)}"
            form = program.get(location).body.decode()
            (back,) = re.findall('name="next" value="([^"]*)"', form)
            fields = urlencode({"username": "alice", "password": PASSWORD, "next": unescape(back)}).encode()
            answer = ask(program, "POST", "/sign-in/login", fields, {"Content-Type": FORM})
            assert answer.header("Location") == path
        assert program.get("/page", {"Accept": "text/html, */*;q=0.2"}).status == 401

    def test_form_sent_after_the_end_of_a_session_can_be_sent_again(self, make: MakeProgram) -> None:
        program = make(sign_in="/sign-in")
        program.root.putChild(b"sign-in", program.protection.pages())
        program.mount("page", "session")
        browser = {"Content-Type": FORM, "Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
        ended = ask(program, "POST", "/page?a=1", b"text=%3Cb%3E+%C3%BC&n=1&n=2", browser)
        assert (ended.status, ended.header("Location")) == (401, None)
        assert b'name="form" value="text=%3Cb%3E+%C3%BC&amp;n=1&amp;n=2"' in ended.body
        fields = {"username": "alice", "password": PASSWORD, "next": "/page?a=1", "form": "text=%3Cb%3E+%C3%BC&n=1&n=2"}
        again = ask(program, "POST", "/sign-in/login", urlencode(fields).encode(), browser)
        assert (again.status, b'<form method="POST" action="/page?a=1"' in again.body) == (200, True)
        hidden = [("text", "&lt;b&gt; ü"), ("n", "1"), ("n", "2")]
        assert re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', again.body.decode()) == hidden
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Accept": "*/*"}, {"Content-Type": "text/plain"}):
            answer = ask(program, "POST", "/page", b"text=x", browser | headers)
            assert (answer.status, answer.header("Location")) == (302, "/sign-in")

    def test_page_for_tokens_alone_says_so(self, make: MakeProgram) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE)])
        program.mount("api", "bearer")
        answer = program.get("/api", {"Accept": "text/html"})
        assert b"This page is for programs that send an access token." in answer.body

    @pytest.mark.parametrize("scheme", ["basic", "digest", "session", "bearer"])
    def test_guard_below_a_guard_lets_the_same_credentials_in(self, make: MakeProgram, scheme: SchemeName) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE)])
        program.root.putChild(b"login", program.protection.pages().getChildWithDefault(b"login", cast(Any, None)))
        for path, users in (("alice", ["alice", f"{ISSUER}#alice"]), ("bob", ["bob"])):
            below = Resource()
            below.putChild(b"below", program.protection.protect(program.name, scheme, users=users))
            program.mount(path, scheme, resource=below)

        def ask_below(path: str) -> Response:
            headers = {"basic": basic(), "session": log_in(program), "bearer": bearer(MINT.token())}.get(scheme)
            return program.get(path, headers or digest(program, path))

        admitted, forbidden = ask_below("/alice/below"), ask_below("/bob/below")
        assert (admitted.status, forbidden.status) == (200, 403)
        assert len(admitted.headers.get("authentication-info", [])) == (scheme == "digest")

    def test_digest_of_another_protection_does_not_count_below(self, make: MakeProgram) -> None:
        above, other = make(), make()
        below = Resource()
        below.putChild(b"below", other.protection.protect(other.name, "digest"))
        above.mount("x", "digest", resource=below)
        assert above.get("/x/below", digest(above, "/x/below")).status == 401

    def test_users_are_bare_names_and_owners_of_tokens(self, make: MakeProgram) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE)])
        program.mount("here", "basic", "bearer", users=["bob", f"{ISSUER}#carol"])
        for headers, status in (
            *((basic("bob"), 200), (basic("alice"), 403), (bearer(MINT.token(sub="carol")), 200)),
            *((bearer(MINT.token(sub="bob")), 403), (bearer(MINT.token(sub=f"{ISSUER}#carol")), 403)),
        ):
            answer = program.get("/here", headers)
            assert (answer.status, answer.header("WWW-Authenticate")) == (status, None)

    def test_scopes_of_a_resource_are_in_place_of_those_of_the_issuer(self, make: MakeProgram) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE, read_scope="r", write_scope="w")])
        program.mount("issuer", "bearer")
        program.mount("own", "bearer", read_scope="own:r also", write_scope="own:w")
        program.mount("half", "bearer", write_scope="own:w")
        for path, method, scope, status in (
            *(("/issuer", "GET", "r", 200), ("/issuer", "GET", "w", 403), ("/issuer", "POST", "w", 200)),
            *(("/own", "GET", "r", 403), ("/own", "GET", "also own:r", 200), ("/own", "GET", "own:r", 403)),
            *(("/own", "POST", "w", 403), ("/own", "POST", "own:w", 200), ("/own", "HEAD", "own:r also", 200)),
            *(("/half", "GET", "r", 200), ("/half", "POST", "w", 403), ("/half", "POST", "own:w", 200)),
        ):
            answer = program.get(path, bearer(MINT.token(scope=scope)), method)
            assert (path, method, scope, answer.status) == (path, method, scope, status)
        refused = program.get("/own", bearer(MINT.token(scope="r")))
        assert refused.header("WWW-Authenticate") == (
            'Bearer realm="postd", error="insufficient_scope", scope="own:r also"'
        )

    def test_challenges_name_the_metadata_once_they_were_asked_for(self, make: MakeProgram) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE, read_scope="r")])
        program.mount("bearer", "bearer")
        assert program.get("/bearer").header("WWW-Authenticate") == 'Bearer realm="postd", scope="r"'
        known = Resource()
        known.putChild(b"oauth-protected-resource", program.protection.metadata())
        program.root.putChild(b".well-known", known)
        url = "/.well-known/oauth-protected-resource"
        challenge = program.get("/bearer").header("WWW-Authenticate") or ""
        assert f'resource_metadata="http://localhost{url}/bearer"' in challenge
        metadata = json.loads(program.get(url).body)
        assert (metadata["resource"], metadata["authorization_servers"]) == ("http://localhost", [ISSUER])
        assert metadata["scopes_supported"] == ["r"]

    def test_metadata_of_a_resource_is_below_that_of_the_site(self, make: MakeProgram) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE, read_scope="r")])
        app, known, deep = Klein(), Resource(), Resource()
        program.root.putChild(b".well-known", known)
        program.root.putChild(b"deep", deep)
        program.root.putChild(b"klein", app.resource())
        program.mount("mcp", "bearer", "session", read_scope="own")
        program.mount("basic", "basic")
        for name in (b"m\xc3\xbcp", b'a"b'):
            deep.putChild(name, program.protection.protect(program.name, "bearer"))
        known.putChild(b"oauth-protected-resource", program.protection.metadata())

        @app.route("/required")
        @program.protection.required("bearer")
        def required(_request: Any) -> str:
            return ""

        url = "/.well-known/oauth-protected-resource"
        for _ in range(2):
            for path, at, scope in (
                ("/mcp", "/mcp", "own"),
                ("/mcp/below?x=y", "/mcp", "own"),
                ("/deep/m%C3%BCp/", "/deep/m%C3%BCp", "r"),
                ("/deep/a%22b", "/deep/a%22b", "r"),
                ("/klein/required", "", "r"),
            ):
                challenge = program.get(path).header("WWW-Authenticate") or ""
                assert (path, challenge.partition("resource_metadata=")[2]) == (path, f'"http://localhost{url}{at}"')
                document = json.loads(program.get(url + at).body)
                assert (document["resource"], document["scopes_supported"]) == (f"http://localhost{at}", [scope])
            for path in ("/", "/mcp/", "/mcp/below", "/basic", "/deep", "/klein", "/klein/required", "/other", url):
                assert (path, program.get(url + path).status) == (path, 404)
            result_of(program.protection.reload())

    def test_challenge_names_no_page_that_the_site_does_not_have(self, make: MakeProgram) -> None:
        program = make(issuers=[issuer(ISSUER, audience=AUDIENCE)])
        program.mount("mcp", "bearer")
        metadata = program.protection.metadata()
        app = Klein()

        @app.route("/oauth-protected-resource")
        def show(_request: Any) -> IResource:
            return metadata

        program.root.putChild(b".well-known", app.resource())
        url = "/.well-known/oauth-protected-resource"
        challenge = program.get("/mcp").header("WWW-Authenticate") or ""
        assert challenge == f'Bearer realm="postd", resource_metadata="http://localhost{url}"'
        assert program.get(url).status == 200

    def test_protected_resource_is_private_unless_it_says_otherwise(self, make: MakeProgram) -> None:
        class Public(Name):
            def render_GET(self, request: Any) -> bytes:
                request.setHeader(b"Cache-Control", b"public, max-age=60")
                return super().render_GET(request)

        program = make()
        program.mount("name", "basic")
        program.mount("public", "basic", resource=Public())
        program.mount("bob", "basic", users=["bob"])
        for method in ("GET", "HEAD"):
            for path, headers, status, caching in (
                *(("/name", basic(), 200, "private"), ("/public", basic(), 200, "public, max-age=60")),
                *(("/name", {}, 401, "no-store"), ("/public", basic(password="wrong"), 401, "no-store")),
                ("/bob", basic(), 403, "no-store"),
            ):
                answer = program.get(path, headers, method)
                assert (answer.status, answer.header("Cache-Control")) == (status, caching)

    @pytest.mark.parametrize(
        ("path", "vary"), [("basic", "Authorization"), ("session", "Cookie"), ("all", "Authorization, Cookie")]
    )
    def test_protected_resource_varies_by_the_fields_with_credentials(
        self, program: Program, path: str, vary: str
    ) -> None:
        """Else a browser that keeps it would show it to the next user (reference: Schemes, G15)."""
        answer = program.get(f"/{path}", {**(basic() if path == "basic" else {}), **log_in(program)})
        assert (answer.status, answer.headers["vary"]) == (200, [vary])


class ResourceTests:
    """What an application may put behind a guard."""

    def test_head_and_options_are_those_of_the_resource(self, program: Program) -> None:
        got, head = (program.get("/basic", basic(), method) for method in ("GET", "HEAD"))
        assert (head.status, head.body, head.header("Content-Length")) == (200, b"", str(len(got.body)))
        unprotected = Program(users=None)
        unprotected.root.putChild(b"name", unprotected.name)
        without, guarded = unprotected.get("/name", {}, "OPTIONS"), program.get("/basic", basic(), "OPTIONS")
        assert (guarded.status, guarded.header("Allow")) == (without.status, without.header("Allow"))
        assert program.get("/basic", {}, "OPTIONS").status == 401

    def test_leaf_has_the_rest_of_the_path(self, program: Program) -> None:
        assert program.get("/basic/a/b%2Fc", basic()).body == b"alice basic  a/b/c"
        assert program.get("/digest/a", digest(program, "/digest/a")).body == b"alice digest  a"

    def test_tree_below_a_guard_is_traversed(self, program: Program) -> None:
        tree, below = Resource(), Resource()
        tree.putChild(b"below", below)
        below.putChild(b"name", program.name)
        program.mount("tree", "basic", "digest", resource=tree)
        path = "/tree/below/name/rest"
        assert program.get(path, basic()).body == b"alice basic  rest"
        assert program.get(path, digest(program, path)).body == b"alice digest  rest"
        for headers in (basic(), digest(program, "/tree/other")):
            assert program.get("/tree/other", headers).status == 404
        assert program.get("/tree/other").status == 401

    def test_guard_in_a_branch_of_klein_is_traversed(self, program: Program) -> None:
        app, inner = Klein(), Klein()
        tree = program.protection.protect(inner.resource(), "basic", "digest")

        @app.route("/branch/", branch=True)
        def branch(_request: Any) -> IResource:
            return tree

        @inner.route("/name/<rest>")
        def name(request: Any, rest: str) -> str:
            client = identity(request)
            return f"{client and client.name} {rest}"

        klein = Program(users=None)
        klein.site = make_stock_site(app.resource(), klein.clock)
        path = "/branch/name/x"
        assert klein.get(path).status == 401
        assert klein.get(path, basic()).body == b"alice x"
        nonce = challenges_in(klein.get(path))[0].nonce
        assert klein.get(path, Proof(nonce=nonce, uri=path).headers()).body == b"alice x"
        assert klein.get("/branch/other", basic()).status == 404

    @pytest.mark.parametrize("scheme", ["basic", "digest"])
    def test_exception_in_a_resource_is_the_500_of_the_site(self, program: Program, scheme: str) -> None:
        class Failing(Resource):
            isLeaf = True

            def render_GET(self, _request: Any) -> bytes:
                raise RuntimeError("broken")

        bare = Program(users=None)
        bare.root.putChild(b"bare", Failing())
        program.mount("failing", scheme, resource=Failing())
        headers = basic() if scheme == "basic" else digest(program, "/failing")
        with capturedLogs() as events:
            without, guarded = bare.get("/bare"), program.get("/failing", headers)
        assert (guarded.status, guarded.body) == (without.status, without.body) == (500, without.body)
        assert guarded.header("Content-Type") == without.header("Content-Type")
        assert len([event for event in events if event["log_level"] >= LogLevel.error]) == 2
        assert b"broken" not in guarded.body


class StockCheckerTests:
    def test_stock_checker_is_asked_and_throttled(self, make: MakeProgram) -> None:
        program = make(users=STOCK, failures=3)
        program.mount("basic", "basic", users=["alice"])
        program.mount("session", "session")
        program.root.putChild(b"sign-in", program.protection.pages("/session"))
        assert program.get("/basic", basic()).body == b"alice basic  "
        assert program.get("/session", log_in(program, "/sign-in/login")).body == b"alice session  "
        statuses = [program.get("/basic", basic(password="wrong")).status for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
        refused = program.get("/basic", basic())
        assert (refused.status, refused.header("Retry-After"), refused.header("WWW-Authenticate")) == (429, "300", None)
        assert program.get("/basic", basic(), peer="192.0.2.7").status == 200
        program.clock.advance(300)
        assert program.get("/basic", basic()).status == 200

    @pytest.mark.parametrize(("answer", "status"), [(succeed(b"alice"), 200), (fail(UnauthorizedLogin()), 401)])
    def test_stock_checker_may_return_a_pending_deferred(self, make: MakeProgram, answer: Any, status: int) -> None:
        checker = PendingChecker()
        program = make(users=checker)
        program.mount("basic", "basic")
        asked = begin(program, "GET", "/basic", headers=basic())
        program.clock.advance(0)
        assert not asked.has_begun
        answer.chainDeferred(checker.answer)
        assert asked.response().status == status

    def test_client_that_disconnects_meanwhile_has_failed(self, make: MakeProgram) -> None:
        checker = PendingChecker()
        program = make(users=checker, failures=1)
        program.mount("basic", "basic")
        with capturedLogs() as events:
            asked = begin(program, "GET", "/basic", headers=basic())
            asked.disconnect()
            checker.answer.errback(UnauthorizedLogin())
            program.clock.advance(0)
        assert not [event for event in events if event["log_level"] >= LogLevel.error]
        assert program.get("/basic", basic()).status == 429

    def test_account_of_a_checker_cannot_be_the_owner_of_a_token(self, make: MakeProgram) -> None:
        checker = PendingChecker()
        program = make(users=checker, issuers=[issuer(ISSUER, audience=AUDIENCE)])
        program.mount("bob", "basic", "bearer", users=[f"{ISSUER}#bob"])
        asked = begin(program, "GET", "/bob", headers=basic())
        checker.answer.callback(f"{ISSUER}#bob")
        assert asked.response().status == 401
        assert program.get("/bob", bearer(MINT.token(sub="bob"))).status == 200


class WarningTests:
    """What users of the file cannot do is logged, once at first and each time that the file has changed."""

    def warnings(self, events: Sequence[Any]) -> list[str]:
        return [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]

    @pytest.mark.parametrize(("content", "state"), [(None, "the user file does not exist yet"), ("", "has no users")])
    def test_user_file_without_users(self, tmp_path: Path, make: MakeProgram, content: str | None, state: str) -> None:
        path = tmp_path / "new"
        if content is not None:
            path.write_text(content)
        with capturedLogs() as events:
            program = make(users=path)
        assert self.warnings(events) == [f"{path}: {state}: no user can sign in"]
        program.mount("basic", "basic")
        assert program.get("/basic", basic()).status == 401
        path.write_text(account("alice"))
        assert program.get("/basic", basic()).status == 200

    def test_users_without_digest_in_the_realm(self, tmp_path: Path, make: MakeProgram) -> None:
        with capturedLogs() as events:
            program = make(realm="another")
            program.mount("basic", "basic")
        assert self.warnings(events) == []
        cure = "set their passwords again with `postd user passwd NAME`"
        with capturedLogs() as events:
            program.mount("digest", "digest")
            program.mount("more", "digest")
        assert self.warnings(events) == [f"user file: no Digest in the realm 'another' for alice, bob: {cure}"]
        (tmp_path / "users").write_text(account("carol"))
        with capturedLogs() as events:
            program.clock.advance(2)
        assert self.warnings(events) == [f"user file: no Digest in the realm 'another' for carol: {cure}"]


class PendingHashThreads(InlineHashThreads):
    """Verifies passwords when a test says so."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.pending: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    def run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        waiting: Deferred[Any] = Deferred()
        self.pending.append((waiting, lambda: function(*args)))
        return waiting

    def finish(self) -> None:
        for waiting, call in self.pending:
            waiting.callback(call())


class DisconnectTests:
    @pytest.mark.parametrize(("password", "status"), [("wrong", 429), (PASSWORD, 200)])
    def test_failure_counts_if_the_client_disconnects_during_the_hash(
        self, make: MakeProgram, password: str, status: int
    ) -> None:
        program = make(failures=1)
        program.mount("basic", "basic")
        threads = PendingHashThreads(program.clock)
        verifier: Any = program.protection.portal.checkers[IPasswordCredentials]
        with patch.object(verifier._verifier, "_threads", threads), capturedLogs() as events:  # noqa: SLF001
            asked = begin(program, "GET", "/basic", headers=basic(password=password))
            program.clock.advance(0)
            assert threads.pending
            asked.disconnect()
            threads.finish()
            program.clock.advance(0)
        assert not [event for event in events if event["log_level"] >= LogLevel.error]
        assert program.name.clients == []  # nothing is rendered without a client
        assert program.get("/basic", basic()).status == status

    @pytest.mark.parametrize(("password", "status"), [("wrong", 429), (PASSWORD, 200)])
    def test_form_counts_a_failure_likewise_and_begins_no_session(
        self, make: MakeProgram, password: str, status: int
    ) -> None:
        program = make(failures=1)
        program.mount("basic", "basic")
        threads = PendingHashThreads(program.clock)
        verifier: Any = program.protection.portal.checkers[IPasswordCredentials]
        program.root.putChild(b"form", program.protection.pages())
        form = urlencode({"username": "alice", "password": password}).encode()
        with patch.object(verifier._verifier, "_threads", threads), capturedLogs() as events:  # noqa: SLF001
            asked = begin(program, "POST", "/form/login", form, {"Content-Type": FORM})
            program.clock.advance(0)
            assert threads.pending
            asked.disconnect()
            threads.finish()
            program.clock.advance(0)
        assert not [event for event in events if event["log_level"] >= LogLevel.error]
        assert not [event for event in events if event["log_format"].startswith("signed in")]
        assert program.get("/basic", basic()).status == status


@implementer(IRealm)
class Realm:
    """A realm of an application, which answers at once or later, with a resource of its own or that of the guard."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []
        self.later: Deferred[Any] | None = None
        self.avatar: Any = ...

    def requestAvatar(self, avatarId: Any, mind: Any, *interfaces: Any) -> Any:
        self.asked.append((avatarId, mind))
        assert IResource in interfaces
        avatar = IResource, Greeting(avatarId) if self.avatar is ... else self.avatar, lambda: None
        if self.later is not None:
            return self.later.addCallback(lambda _: avatar)
        return avatar


class Greeting(Resource):
    """What a realm of an application shows a user."""

    isLeaf = True

    def __init__(self, user: bytes) -> None:
        super().__init__()
        self._user = user

    def render_GET(self, _request: Any) -> bytes:
        return b"Hello, " + self._user


class CredTests:
    """The interfaces of `twisted.cred`, both ways."""

    def test_realm_of_an_application_may_return_deferreds(self, program: Program) -> None:
        program.protection.portal.realm = realm = Realm()
        for headers in (basic(), bearer(MINT.token())):
            realm.later = Deferred()
            asked = begin(program, "GET", "/all", headers=headers)
            program.clock.advance(0)
            assert not asked.has_begun
            realm.later.callback(None)
            answer = asked.response()
            assert (answer.status, answer.body) == (200, b"Hello, " + realm.asked[-1][0])
        assert [user for user, _ in realm.asked] == [b"alice", f"{ISSUER}#alice".encode()]
        realm.later = None
        assert program.get("/all", basic()).body == b"Hello, alice"
        realm.later = fail(UnauthorizedLogin())
        assert program.get("/all", basic()).status == 401

    @pytest.mark.parametrize("avatar", [None, object()])
    def test_avatar_that_is_no_resource_is_500(self, program: Program, avatar: Any) -> None:
        program.protection.portal.realm = realm = Realm()
        realm.avatar = avatar
        assert program.get("/basic", basic()).status == 500
        realm.later = Deferred()
        asked = begin(program, "GET", "/basic", headers=basic())
        realm.later.callback(None)
        assert asked.response().status == 500

    def test_factories_and_checkers_provide_the_interfaces_of_twisted(self, program: Program) -> None:
        assert list(program.protection.factories) == ["digest", "token", "bearer", "basic"]
        for name, factory in program.protection.factories.items():
            assert verifyObject(ICredentialFactory, factory)
            assert factory.scheme == (b"bearer" if name == "token" else name.encode())
        portal = program.protection.portal
        assert isinstance(portal, Portal)
        assert verifyObject(IRealm, portal.realm)
        for checker in set(portal.checkers.values()):
            assert verifyObject(ICredentialsChecker, checker)

    @pytest.fixture
    def wrapped(self, program: Program) -> Program:
        """The stock wrapper with a stock portal, our checkers and our factories; once with each scheme."""
        portal = Portal(Realm(), list(set(program.protection.portal.checkers.values())))
        for name, factory in program.protection.factories.items():
            program.root.putChild(b"stock-" + name.encode(), HTTPAuthSessionWrapper(portal, [factory]))
        return program

    def test_factories_work_in_the_stock_wrapper(self, wrapped: Program) -> None:
        program = wrapped
        program.get("/digest")  # the key of nonces is in the store
        challenge = program.get("/stock-digest").header("WWW-Authenticate") or ""
        assert 'algorithm="SHA-256"' in challenge
        nonce = challenge.partition('nonce="')[2].partition('"')[0]
        proof = Proof(nonce=nonce, uri="/stock-digest", algorithm="SHA-256")
        wrong = b64encode(b"alice:wrong").decode()
        for path, good, bad in (
            ("/stock-basic", basic(), {"Authorization": f"Basic {wrong}"}),
            ("/stock-digest", proof.headers(), proof.headers()),  # the nonce count is used then
            ("/stock-bearer", bearer(MINT.token()), bearer(MINT.token(aud="x"))),
            ("/stock-token", bearer(MINT.token()), bearer(MINT.token(aud="x"))),
            ("/stock-token", bearer(result_of(program.protection.add_token("alice"))), bearer(make_token())),
        ):
            name = "bearer" if path == "/stock-token" else path[7:]
            answer = program.get(path, good)
            assert (answer.status, answer.body.startswith(b"Hello, ")) == (200, True)
            for headers in (bad, {}, {"Authorization": f"{name.title()} !"}):
                answer = program.get(path, headers)
                assert answer.status == 401
                assert (answer.header("WWW-Authenticate") or "").lower().startswith(f"{name} ")

    def test_checkers_work_in_a_stock_portal(self, program: Program) -> None:
        portal = Portal(Realm(), [program.protection.portal.checkers[IPasswordCredentials]])
        credentials = program.protection.factories["basic"].decode(
            basic()["Authorization"].partition(" ")[2].encode(), cast(Any, _request(program))
        )
        interface, avatar, _ = result_of(portal.login(credentials, None, IResource))
        assert (interface, type(avatar)) == (IResource, Greeting)
        assert {IPasswordCredentials, IDigestCredentials, IBearerCredentials} <= set(program.protection.portal.checkers)


def _request(program: Program) -> Any:
    """Return a request that a stock site has read."""
    seen: list[Any] = []

    class Seeing(Resource):
        isLeaf = True

        def render_GET(self, request: Any) -> bytes:
            seen.append(request)
            return b""

    program.root.putChild(b"seeing", Seeing())
    program.get("/seeing")
    return seen[0]


class StartAndStopTests:
    def test_requests_before_start_and_after_stop_are_503(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text(account("alice"))
        program = Program(users=str(tmp_path / "users"))
        program.mount("basic", "basic")
        program.mount("digest", "digest")
        program.mount("session", "session")
        program.root.putChild(b"sign-in", program.protection.pages("/session"))

        def check_503() -> None:
            form = urlencode({"username": "alice", "password": PASSWORD}).encode()
            for answer in (
                program.get("/basic", basic()),
                program.get("/digest"),
                program.get("/session", {"Cookie": "session=" + "A" * 43}),
                ask(program, "POST", "/sign-in/login", form, {"Content-Type": FORM}),
            ):
                assert answer.status == 503
                assert int(answer.header("Retry-After") or 0) >= 1
                assert "www-authenticate" not in answer.headers
            assert program.get("/basic").status == 401
            assert program.get("/sign-in").status == 200

        check_503()
        program.start()
        assert program.get("/basic", basic()).status == 200
        assert program.get("/digest", digest(program)).status == 200
        program.stop()
        check_503()
        program.stop()  # again

    def test_nothing_is_left_on_the_clock(self, program: Program) -> None:
        assert program.clock.getDelayedCalls()
        program.get("/all", basic())
        program.stop()
        assert not program.clock.getDelayedCalls()

    def test_store_that_is_away_delays_the_start_by_a_second(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("postd.protect.protection.STORE_WAIT_MAX_S", STORE_WAIT_MAX_S)
        (tmp_path / "users").write_text(account("alice"))
        program = Program(users=tmp_path / "users", store="redis://127.0.0.1:1")
        program.mount("basic", "basic")
        starting = Deferred.fromCoroutine(program.protection.start())
        program.clock.advance(0.9)
        assert not starting.called
        program.clock.advance(0.2)
        result_of(starting)
        assert program.get("/basic", basic()).status == 503
        program.stop()

    def test_stop_while_it_waits_for_the_store_ends_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text(account("alice"))
        program = Program(
            users=tmp_path / "users", issuers=[issuer(ISSUER, audience=AUDIENCE)], store="redis://127.0.0.1:1"
        )
        starting = Deferred.fromCoroutine(program.protection.start())
        program.clock.advance(0.5)
        assert not starting.called
        program.stop()
        result_of(starting)
        assert not program.clock.getDelayedCalls()

    def test_cancelled_start_is_stopped(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text(account("alice"))
        program = Program(users=tmp_path / "users", store="redis://127.0.0.1:1")
        starting = Deferred.fromCoroutine(program.protection.start())
        program.clock.advance(0.5)
        starting.cancel()
        with pytest.raises(CancelledError):
            result_of(starting)
        assert not program.clock.getDelayedCalls()

    def test_stop_ends_requests_that_wait_for_the_checker_or_the_throttle(self, make: MakeProgram) -> None:
        program = make(users=PendingChecker(), failures=2)
        program.mount("basic", "basic")
        asked = [begin(program, "GET", "/basic", headers=basic()) for _ in range(5)]
        program.stop()
        assert [one.response().status for one in asked] == [503] * 5
        assert not waits(program)

    def test_stop_ends_requests_that_wait_for_introspection(self, make: MakeProgram) -> None:
        trusted = issuer(ISSUER, audience=AUDIENCE, introspection_endpoint=f"{ISSUER}/introspect")
        program = make(issuers=[trusted])
        program.mount("bearer", "bearer")
        asked = [begin(program, "GET", "/bearer", headers=bearer(f"opaque-{n}")) for n in range(REQUESTS_MAX + 1)]
        assert not any(one.has_begun for one in asked)
        program.stop()
        assert {one.response().status for one in asked} == {503}
        assert not waits(program)

    def test_context_manager_starts_and_stops(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text(account("alice"))
        program = Program(users=str(tmp_path / "users"))
        program.mount("basic", "basic")
        statuses = []

        async def run() -> None:
            async with program.protection as entered:
                assert entered is program.protection
                statuses.append(program.get("/basic", basic()).status)

        result_of(run())
        statuses.append(program.get("/basic", basic()).status)
        assert statuses == [200, 503]

"""`Protection.reload`: other users, issuers and limits for resources that are protected already."""

from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
from twisted.internet.testing import MemoryReactorClock
from twisted.web.resource import Resource

from postd.auth.throttle import Throttle
from postd.protect import ConfigError, Context, Protection, Scheme, SchemeParts, issuer, make_parts
from postd.protect.bearer import METADATA_PATH
from postd.protect.schemes.basic import Basic
from postd.protect.schemes.bearer import Bearer
from postd.protect.schemes.digest import Digest
from postd.protect.schemes.form import Form
from postd.protect.schemes.own import OwnChecker, OwnCredentials
from postd.reactor import IReactor
from tests.cases import each
from tests.helpers import result_of
from tests.protect.program import AUDIENCE, ISSUER, STOCK, MakeProgram, Program, bearer, digest, log_in, waits
from tests.web.clients import PASSWORD, account, basic
from tests.web.wire import begin

OTHER = "https://other.example"


@pytest.fixture
def make(make_program: MakeProgram) -> MakeProgram:
    """A function that makes and starts a program."""
    return make_program


def reload(program: Program, **changed: Any) -> None:
    result_of(program.protection.reload(**changed))


def test_other_user_file_replaces_the_first(make: MakeProgram, tmp_path: Path) -> None:
    program = make()
    for scheme in ("basic", "digest"):
        program.mount(scheme, scheme)
    nonce = digest(program)
    assert program.get("/basic", basic()).status == 200
    reload(program, users=tmp_path / "others")
    assert program.get("/basic", basic()).status == 401
    assert program.get("/basic", basic("bob")).status == 200
    assert program.get("/digest", nonce).status == 401
    assert program.get("/digest", digest(program, username="bob")).status == 200


def test_session_and_nonces_stay(make: MakeProgram) -> None:
    program = make(sign_in="/sign-in")
    program.mount("session", "session")
    program.mount("digest", "digest")
    program.root.putChild(b"sign-in", program.protection.pages())
    session, proof = log_in(program, "/sign-in/login"), digest(program)
    reload(program)
    assert program.get("/session", session).status == 200
    assert program.get("/digest", proof).status == 200
    assert program.get("/digest", proof).status == 401  # its count is used
    assert program.get("/session", log_in(program, "/sign-in/login")).status == 200


def test_changed_user_file_is_read_at_once(make: MakeProgram, tmp_path: Path) -> None:
    program = make()
    program.mount("basic", "basic")
    (tmp_path / "users").write_text(account("bob"))
    reload(program)
    assert [program.get("/basic", basic(name)).status for name in ("alice", "bob")] == [401, 200]


def test_issuers_are_those_of_the_last_reload(make: MakeProgram) -> None:
    program = make(issuers=[issuer(ISSUER, audience=AUDIENCE, read_scope="a")])
    program.mount("bearer", "bearer")
    program.root.putChild(b"metadata", program.protection.metadata())
    assert 'scope="a"' in (program.get("/bearer").header("WWW-Authenticate") or "")
    reload(program, issuers=[issuer(OTHER, audience=AUDIENCE, read_scope="b", dpop="require")])
    challenge = program.get("/bearer").header("WWW-Authenticate") or ""
    assert challenge.startswith("DPoP ")
    assert 'scope="b"' in challenge
    assert METADATA_PATH in challenge
    assert OTHER.encode() in program.get("/metadata").body
    reload(program, issuers=[])
    assert program.get("/bearer", bearer("x.y.z")).status == 401
    assert program.get("/metadata").status == 404
    with pytest.raises(ValueError, match="metadata: it needs issuers"):
        program.protection.metadata()
    reload(program, issuers=[issuer(ISSUER, audience=AUDIENCE)])
    assert ISSUER.encode() in program.get("/metadata").body


def test_issuers_beside_a_bearer_scheme_of_a_value_are_an_error(make: MakeProgram) -> None:
    program = make()
    program.mount("api", Bearer([issuer(ISSUER, audience=AUDIENCE, read_scope="a")]))
    with pytest.raises(ValueError, match=r"^schemes: bearer is in force with other options$"):
        reload(program, issuers=[issuer(OTHER, audience=AUDIENCE)])
    assert program.get("/api").header("WWW-Authenticate") == 'Bearer realm="postd", scope="a"'


def test_stop_ends_requests_that_wait_for_an_issuer_of_before(make: MakeProgram) -> None:
    endpoint = f"{ISSUER}/introspect"
    program = make(issuers=[issuer(ISSUER, audience=AUDIENCE, introspection_endpoint=endpoint)])
    program.mount("bearer", "bearer")
    waiting = begin(program, "GET", "/bearer", headers=bearer("opaque"))
    reload(program, issuers=[issuer(OTHER, audience=AUDIENCE)])
    assert not waiting.has_begun
    program.stop()
    assert waiting.response().status == 503
    assert not waits(program)


def test_limits_hold_for_failures_counted_before(make: MakeProgram) -> None:
    program = make()
    program.mount("basic", "basic")
    for _ in range(3):
        assert program.get("/basic", basic(password="x")).status == 401
    reload(program, failures=3)
    assert program.get("/basic", basic()).status == 429
    reload(program, failures=5)
    assert program.get("/basic", basic()).status == 200


@each(
    "name, value",
    [
        *(("users", value) for value in ("", STOCK, "/nowhere/\0")),
        ("issuers", [ISSUER]),
        ("issuers", [issuer(ISSUER, audience="x", ca_file="/nowhere")]),
        ("failures", 0),
        ("window_s", -1),
    ],
)
def test_error_of_a_reload_names_the_argument_and_changes_nothing(make: MakeProgram, name: str, value: Any) -> None:
    program = make()
    program.mount("basic", "basic")
    with pytest.raises(ValueError, match=rf"\A{name}: "):
        reload(program, **{name: value})
    assert program.get("/basic", basic()).status == 200
    reload(program)


def test_removed_user_file_is_an_error(make: MakeProgram, tmp_path: Path) -> None:
    program = make()
    (tmp_path / "users").unlink()
    with pytest.raises(ValueError, match=r"users: .*no longer exists"):
        reload(program)


def test_stock_checker_is_replaced_by_another_one(make: MakeProgram) -> None:
    program = make(users=STOCK)
    program.mount("basic", "basic")
    reload(program, failures=5)
    assert program.get("/basic", basic()).status == 200
    reload(program, users=type(STOCK)(alice=b"other"))
    assert program.get("/basic", basic()).status == 401
    assert program.get("/basic", basic(password="other")).status == 200


def test_reload_before_the_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(account("alice"))
    with pytest.raises(RuntimeError):
        result_of(Protection(cast(IReactor, MemoryReactorClock()), users=tmp_path / "users").reload())


def test_exported_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)


class SiteTests:
    """The origin and the hosts of the site."""

    def test_public_url_is_the_origin_of_the_site(self, make: MakeProgram) -> None:
        trusted = issuer(ISSUER, audience=AUDIENCE)
        program = make(issuers=[trusted], public_url="https://App.example:443/", sign_in="/sign-in")
        program.mount("bearer", "bearer")
        program.root.putChild(b"metadata", program.protection.metadata())
        program.root.putChild(b"sign-in", program.protection.pages())
        challenge = program.get("/bearer").header("WWW-Authenticate") or ""
        # The metadata is not at its path.
        assert f'resource_metadata="https://app.example{METADATA_PATH}"' in challenge
        assert b'"resource": "https://app.example"' in program.get("/metadata").body
        assert program.get("/metadata").header("Cache-Control") == "max-age=3600"

    @each(
        "arguments, tls, secure",
        [
            ({}, False, False),
            ({}, True, True),
            ({"public_url": "https://app.example"}, False, True),
            ({"secure": "always"}, False, True),
            ({"secure": "never"}, True, False),
        ],
    )
    def test_cookie_is_secure(
        self,
        make: MakeProgram,
        arguments: Any,
        tls: bool,  # noqa: FBT001 - a parameter
        secure: bool,  # noqa: FBT001 - a parameter
    ) -> None:
        program = make(**arguments)
        program.root.putChild(b"sign-in", program.protection.pages())
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        form = b"username=alice&password=" + quote(PASSWORD).encode()
        answer = program.get("/sign-in/login", headers, "POST", body=form, tls=tls)
        assert (answer.header("Set-Cookie") or "").endswith("; Secure") is secure

    def test_request_for_another_host_is_421(self, make: MakeProgram) -> None:
        trusted = issuer(ISSUER, audience=AUDIENCE)
        program = make(
            issuers=[trusted], hosts=["App.example", "::1"], public_url="https://public.example", sign_in="/sign-in"
        )
        program.mount("basic", "basic")
        program.root.putChild(b"sign-in", program.protection.pages())
        program.root.putChild(b"metadata", program.protection.metadata())
        for path in ("/basic", "/sign-in", "/metadata"):
            for host, is_allowed in (
                ("app.example", True),
                ("app.example:8080", True),
                ("[::1]:8080", True),
                ("public.example", True),
                ("localhost", False),
                ("app.example.evil", False),
            ):
                status = program.get(path, {**basic(), "Host": host}).status
                assert status == (200 if is_allowed else 421)

    def test_malformed_host_is_400(self, make: MakeProgram) -> None:
        program = make(hosts=["app.example", "::1"])
        program.mount("basic", "basic")
        program.root.putChild(b"sign-in", program.protection.pages())
        for host in (
            "app.example:x",
            "app.example:80:80",
            "app.example:99999",
            "[::1]x",
            "[::1",
            "app.example/x",
            "a b",
        ):
            for path in ("/basic", "/sign-in"):
                assert (host, program.get(path, {**basic(), "Host": host}).status) == (host, 400)
        assert program.get("/basic", {**basic(), "Host": ["app.example", "app.example"]}).status == 400
        assert program.get("/basic", {**basic(), "Host": "app.example:"}).status == 200

    @each(
        "name, value",
        [
            *(("public_url", value) for value in ("app.example", "ftp://x", "https://x/y", 5, None)),
            *(("hosts", value) for value in ("app.example", ["a b"], ["x:80"], [5], 5, None)),
            *(("secure", value) for value in ("", "yes", True, None)),
        ],
    )
    def test_error_of_an_argument_names_it(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"\A{name}: "):
            Protection(cast(IReactor, MemoryReactorClock()), **{name: value})


class SchemeValueTests:
    """Schemes of postd as values, in place of their names."""

    def test_scheme_in_force_may_be_given_as_a_value(self, make: MakeProgram) -> None:
        program = make(nonce_lifetime_s=60)
        program.root.putChild(b"both", program.protection.protect(program.name, Basic(), Digest(nonce_lifetime_s=60)))
        assert program.get("/both", basic()).status == 200
        assert program.get("/both", digest(program, "/both")).status == 200
        reload(program)
        assert program.get("/both", basic()).status == 200

    def test_other_options_than_those_in_force_are_an_error(self, make: MakeProgram) -> None:
        protection = make().protection
        with pytest.raises(ValueError, match="schemes: digest is in force with other options"):
            protection.protect(Resource(), Digest(nonce_lifetime_s=60))

    def test_schemes_need_users(self, make: MakeProgram) -> None:
        for scheme in (Basic(), Digest(), Form()):
            with pytest.raises(ValueError, match=f"schemes: {scheme.name} needs users"):
                make(users=None).protection.protect(Resource(), scheme)
        with pytest.raises(ValueError, match="schemes: digest needs a user file"):
            make(users=STOCK).protection.protect(Resource(), Digest())

    def test_bearer_may_be_given_with_its_issuers(self, make: MakeProgram) -> None:
        program = make()
        bearer_of = Bearer([issuer(ISSUER, audience=AUDIENCE, read_scope="a")])
        program.root.putChild(b"api", program.protection.protect(program.name, bearer_of))
        assert program.get("/api").header("WWW-Authenticate") == 'Bearer realm="postd", scope="a"'
        reload(program)
        assert program.get("/api").header("WWW-Authenticate") == 'Bearer realm="postd", scope="a"'

    def test_name_of_a_scheme_of_postd_is_refused_for_another_scheme(self, make: MakeProgram) -> None:
        class Other(Scheme, frozen=True):
            name = "basic"

        with pytest.raises(ValueError, match=r"\Aschemes: basic is the name of a scheme of postd"):
            make(users=None).protection.protect(Resource(), Other())

    def test_body_that_a_scheme_has_read_is_there_for_the_application(self, make: MakeProgram) -> None:
        class Body(Scheme, frozen=True):
            name = "body"

            def make(self, context: Context) -> SchemeParts:
                return make_parts(self, context, lambda request: request.body, lambda _: "robot")

        class Echo(Resource):
            isLeaf = True

            def render_POST(self, request: Any) -> bytes:
                body: bytes = request.content.read()
                return body

        program = make()
        program.root.putChild(b"echo", program.protection.protect(Echo(), Body()))
        assert program.get("/echo", method="POST", body=b"text").body == b"text"

    def test_error_of_a_scheme_releases_the_attempt(self) -> None:
        released = list[object]()

        class Limits:
            async def admit(self, _keys: object) -> str:
                return "attempt"

            async def release(self, attempt: object) -> None:
                released.append(attempt)

        def fail() -> str:
            raise TypeError

        credentials = OwnCredentials("own", "127.0.0.1", cast(Throttle, Limits()), fail)
        with pytest.raises(TypeError):
            result_of(OwnChecker().check(credentials))
        assert released == ["attempt"]

"""`AuthClient` with Basic, token files and form login, and the requests that carry no credentials."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import treq
from pytest_twisted import ensureDeferred
from treq.testing import RequestTraversalAgent, StringStubbingResource
from twisted.internet.defer import gatherResults
from twisted.web.http_headers import Headers

from postd.client import (
    Auth,
    AuthClient,
    Basic,
    BearerFile,
    ClientCredentials,
    Digest,
    FormLogin,
    SignInError,
    authenticator,
)
from postd.errors import ConfigError
from tests.cases import each
from tests.client.server import REACTOR, Request, error_of, get, in_background, make_response, serving, wait_until

PASSWORD = "pä:ss wörd"


@ensureDeferred
async def test_basic_is_sent_with_the_first_request() -> None:
    async with (
        serving(lambda _: make_response(200)) as server,
        AuthClient(REACTOR, server.url, Basic("älice", PASSWORD)) as client,
    ):
        assert await get(client) == 200
        assert server.last.authorization == "Basic " + b64encode(f"älice:{PASSWORD}".encode()).decode()
        assert len(server.requests) == 1
        # With treq's own functions too; an Authorization of the caller stays.
        await treq.get(server.url, agent=client.agent, headers=Headers({"Authorization": ["Mine"]}))
        assert server.last.authorization == "Mine"
        await treq.get(server.url, agent=client.agent)
        assert server.last.authorization.startswith("Basic ")


@ensureDeferred
async def test_given_agent_sends_the_requests() -> None:
    def respond(*request: Any) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, request[3][b"Authorization"][0]

    agent = RequestTraversalAgent(StringStubbingResource(respond))
    async with AuthClient(REACTOR, "http://localhost", Basic("alice", "x"), agent=agent) as client:
        response = await client.get("http://localhost/")
        assert await response.content() == b"Basic " + b64encode(b"alice:x")


@ensureDeferred
async def test_credentials_are_not_sent_to_other_origins(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token")

    async with serving(lambda _: make_response(200)) as elsewhere:

        def handler(request: Request) -> bytes:
            if request.target == "/login":
                return make_response(302, Location="/home", Set_Cookie="session=abc; Path=/")
            return make_response(302, Location=f"{elsewhere.url}/there")

        async with serving(handler) as server:
            for auth in (Basic("alice", "x"), BearerFile(str(tmp_path / "token")), FormLogin("alice", "x")):
                async with AuthClient(REACTOR, server.url, auth) as client:
                    assert await get(client, "/x") == 200
                    request = next(one for one in reversed(server.requests) if one.target == "/x")
                    assert {"authorization", "cookie"} & set(request.fields)
                    assert elsewhere.last.target == "/there"
                    assert not {"authorization", "cookie"} & set(elsewhere.last.fields)
                    await client.get(f"{elsewhere.url}/directly")
                    assert not {"authorization", "cookie"} & set(elsewhere.last.fields)


@each(
    "auth",
    [Basic("alice", "s3cret"), Digest("alice", "s3cret"), FormLogin("alice", "s3cret")],
    ids=["Basic", "Digest", "FormLogin"],
)
def test_repr_contains_no_password(auth: Auth) -> None:
    assert "s3cret" not in f"{auth!r} {auth}"
    assert "alice" in repr(auth)


@each(
    "make",
    [
        lambda: Basic("a:b", "x"),
        lambda: Basic("a\n", "x"),
        lambda: Digest("a", "x\0"),
        lambda: FormLogin("a\x7f", "x"),
        lambda: ClientCredentials("http://issuer.example", "id", "file"),
        lambda: ClientCredentials("https://issuer.example/?a", "id", "file"),
    ],
    ids=["a colon", "a line feed", "NUL", "DEL", "plain http", "a query"],
)
def test_unusable_credentials_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@ensureDeferred
async def test_changed_token_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\nmore lines\n")
    good = "Bearer one"

    def handler(request: Request) -> bytes:
        if request.target == "/rotate":
            put(file, "three")
            return make_response(401)
        return make_response(200 if request.authorization == good else 401)

    async with serving(handler) as server, AuthClient(REACTOR, server.url, BearerFile(str(file))) as client:
        assert await get(client) == 200
        put(file, "two")
        good = "Bearer two"
        assert await get(client) == 200
        # The file changes while a request is refused: one retry with the new token.
        assert await get(client, "/rotate") == 401
        assert [request.authorization for request in server.requests[-2:]] == ["Bearer two", "Bearer three"]
        put(file, "no token")
        assert "not one token" in str(await error_of(get(client), SignInError))
        put(file, "\nx")
        assert "has no token in its first line" in str(await error_of(get(client), SignInError))
        file.unlink()
        assert str(await error_of(get(client), SignInError)).startswith(f"{file}: cannot be read")
        assert len(server.requests) == 4


def put(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class FakeFormServer:
    """A server with a login form; tests end its sessions."""

    def __init__(self) -> None:
        self.password = PASSWORD
        self.sessions: list[str] = []
        self.live: set[str] = set()
        self.forms: list[dict[str, list[str]]] = []
        self.accepts = True

    def __call__(self, request: Request) -> bytes:
        cookies = dict(part.split("=", 1) for part in request.fields.get("cookie", "").split("; ") if part)
        session = cookies.get("session", "")
        if request.target == "/login":
            self.forms.append(parse_qs(request.body.decode(), strict_parsing=True))
            if self.forms[-1] != {"username": ["alice"], "password": [self.password]}:
                return make_response(401, "Login failed\n")
            self.sessions.append(f"s{len(self.sessions)}")
            self.live.add(self.sessions[-1])
            return make_response(302, Location="/home", Set_Cookie=f"session={self.sessions[-1]}; Path=/; HttpOnly")
        if request.target == "/logout":
            self.live.discard(session)
            return make_response(302, Location="/")
        if session not in self.live or not self.accepts:
            return make_response(302, Location="/") if request.target == "/home" else make_response(401)
        return make_response(200, request.fields["cookie"])


def sign_in(url: str, password: str = PASSWORD) -> AuthClient:
    return AuthClient(REACTOR, url, FormLogin("alice", password))


@ensureDeferred
async def test_one_session_serves_all_requests_and_ends_on_close() -> None:
    form_server = FakeFormServer()
    async with serving(form_server) as server:
        async with sign_in(server.url) as client:
            assert await gatherResults([in_background(get(client)) for _ in range(5)]) == [200] * 5
            assert len(form_server.forms) == 1
            assert form_server.live == {"s0"}
        assert form_server.live == set()
        assert server.last.target == "/logout"


@ensureDeferred
async def test_refused_session_ends_on_close() -> None:
    form_server = FakeFormServer()
    form_server.accepts = False
    async with serving(form_server) as server:
        async with sign_in(server.url) as client:
            assert await get(client) == 401
            assert len(form_server.live) == 1
        assert form_server.live == set()


@ensureDeferred
@pytest.mark.parametrize("path", ["/post", "/home"])
async def test_ended_session_is_replaced(path: str) -> None:
    form_server = FakeFormServer()
    async with serving(form_server) as server, sign_in(server.url) as client:
        assert await get(client, path, allow_redirects=False) == 200
        form_server.live.clear()
        codes = await gatherResults([in_background(get(client, path, allow_redirects=False)) for _ in range(5)])
        assert codes == [200] * 5
        assert len(form_server.forms) == 2


@ensureDeferred
async def test_late_refusal_uses_the_replaced_session() -> None:
    form_server = FakeFormServer()
    held: list[Request] = []

    def handler(request: Request) -> bytes:
        if request.target == "/late" and not held:
            held.append(request)
            return b""
        return form_server(request)

    async with serving(handler) as server, sign_in(server.url) as client:
        assert await get(client) == 200
        form_server.live.clear()
        late = in_background(get(client, "/late"))
        await wait_until(lambda: held)
        assert await get(client) == 200
        held[0].send(make_response(401))
        assert await late == 200
        assert len(form_server.forms) == 2


@ensureDeferred
async def test_session_that_was_never_accepted_is_not_replaced() -> None:
    form_server = FakeFormServer()
    form_server.accepts = False
    async with serving(form_server) as server, sign_in(server.url) as client:
        assert await get(client) == 401
        assert len(form_server.forms) == 1


@ensureDeferred
async def test_wrong_password_is_reported() -> None:
    form_server = FakeFormServer()
    async with serving(form_server) as server, sign_in(server.url, "wrong") as client:
        error: SignInError = await error_of(get(client), SignInError)
        assert str(error) == "user or password is wrong"
        assert len(form_server.forms) == 1


@ensureDeferred
@pytest.mark.parametrize(
    ("sent", "expected", "temporary"),
    [
        (make_response(429), "too many sign-ins have failed", False),
        (make_response(503), "answers 503", True),
        (make_response(404), "answers 404", False),
        (make_response(302, Location="/home"), "answers 302", False),
    ],
    ids=["429", "503", "404", "no cookie"],
)
async def test_failed_sign_in_is_reported(sent: bytes, expected: str, *, temporary: bool) -> None:
    async with serving(lambda _: sent) as server, sign_in(server.url) as client:
        error: SignInError = await error_of(get(client), SignInError)
        assert expected in str(error)
        assert error.temporary is temporary


@ensureDeferred
async def test_other_cookies_are_kept() -> None:
    form_server = FakeFormServer()
    async with serving(form_server) as server, sign_in(server.url) as client:
        response = await client.get(f"{server.url}/x", cookies={"colour": "blue"})
        assert set((await response.text()).split("; ")) == {"colour=blue", "session=s0"}


@ensureDeferred
async def test_body_too_long_for_a_retry_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "BODY_MAX_BYTES", 10)
    challenge = 'Digest realm="r", qop="auth", nonce="n"'

    def handler(request: Request) -> bytes:
        return make_response(200) if request.authorization else make_response(401, WWW_Authenticate=challenge)

    async with serving(handler) as server, AuthClient(REACTOR, server.url, Digest("a", "b")) as client:
        assert "too long" in str(await error_of(client.post(server.url, data=BytesIO(b"x" * 11)), SignInError))
        assert await get(client) == 200
        # With a known nonce the body is sent once.
        response = await client.post(server.url, data=BytesIO(b"x" * 11))
        assert (response.code, server.last.body) == (200, b"x" * 11)

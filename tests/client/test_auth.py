"""Credentials in treq's hands: Basic, tokens of a file, sign-in by form, and where none of them go."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import treq
from pytest_twisted import ensureDeferred
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
from tests.client.server import REACTOR, Asked, answer, error_of, get, in_background, serving, wait_until

PASSWORD = "pä:ss wörd"


@ensureDeferred
async def test_basic_is_shown_at_once() -> None:
    async with (
        serving(lambda _: answer(200)) as server,
        AuthClient(REACTOR, server.url, Basic("älice", PASSWORD)) as client,
    ):
        assert await get(client) == 200
        assert server.last.authorization == "Basic " + b64encode(f"älice:{PASSWORD}".encode()).decode()
        assert len(server.asked) == 1
        # With treq's own functions, too; and what a caller says themselves stands.
        await treq.get(server.url, agent=client.agent, headers=Headers({"Authorization": ["Mine"]}))
        assert server.last.authorization == "Mine"
        await treq.get(server.url, agent=client.agent)
        assert server.last.authorization.startswith("Basic ")


@ensureDeferred
async def test_credentials_do_not_go_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token")

    async with serving(lambda _: answer(200)) as elsewhere:

        def handler(asked: Asked) -> bytes:
            if asked.target == "/login":
                return answer(302, Location="/home", Set_Cookie="session=abc; Path=/")
            return answer(302, Location=f"{elsewhere.url}/there")

        async with serving(handler) as server:
            for auth in (Basic("alice", "x"), BearerFile(str(tmp_path / "token")), FormLogin("alice", "x")):
                async with AuthClient(REACTOR, server.url, auth) as client:
                    assert await get(client, "/x") == 200
                    asked = next(one for one in reversed(server.asked) if one.target == "/x")
                    assert {"authorization", "cookie"} & set(asked.fields)
                    assert elsewhere.last.target == "/there"
                    assert not {"authorization", "cookie"} & set(elsewhere.last.fields)
                    await client.get(f"{elsewhere.url}/directly")
                    assert not {"authorization", "cookie"} & set(elsewhere.last.fields)


@pytest.mark.parametrize(
    "auth",
    [Basic("alice", "s3cret"), Digest("alice", "s3cret"), FormLogin("alice", "s3cret")],
    ids=["Basic", "Digest", "FormLogin"],
)
def test_a_password_is_not_shown_by_accident(auth: Auth) -> None:
    assert "s3cret" not in f"{auth!r} {auth}"
    assert "alice" in repr(auth)


@pytest.mark.parametrize(
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
def test_what_cannot_be_shown(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@ensureDeferred
async def test_a_token_is_read_anew_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\nmore lines\n")
    good = "Bearer one"

    def handler(asked: Asked) -> bytes:
        if asked.target == "/rotate":
            put(file, "three")
            return answer(401)
        return answer(200 if asked.authorization == good else 401)

    async with serving(handler) as server, AuthClient(REACTOR, server.url, BearerFile(str(file))) as client:
        assert await get(client) == 200
        put(file, "two")
        good = "Bearer two"
        assert await get(client) == 200
        # It is changed while a request is under way that is refused: once more, with the new one.
        assert await get(client, "/rotate") == 401
        assert [asked.authorization for asked in server.asked[-2:]] == ["Bearer two", "Bearer three"]
        put(file, "no token")
        assert "not one token" in str(await error_of(get(client), SignInError))
        put(file, "\nx")
        assert "has no token in its first line" in str(await error_of(get(client), SignInError))
        file.unlink()
        assert str(await error_of(get(client), SignInError)).startswith(f"{file}: cannot be read")
        assert len(server.asked) == 4


def put(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class Signing:
    """Signs in who knows the password; sessions end when a test says so."""

    def __init__(self) -> None:
        self.password = PASSWORD
        self.sessions: list[str] = []
        self.live: set[str] = set()
        self.forms: list[dict[str, list[str]]] = []
        self.opens = True

    def __call__(self, asked: Asked) -> bytes:
        cookies = dict(part.split("=", 1) for part in asked.fields.get("cookie", "").split("; ") if part)
        session = cookies.get("session", "")
        if asked.target == "/login":
            self.forms.append(parse_qs(asked.body.decode(), strict_parsing=True))
            if self.forms[-1] != {"username": ["alice"], "password": [self.password]}:
                return answer(401, "Login failed\n")
            self.sessions.append(f"s{len(self.sessions)}")
            self.live.add(self.sessions[-1])
            return answer(302, Location="/home", Set_Cookie=f"session={self.sessions[-1]}; Path=/; HttpOnly")
        if asked.target == "/logout":
            self.live.discard(session)
            return answer(302, Location="/")
        if session not in self.live or not self.opens:
            return answer(302, Location="/") if asked.target == "/home" else answer(401)
        return answer(200, asked.fields["cookie"])


def sign_in(url: str, password: str = PASSWORD) -> AuthClient:
    return AuthClient(REACTOR, url, FormLogin("alice", password))


@ensureDeferred
async def test_one_sign_in_serves_many_and_is_ended_in_the_end() -> None:
    signing_in = Signing()
    async with serving(signing_in) as server:
        async with sign_in(server.url) as client:
            assert await gatherResults([in_background(get(client)) for _ in range(5)]) == [200] * 5
            assert len(signing_in.forms) == 1
            assert signing_in.live == {"s0"}
        assert signing_in.live == set()
        assert server.last.target == "/logout"


@ensureDeferred
async def test_a_session_that_is_not_good_for_it_is_ended_too() -> None:
    signing_in = Signing()
    signing_in.opens = False
    async with serving(signing_in) as server:
        async with sign_in(server.url) as client:
            assert await get(client) == 401
            assert len(signing_in.live) == 1
        assert signing_in.live == set()


@ensureDeferred
@pytest.mark.parametrize("path", ["/post", "/home"])
async def test_a_session_that_has_ended_is_begun_anew(path: str) -> None:
    signing_in = Signing()
    async with serving(signing_in) as server, sign_in(server.url) as client:
        assert await get(client, path, allow_redirects=False) == 200
        signing_in.live.clear()
        codes = await gatherResults([in_background(get(client, path, allow_redirects=False)) for _ in range(5)])
        assert codes == [200] * 5
        assert len(signing_in.forms) == 2


@ensureDeferred
async def test_who_hears_late_that_a_session_has_ended_takes_the_new_one() -> None:
    signing_in = Signing()
    held: list[Asked] = []

    def handler(asked: Asked) -> bytes:
        if asked.target == "/late" and not held:
            held.append(asked)
            return b""
        return signing_in(asked)

    async with serving(handler) as server, sign_in(server.url) as client:
        assert await get(client) == 200
        signing_in.live.clear()
        late = in_background(get(client, "/late"))
        await wait_until(lambda: held)
        assert await get(client) == 200
        held[0].send(answer(401))
        assert await late == 200
        assert len(signing_in.forms) == 2


@ensureDeferred
async def test_a_session_that_opens_nothing_is_not_begun_again_and_again() -> None:
    signing_in = Signing()
    signing_in.opens = False
    async with serving(signing_in) as server, sign_in(server.url) as client:
        assert await get(client) == 401
        assert len(signing_in.forms) == 1


@ensureDeferred
async def test_a_wrong_password_is_told() -> None:
    signing_in = Signing()
    async with serving(signing_in) as server, sign_in(server.url, "wrong") as client:
        error: SignInError = await error_of(get(client), SignInError)
        assert str(error) == "user or password is wrong"
        assert len(signing_in.forms) == 1


@ensureDeferred
@pytest.mark.parametrize(
    ("sent", "told", "passing"),
    [
        (answer(429), "too many sign-ins have failed", False),
        (answer(503), "answers 503", True),
        (answer(404), "answers 404", False),
        (answer(302, Location="/home"), "answers 302", False),
    ],
    ids=["429", "503", "404", "no cookie"],
)
async def test_a_sign_in_that_does_not_work(sent: bytes, told: str, *, passing: bool) -> None:
    async with serving(lambda _: sent) as server, sign_in(server.url) as client:
        error: SignInError = await error_of(get(client), SignInError)
        assert told in str(error)
        assert error.passing is passing


@ensureDeferred
async def test_other_cookies_go_along() -> None:
    signing_in = Signing()
    async with serving(signing_in) as server, sign_in(server.url) as client:
        response = await client.get(f"{server.url}/x", cookies={"colour": "blue"})
        assert set((await response.text()).split("; ")) == {"colour=blue", "session=s0"}


@ensureDeferred
async def test_a_body_that_is_too_long_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "BODY_MAX_BYTES", 10)
    challenge = 'Digest realm="r", qop="auth", nonce="n"'

    def handler(asked: Asked) -> bytes:
        return answer(200) if asked.authorization else answer(401, WWW_Authenticate=challenge)

    async with serving(handler) as server, AuthClient(REACTOR, server.url, Digest("a", "b")) as client:
        assert "too long" in str(await error_of(client.post(server.url, data=BytesIO(b"x" * 11)), SignInError))
        assert await get(client) == 200
        # Once a nonce is known nothing has to be sent again.
        response = await client.post(server.url, data=BytesIO(b"x" * 11))
        assert (response.code, server.last.body) == (200, b"x" * 11)

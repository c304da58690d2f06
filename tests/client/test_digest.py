"""The Digest client against a server with an independent implementation."""

import json

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults

from postd.client import AuthClient, Digest, SignInError, authenticator
from tests.client.server import (
    REACTOR,
    Disconnect,
    Request,
    Server,
    error_of,
    get,
    in_background,
    make_response,
    serving,
)
from tests.integration.logins import compute, decode_parameters

USER, PASSWORD = "alice", "correct horse"


class FakeDigestServer:
    """A server with Digest; tests change its challenges and its proof."""

    def __init__(self, *algorithms: str) -> None:
        self.algorithms = algorithms or ("MD5",)
        self.nonce = "nonce-1"
        self.password = PASSWORD
        self.realm = "a realm"
        self.more = ""
        self.joined = False
        self.sends_stale = True
        self.info: dict[str, str] | None = {}
        self.seen: list[dict[str, str]] = []
        self.old: set[str] = set()

    def __call__(self, request: Request) -> bytes | Disconnect:
        if not request.authorization:
            return self.challenge()
        scheme, _, parameters = request.authorization.partition(" ")
        assert scheme == "Digest"
        shown = decode_parameters(parameters)
        self.seen.append(shown)
        assert shown["uri"] == request.target
        is_right = shown["response"] == compute(shown, self.password, request.method)
        if not is_right or shown["realm"] != self.realm:
            return self.challenge()
        if shown["nonce"] != self.nonce:
            return self.challenge(stale=self.sends_stale)
        fields = {}
        if self.info is not None:
            info = {
                "rspauth": compute(shown, self.password, ""),
                "cnonce": shown["cnonce"],
                "nc": shown["nc"],
                "qop": "auth",
            }
            words = [f'{name}="{value}"' for name, value in (info | self.info).items()]
            fields["Authentication_Info"] = ", ".join(words)
        return make_response(200, json.dumps({"body": request.body.decode()}), **fields)

    def challenge(self, *, stale: bool = False) -> bytes:
        more = (", stale=true" if stale else "") + self.more
        offers = [
            f'Digest realm="{self.realm}", qop="auth,auth-int", nonce="{self.nonce}", algorithm={algorithm}{more}'
            for algorithm in self.algorithms
        ]
        lines = [", ".join(offers)] if self.joined else offers
        head = "".join(f"WWW-Authenticate: {line}\r\n" for line in lines)
        return f"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n{head}\r\nNo".encode()


def client_of(server: Server, password: str = PASSWORD, user: str = USER) -> AuthClient:
    return AuthClient(REACTOR, server.url, Digest(user, password))


@ensureDeferred
@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256"])
async def test_nonce_is_reused_and_counted(algorithm: str) -> None:
    digest_server = FakeDigestServer(algorithm)
    async with serving(digest_server) as server, client_of(server) as client:
        assert [await get(client) for _ in range(3)] == [200] * 3
        assert len(server.requests) == 4
        assert server.connections == 1
    assert [shown["nc"] for shown in digest_server.seen] == ["00000001", "00000002", "00000003"]
    assert {shown["algorithm"] for shown in digest_server.seen} == {algorithm}
    assert len({shown["cnonce"] for shown in digest_server.seen}) == 3


@ensureDeferred
async def test_concurrent_requests_share_a_nonce() -> None:
    digest_server = FakeDigestServer()
    async with serving(digest_server) as server, client_of(server) as client:
        assert await gatherResults([in_background(get(client)) for _ in range(10)]) == [200] * 10
    assert {shown["nc"] for shown in digest_server.seen} == {f"{count:08x}" for count in range(1, 11)}


@ensureDeferred
@pytest.mark.parametrize("sends_stale", [True, False])
async def test_replaced_nonce_is_used(*, sends_stale: bool) -> None:
    """Some servers forget their nonces on a restart, and refuse them without `stale`."""
    digest_server = FakeDigestServer()
    digest_server.sends_stale = sends_stale
    async with serving(digest_server) as server, client_of(server) as client:
        assert await get(client) == 200
        digest_server.nonce = "nonce-2"
        assert await get(client) == 200
        assert await get(client) == 200
        assert len(server.requests) == 5
    assert [(shown["nonce"], shown["nc"]) for shown in digest_server.seen] == [
        ("nonce-1", "00000001"),
        ("nonce-1", "00000002"),
        ("nonce-2", "00000001"),
        ("nonce-2", "00000002"),
    ]


@ensureDeferred
async def test_endless_stale_is_bounded() -> None:
    digest_server = FakeDigestServer()
    async with serving(lambda _: digest_server.challenge(stale=True)) as server, client_of(server) as client:
        assert await get(client) == 401
        assert len(server.requests) == 4


@ensureDeferred
async def test_wrong_password_is_tried_once() -> None:
    digest_server = FakeDigestServer("SHA-256", "MD5")
    async with serving(digest_server) as server, client_of(server, "wrong") as client:
        assert await get(client) == 401
        assert len(digest_server.seen) == 1


@ensureDeferred
async def test_changed_password_is_tried_once_with_a_new_nonce() -> None:
    digest_server = FakeDigestServer()
    async with serving(digest_server) as server, client_of(server) as client:
        assert await get(client) == 200
        digest_server.password, digest_server.nonce = "another", "nonce-2"
        assert await get(client) == 401
        assert len(digest_server.seen) == 3


@ensureDeferred
@pytest.mark.parametrize("joined", [False, True], ids=["two fields", "one field"])
@pytest.mark.parametrize("algorithms", [("MD5", "SHA-256"), ("SHA-256", "MD5"), ("SHA-512-256", "MD5-sess", "SHA-256")])
async def test_strongest_algorithm_is_chosen(algorithms: tuple[str, ...], *, joined: bool) -> None:
    digest_server = FakeDigestServer(*algorithms)
    digest_server.joined = joined
    async with serving(digest_server) as server, client_of(server) as client:
        assert await get(client) == 200
    assert [shown["algorithm"] for shown in digest_server.seen] == ["SHA-256"]


@ensureDeferred
@pytest.mark.parametrize(
    "info",
    [{"rspauth": "0" * 32}, {"rspauth": ""}, {"cnonce": "x"}, {"nc": "00000009"}, {"qop": "auth-int"}],
    ids=["rspauth", "empty", "cnonce", "nc", "qop"],
)
async def test_wrong_server_proof_is_refused(info: dict[str, str]) -> None:
    digest_server = FakeDigestServer()
    digest_server.info = info
    async with serving(digest_server) as server, client_of(server) as client:
        error = await error_of(get(client), SignInError)
        assert str(error).startswith("the server does not prove")
        assert len(server.requests) == 2


@ensureDeferred
async def test_server_proof_is_optional() -> None:
    digest_server = FakeDigestServer()
    digest_server.info = None
    async with serving(digest_server) as server, client_of(server) as client:
        assert [await get(client), await get(client)] == [200, 200]


@ensureDeferred
async def test_nextnonce_is_used() -> None:
    digest_server = FakeDigestServer()
    digest_server.info = {"nextnonce": "nonce-2"}
    async with serving(digest_server) as server, client_of(server) as client:
        assert await get(client) == 200
        digest_server.nonce = "nonce-2"
        assert [await get(client), await get(client)] == [200, 200]
        assert len(server.requests) == 4
    assert [shown["nc"] for shown in digest_server.seen] == ["00000001"] * 2 + ["00000002"]


@ensureDeferred
async def test_opaque_is_returned() -> None:
    digest_server = FakeDigestServer()
    digest_server.more = ', opaque="an \\"opaque\\" text"'
    async with serving(digest_server) as server, client_of(server) as client:
        assert await get(client) == 200
        assert 'opaque="an \\"opaque\\" text"' in server.last.authorization


@ensureDeferred
async def test_body_is_sent_again() -> None:
    async with serving(FakeDigestServer()) as server, client_of(server) as client:
        response = await client.post(f"{server.url}/", json={"post": "ä"})
        assert await response.json() == {"body": '{"post":"\\u00e4"}'}
        assert [request.body for request in server.requests] == [b'{"post":"\\u00e4"}'] * 2


@ensureDeferred
async def test_any_user_name_is_encoded() -> None:
    digest_server = FakeDigestServer()
    async with serving(digest_server) as server, client_of(server, user="jürgen") as client:
        assert await get(client) == 200
    async with serving(digest_server) as server, client_of(server, user='a "b" \\c') as client:
        digest_server.seen.clear()
        await get(client)
        assert 'username="a \\"b\\" \\\\c"' in server.last.authorization


@ensureDeferred
@pytest.mark.parametrize(
    "challenge",
    [
        'Digest realm="r", nonce="n"',
        'Digest realm="r", qop="auth-int", nonce="n"',
        'Digest realm="r", qop="auth"',
        'Digest realm="r", qop="auth", nonce="n", nonce="m"',
        'Digest realm="r", qop="auth", nonce="n", algorithm=SHA-512-256',
        'Basic realm="r"',
        'Digest realm="r',
        "",
    ],
)
async def test_unusable_challenge_is_not_answered(challenge: str) -> None:
    async with (
        serving(lambda _: make_response(401, "No", WWW_Authenticate=challenge)) as server,
        client_of(server) as client,
    ):
        assert await get(client) == 401
        assert len(server.requests) == 1


@ensureDeferred
async def test_changed_realm_is_answered() -> None:
    digest_server = FakeDigestServer()
    async with serving(digest_server) as server, client_of(server) as client:
        assert await get(client) == 200
        digest_server.realm = "another"
        assert await get(client) == 200


@ensureDeferred
@pytest.mark.parametrize("body", [b"x" * 100_000, b"never all of it"], ids=["long", "late"])
async def test_long_or_slow_refusal_closes_its_connection(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "DRAIN_MAX_S", 0.1)
    digest_server = FakeDigestServer()

    def handler(request: Request) -> bytes | Disconnect:
        if request.authorization:
            return digest_server(request)
        head = digest_server.challenge().replace(b"Content-Length: 2", b"Content-Length: 100000")
        return head.removesuffix(b"No") + body

    async with serving(handler) as server, client_of(server) as client:
        assert await get(client) == 200
        assert server.connections == 2

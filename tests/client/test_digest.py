"""Digest as a client, against a server whose arithmetic is not postd's."""

import json

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults

from postd.client import AuthClient, Digest, SignInError, authenticator
from tests.client.server import REACTOR, Asked, Cut, Server, answer, error_of, get, in_background, serving
from tests.integration.logins import compute, decode_parameters

USER, PASSWORD = "alice", "correct horse"


class Digesting:
    """Lets in who knows the password. What it offers, and what it says of itself, a test may change."""

    def __init__(self, *algorithms: str) -> None:
        self.algorithms = algorithms or ("MD5",)
        self.nonce = "nonce-1"
        self.password = PASSWORD
        self.realm = "a realm"
        self.more = ""
        self.joined = False
        self.says_stale = True
        self.info: dict[str, str] | None = {}
        self.seen: list[dict[str, str]] = []
        self.old: set[str] = set()

    def __call__(self, asked: Asked) -> bytes | Cut:
        if not asked.authorization:
            return self.challenge()
        scheme, _, parameters = asked.authorization.partition(" ")
        assert scheme == "Digest"
        shown = decode_parameters(parameters)
        self.seen.append(shown)
        assert shown["uri"] == asked.target
        is_right = shown["response"] == compute(shown, self.password, asked.method)
        if not is_right or shown["realm"] != self.realm:
            return self.challenge()
        if shown["nonce"] != self.nonce:
            return self.challenge(stale=self.says_stale)
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
        return answer(200, json.dumps({"body": asked.body.decode()}), **fields)

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
async def test_a_nonce_is_used_again_and_counted(algorithm: str) -> None:
    digesting = Digesting(algorithm)
    async with serving(digesting) as server, client_of(server) as client:
        assert [await get(client) for _ in range(3)] == [200] * 3
        assert len(server.asked) == 4
        assert server.connections == 1
    assert [shown["nc"] for shown in digesting.seen] == ["00000001", "00000002", "00000003"]
    assert {shown["algorithm"] for shown in digesting.seen} == {algorithm}
    assert len({shown["cnonce"] for shown in digesting.seen}) == 3


@ensureDeferred
async def test_many_at_once_share_a_nonce() -> None:
    digesting = Digesting()
    async with serving(digesting) as server, client_of(server) as client:
        assert await gatherResults([in_background(get(client)) for _ in range(10)]) == [200] * 10
    assert {shown["nc"] for shown in digesting.seen} == {f"{count:08x}" for count in range(1, 11)}


@ensureDeferred
@pytest.mark.parametrize("says_stale", [True, False])
async def test_a_nonce_that_is_not_good_any_more(*, says_stale: bool) -> None:
    """Some servers forget their nonces when they are started anew, and cannot tell an old one from a wrong password."""
    digesting = Digesting()
    digesting.says_stale = says_stale
    async with serving(digesting) as server, client_of(server) as client:
        assert await get(client) == 200
        digesting.nonce = "nonce-2"
        assert await get(client) == 200
        assert await get(client) == 200
        assert len(server.asked) == 5
    assert [(shown["nonce"], shown["nc"]) for shown in digesting.seen] == [
        ("nonce-1", "00000001"),
        ("nonce-1", "00000002"),
        ("nonce-2", "00000001"),
        ("nonce-2", "00000002"),
    ]


@ensureDeferred
async def test_stale_for_ever_comes_to_an_end() -> None:
    digesting = Digesting()
    async with serving(lambda _: digesting.challenge(stale=True)) as server, client_of(server) as client:
        assert await get(client) == 401
        assert len(server.asked) == 4


@ensureDeferred
async def test_a_wrong_password_is_not_tried_twice() -> None:
    digesting = Digesting("SHA-256", "MD5")
    async with serving(digesting) as server, client_of(server, "wrong") as client:
        assert await get(client) == 401
        assert len(digesting.seen) == 1


@ensureDeferred
async def test_a_password_that_was_changed_is_tried_once_with_a_new_nonce() -> None:
    digesting = Digesting()
    async with serving(digesting) as server, client_of(server) as client:
        assert await get(client) == 200
        digesting.password, digesting.nonce = "another", "nonce-2"
        assert await get(client) == 401
        assert len(digesting.seen) == 3


@ensureDeferred
@pytest.mark.parametrize("joined", [False, True], ids=["two fields", "one field"])
@pytest.mark.parametrize("algorithms", [("MD5", "SHA-256"), ("SHA-256", "MD5"), ("SHA-512-256", "MD5-sess", "SHA-256")])
async def test_the_strongest_algorithm_is_chosen(algorithms: tuple[str, ...], *, joined: bool) -> None:
    digesting = Digesting(*algorithms)
    digesting.joined = joined
    async with serving(digesting) as server, client_of(server) as client:
        assert await get(client) == 200
    assert [shown["algorithm"] for shown in digesting.seen] == ["SHA-256"]


@ensureDeferred
@pytest.mark.parametrize(
    "info",
    [{"rspauth": "0" * 32}, {"rspauth": ""}, {"cnonce": "x"}, {"nc": "00000009"}, {"qop": "auth-int"}],
    ids=["rspauth", "empty", "cnonce", "nc", "qop"],
)
async def test_a_server_that_does_not_know_the_password(info: dict[str, str]) -> None:
    digesting = Digesting()
    digesting.info = info
    async with serving(digesting) as server, client_of(server) as client:
        error = await error_of(get(client), SignInError)
        assert str(error).startswith("the server does not prove")
        assert len(server.asked) == 2


@ensureDeferred
async def test_a_server_need_not_prove_anything() -> None:
    digesting = Digesting()
    digesting.info = None
    async with serving(digesting) as server, client_of(server) as client:
        assert [await get(client), await get(client)] == [200, 200]


@ensureDeferred
async def test_the_next_nonce_is_taken() -> None:
    digesting = Digesting()
    digesting.info = {"nextnonce": "nonce-2"}
    async with serving(digesting) as server, client_of(server) as client:
        assert await get(client) == 200
        digesting.nonce = "nonce-2"
        assert [await get(client), await get(client)] == [200, 200]
        assert len(server.asked) == 4
    assert [shown["nc"] for shown in digesting.seen] == ["00000001"] * 2 + ["00000002"]


@ensureDeferred
async def test_what_is_opaque_is_given_back() -> None:
    digesting = Digesting()
    digesting.more = ', opaque="an \\"opaque\\" text"'
    async with serving(digesting) as server, client_of(server) as client:
        assert await get(client) == 200
        assert 'opaque="an \\"opaque\\" text"' in server.last.authorization


@ensureDeferred
async def test_a_body_is_sent_again() -> None:
    async with serving(Digesting()) as server, client_of(server) as client:
        response = await client.post(f"{server.url}/", json={"post": "ä"})
        assert await response.json() == {"body": '{"post":"\\u00e4"}'}
        assert [asked.body for asked in server.asked] == [b'{"post":"\\u00e4"}'] * 2


@ensureDeferred
async def test_names_of_any_script() -> None:
    digesting = Digesting()
    async with serving(digesting) as server, client_of(server, user="jürgen") as client:
        assert await get(client) == 200
    async with serving(digesting) as server, client_of(server, user='a "b" \\c') as client:
        digesting.seen.clear()
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
async def test_a_challenge_that_is_not_answered(challenge: str) -> None:
    async with (
        serving(lambda _: answer(401, "No", WWW_Authenticate=challenge)) as server,
        client_of(server) as client,
    ):
        assert await get(client) == 401
        assert len(server.asked) == 1


@ensureDeferred
async def test_another_realm_is_not_a_wrong_password() -> None:
    digesting = Digesting()
    async with serving(digesting) as server, client_of(server) as client:
        assert await get(client) == 200
        digesting.realm = "another"
        assert await get(client) == 200


@ensureDeferred
@pytest.mark.parametrize("body", [b"x" * 100_000, b"never all of it"], ids=["long", "late"])
async def test_a_refusal_that_is_too_much_to_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "DRAIN_MAX_S", 0.1)
    digesting = Digesting()

    def handler(asked: Asked) -> bytes | Cut:
        if asked.authorization:
            return digesting(asked)
        head = digesting.challenge().replace(b"Content-Length: 2", b"Content-Length: 100000")
        return head.removesuffix(b"No") + body

    async with serving(handler) as server, client_of(server) as client:
        assert await get(client) == 200
        assert server.connections == 2

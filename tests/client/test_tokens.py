"""Access tokens for a program in its own name: discovery, renewal ahead of time, and what issuers say instead."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults

from postd.client import AuthClient, ClientCredentials, SignInError, tokens
from tests.client.server import REACTOR, Asked, Server, answer, error_of, get, in_background, serving, wait_until

OPENID = "/.well-known/openid-configuration"
OAUTH = "/.well-known/oauth-authorization-server"


class Issuing:
    """An issuer. It gives `t1`, `t2`, … and takes no other pair of name and secret than its own."""

    def __init__(self) -> None:
        self.url = ""
        self.at = OPENID
        self.document: dict[str, Any] = {}
        self.given = 0
        self.told: dict[str, Any] = {}
        self.status = 200
        self.asked: list[Asked] = []
        self.silent = False

    def __call__(self, asked: Asked) -> bytes:
        if asked.target != "/token":
            document = {"issuer": self.url, "token_endpoint": f"{self.url}/token", **self.document}
            return answer(200, json.dumps(document)) if asked.target == self.at else answer(404)
        self.asked.append(asked)
        if self.silent:
            return b""
        self.given += 1
        told = {"access_token": f"t{self.given}", "token_type": "Bearer", "expires_in": 300, **self.told}
        return answer(self.status, json.dumps(told))

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.asked[-1].body.decode(), strict_parsing=True))


class Guarding:
    """A resource server: accepts each token that is not among `refused`."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.seen: list[str] = []

    def __call__(self, asked: Asked) -> bytes:
        self.seen.append(asked.authorization.removeprefix("Bearer "))
        return answer(401 if self.seen[-1] in self.refused else 200)


@asynccontextmanager
async def both(
    folder: Path, issuing: Issuing, guarding: Guarding, **options: str
) -> AsyncIterator[tuple[AuthClient, Server]]:
    (folder / "secret").write_text("p:ä ss\n")
    async with serving(issuing) as issuer, serving(guarding) as server:
        issuing.url = issuer.url
        auth = ClientCredentials(issuer.url, "our name", str(folder / "secret"), **options)
        async with AuthClient(REACTOR, server.url, auth) as client:
            yield client, issuer


@ensureDeferred
@pytest.mark.parametrize("at", [OPENID, OAUTH])
async def test_a_token_is_had_once_for_all(at: str, tmp_path: Path) -> None:
    issuing, guarding = Issuing(), Guarding()
    issuing.at = at
    async with both(tmp_path, issuing, guarding, scope="a b", resource="https://posts.example") as (client, _):
        assert await gatherResults([in_background(get(client)) for _ in range(5)]) == [200] * 5
        assert await get(client) == 200
    assert guarding.seen == ["t1"] * 6
    assert issuing.form == {"grant_type": "client_credentials", "scope": "a b", "resource": "https://posts.example"}
    assert issuing.asked[-1].authorization == "Basic " + "b3VyK25hbWU6cCUzQSVDMyVBNCtzcw=="
    assert b64decode("b3VyK25hbWU6cCUzQSVDMyVBNCtzcw==") == b"our+name:p%3A%C3%A4+ss"


@ensureDeferred
async def test_an_issuer_that_wants_the_secret_in_the_form(tmp_path: Path) -> None:
    issuing = Issuing()
    issuing.document = {"token_endpoint_auth_methods_supported": ["private_key_jwt", "client_secret_post"]}
    async with both(tmp_path, issuing, Guarding()) as (client, _):
        assert await get(client) == 200
    assert issuing.form == {"grant_type": "client_credentials", "client_id": "our name", "client_secret": "p:ä ss"}
    assert issuing.asked[-1].authorization == ""


@ensureDeferred
async def test_the_next_token_is_there_before_the_last_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuing, guarding = Issuing(), Guarding()
    monkeypatch.setattr(tokens, "RENEWAL_FRACTION", 1.0)
    monkeypatch.setattr(tokens, "RENEWAL_RETRY_S", 0.0)
    async with both(tmp_path, issuing, guarding) as (client, _):
        assert await get(client) == 200
        issuing.silent = True
        # Nobody waits for it.
        assert await gatherResults([in_background(get(client)) for _ in range(3)]) == [200] * 3
        await wait_until(lambda: len(issuing.asked) == 2)
        assert set(guarding.seen) == {"t1"}


@ensureDeferred
async def test_a_token_serves_while_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuing, guarding = Issuing(), Guarding()
    monkeypatch.setattr(tokens, "RENEWAL_FRACTION", 1.0)
    async with both(tmp_path, issuing, guarding) as (client, _):
        assert await get(client) == 200
        issuing.status = 500
        monkeypatch.setattr(tokens, "RENEWAL_RETRY_S", 0.0)
        for _ in range(3):
            assert await get(client) == 200
        assert set(guarding.seen) == {"t1"}


@ensureDeferred
async def test_a_token_that_has_expired_is_replaced(tmp_path: Path) -> None:
    issuing, guarding = Issuing(), Guarding()
    issuing.told = {"expires_in": 0.05}
    async with both(tmp_path, issuing, guarding) as (client, _):
        assert await get(client) == 200
        began = REACTOR.seconds()
        await wait_until(lambda: REACTOR.seconds() > began + 0.1)
        assert await get(client) == 200
        assert guarding.seen == ["t1", "t2"]


@ensureDeferred
@pytest.mark.parametrize("expires_in", [None, 300, "300"])
async def test_a_token_that_is_refused_is_replaced_once(expires_in: object, tmp_path: Path) -> None:
    issuing, guarding = Issuing(), Guarding()
    issuing.told = {"expires_in": expires_in, "token_type": "bearer"}
    async with both(tmp_path, issuing, guarding) as (client, _):
        assert await get(client) == 200
        guarding.refused = {"t1"}
        assert await gatherResults([in_background(get(client)) for _ in range(3)]) == [200] * 3
        assert issuing.given == 2
        guarding.refused = {"t2", "t3"}
        assert await get(client) == 401
        assert issuing.given == 3


@ensureDeferred
@pytest.mark.parametrize(
    ("told", "status", "why"),
    [
        ({"error": "invalid_scope"}, 400, "no token granted: invalid_scope"),
        ({"error": "\x1b[31m"}, 400, "no token granted: no error code"),
        ({}, 401, "it answers 401"),
        ({"token_type": "DPoP"}, 200, "no bearer token"),
        ({"access_token": None}, 200, "no bearer token"),
        ({"access_token": "a b"}, 200, "not one token"),
    ],
    ids=["an error", "an error to look at", "401", "another type", "none", "two"],
)
async def test_an_issuer_that_gives_no_token(told: dict[str, Any], status: int, why: str, tmp_path: Path) -> None:
    issuing, guarding = Issuing(), Guarding()
    issuing.told, issuing.status = told, status
    async with both(tmp_path, issuing, guarding) as (client, _):
        error: SignInError = await error_of(get(client), SignInError)
        assert str(error).startswith(f"{issuing.url}: ")
        assert why in str(error)
        assert guarding.seen == []


@ensureDeferred
@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"issuer": "https://elsewhere.example"}, "not this issuer's"),
        ({"token_endpoint": "http://elsewhere.example/token"}, "no token_endpoint that is https"),
        ({"token_endpoint": None}, "no token_endpoint that is https"),
    ],
    ids=["another issuer", "plain http", "none"],
)
async def test_an_issuer_that_is_not_to_be_trusted(document: dict[str, Any], why: str, tmp_path: Path) -> None:
    issuing = Issuing()
    issuing.document = document
    async with both(tmp_path, issuing, Guarding()) as (client, _):
        assert why in str(await error_of(get(client), SignInError))


@ensureDeferred
async def test_a_secret_that_cannot_be_read(tmp_path: Path) -> None:
    issuing = Issuing()
    async with both(tmp_path, issuing, Guarding()) as (client, issuer):
        (tmp_path / "secret").unlink()
        error: SignInError = await error_of(get(client), SignInError)
        assert str(error).startswith(f"{tmp_path}/secret: cannot be read")
        assert issuer.asked == []
        (tmp_path / "secret").write_text("p\n")
        assert await get(client) == 200
        assert [asked.target for asked in issuer.asked].count(OPENID) == 1


@ensureDeferred
async def test_an_issuer_that_is_away_may_come_back(tmp_path: Path) -> None:
    issuing = Issuing()
    async with both(tmp_path, issuing, Guarding()) as (client, issuer):
        await issuer.stop()
        error: SignInError = await error_of(get(client), SignInError)
        assert error.passing


@ensureDeferred
async def test_closing_does_not_wait_for_an_issuer(tmp_path: Path) -> None:
    issuing = Issuing()
    issuing.silent = True
    async with both(tmp_path, issuing, Guarding()) as (client, issuer):
        call = in_background(get(client))
        await wait_until(lambda: issuing.asked)
        await client.close()
        assert await error_of(call, SignInError)
        await wait_until(lambda: not issuer.open)

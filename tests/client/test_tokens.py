"""Client credentials: discovery, token requests, renewal, and errors of issuers."""

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
from tests.client.server import (
    REACTOR,
    Request,
    Server,
    error_of,
    get,
    in_background,
    make_response,
    serving,
    wait_until,
)
from tests.held_reactor import HeldReactor

OPENID = "/.well-known/openid-configuration"
OAUTH = "/.well-known/oauth-authorization-server"


class FakeIssuer:
    """An issuer that grants the tokens `t1`, `t2`, …; `members` are merged into its token responses."""

    def __init__(self) -> None:
        self.url = ""
        self.at = OPENID
        self.document: dict[str, Any] = {}
        self.given = 0
        self.members: dict[str, Any] = {}
        self.status = 200
        self.requests: list[Request] = []
        self.silent = False

    def __call__(self, request: Request) -> bytes:
        if request.target != "/token":
            document = {"issuer": self.url, "token_endpoint": f"{self.url}/token", **self.document}
            return make_response(200, json.dumps(document)) if request.target == self.at else make_response(404)
        self.requests.append(request)
        if self.silent:
            return b""
        self.given += 1
        members = {"access_token": f"t{self.given}", "token_type": "Bearer", "expires_in": 300, **self.members}
        return make_response(self.status, json.dumps(members))

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.requests[-1].body.decode(), strict_parsing=True))


class FakeResourceServer:
    """A resource server: accepts each token that is not among `refused`."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.seen: list[str] = []

    def __call__(self, request: Request) -> bytes:
        self.seen.append(request.authorization.removeprefix("Bearer "))
        return make_response(401 if self.seen[-1] in self.refused else 200)


@asynccontextmanager
async def running(
    folder: Path,
    fake_issuer: FakeIssuer,
    resource_server: FakeResourceServer,
    *,
    reactor: Any = REACTOR,
    **options: str,
) -> AsyncIterator[tuple[AuthClient, Server]]:
    (folder / "secret").write_text("p:ä ss\n")
    async with serving(fake_issuer) as issuer, serving(resource_server) as server:
        fake_issuer.url = issuer.url
        auth = ClientCredentials(issuer.url, "our name", str(folder / "secret"), **options)
        async with AuthClient(reactor, server.url, auth) as client:
            yield client, issuer


@ensureDeferred
@pytest.mark.parametrize("at", [OPENID, OAUTH])
async def test_one_token_serves_all_requests(at: str, tmp_path: Path) -> None:
    fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
    fake_issuer.at = at
    async with running(tmp_path, fake_issuer, resource_server, scope="a b", resource="https://posts.example") as (
        client,
        _,
    ):
        assert await gatherResults([in_background(get(client)) for _ in range(5)]) == [200] * 5
        assert await get(client) == 200
    assert resource_server.seen == ["t1"] * 6
    assert fake_issuer.form == {"grant_type": "client_credentials", "scope": "a b", "resource": "https://posts.example"}
    assert fake_issuer.requests[-1].authorization == "Basic " + "b3VyK25hbWU6cCUzQSVDMyVBNCtzcw=="
    assert b64decode("b3VyK25hbWU6cCUzQSVDMyVBNCtzcw==") == b"our+name:p%3A%C3%A4+ss"


@ensureDeferred
async def test_client_secret_post_is_used_where_required(tmp_path: Path) -> None:
    fake_issuer = FakeIssuer()
    fake_issuer.document = {"token_endpoint_auth_methods_supported": ["private_key_jwt", "client_secret_post"]}
    async with running(tmp_path, fake_issuer, FakeResourceServer()) as (client, _):
        assert await get(client) == 200
    assert fake_issuer.form == {"grant_type": "client_credentials", "client_id": "our name", "client_secret": "p:ä ss"}
    assert fake_issuer.requests[-1].authorization == ""


@ensureDeferred
async def test_token_is_renewed_before_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
    monkeypatch.setattr(tokens, "RENEWAL_FRACTION", 1.0)
    monkeypatch.setattr(tokens, "RENEWAL_RETRY_S", 0.0)
    async with running(tmp_path, fake_issuer, resource_server) as (client, _):
        assert await get(client) == 200
        fake_issuer.silent = True
        # No request waits for the renewal.
        assert await gatherResults([in_background(get(client)) for _ in range(3)]) == [200] * 3
        await wait_until(lambda: len(fake_issuer.requests) == 2)
        assert set(resource_server.seen) == {"t1"}


@ensureDeferred
async def test_token_is_used_while_renewal_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
    monkeypatch.setattr(tokens, "RENEWAL_FRACTION", 1.0)
    async with running(tmp_path, fake_issuer, resource_server) as (client, _):
        assert await get(client) == 200
        fake_issuer.status = 500
        monkeypatch.setattr(tokens, "RENEWAL_RETRY_S", 0.0)
        for _ in range(3):
            assert await get(client) == 200
        assert set(resource_server.seen) == {"t1"}


@ensureDeferred
async def test_expired_token_is_replaced(tmp_path: Path) -> None:
    fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
    fake_issuer.members = {"expires_in": 60}
    reactor = HeldReactor()
    async with running(tmp_path, fake_issuer, resource_server, reactor=reactor) as (client, _):
        assert await get(client) == 200
        reactor.advance(60)
        assert await get(client) == 200
        assert resource_server.seen == ["t1", "t2"]


@ensureDeferred
@pytest.mark.parametrize("expires_in", [None, 300, "300"])
async def test_refused_token_is_replaced_once(expires_in: object, tmp_path: Path) -> None:
    fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
    fake_issuer.members = {"expires_in": expires_in, "token_type": "bearer"}
    async with running(tmp_path, fake_issuer, resource_server) as (client, _):
        assert await get(client) == 200
        resource_server.refused = {"t1"}
        assert await gatherResults([in_background(get(client)) for _ in range(3)]) == [200] * 3
        assert fake_issuer.given == 2
        resource_server.refused = {"t2", "t3"}
        assert await get(client) == 401
        assert fake_issuer.given == 3


OPTIONAL_OF_TOKEN = (
    "expires_in",
    "scope",
    "refresh_token",
    "id_token",
    "issued_token_type",
    "error",
    "error_description",
)
OPTIONAL_OF_METADATA = ("jwks_uri", "token_endpoint_auth_methods_supported", "dpop_signing_alg_values_supported")


@ensureDeferred
@pytest.mark.parametrize("value", [None, "", [], {}], ids=repr)
async def test_empty_member_of_an_issuer_is_as_absent(value: Any, tmp_path: Path) -> None:
    """Of token responses and of metadata; a required one is missing."""
    for members in ({name: value} for name in (*OPTIONAL_OF_TOKEN, *OPTIONAL_OF_METADATA)):
        fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
        fake_issuer.document = fake_issuer.members = members
        async with running(tmp_path, fake_issuer, resource_server) as (client, _):
            assert await get(client) == 200, members
    for name in ("access_token", "token_type"):
        fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
        fake_issuer.members = {name: value}
        async with running(tmp_path, fake_issuer, resource_server) as (client, _):
            assert "no bearer token" in str(await error_of(get(client), SignInError))


@ensureDeferred
async def test_busy_issuer_is_a_temporary_error(tmp_path: Path) -> None:
    """It gets no request before the time that it has asked for."""
    fake_issuer = FakeIssuer()
    fake_issuer.status = 429
    async with running(tmp_path, fake_issuer, FakeResourceServer()) as (client, _):
        for _ in range(3):
            error: SignInError = await error_of(get(client), SignInError)
            assert (error.temporary, "has asked to wait" in str(error)) == (True, True)
        assert fake_issuer.given == 1


@ensureDeferred
@pytest.mark.parametrize(
    ("members", "status", "why"),
    [
        ({"error": "invalid_scope"}, 400, "no token granted: invalid_scope"),
        ({"error": "\x1b[31m"}, 400, "no token granted: no error code"),
        ({}, 401, "unexpected HTTP status 401"),
        ({"token_type": "DPoP"}, 200, "no bearer token"),
        ({"access_token": None}, 200, "no bearer token"),
        ({"access_token": "a b"}, 200, "not one token"),
    ],
    ids=["an error", "an error to look at", "401", "another type", "none", "two"],
)
async def test_failed_token_request_is_reported(members: dict[str, Any], status: int, why: str, tmp_path: Path) -> None:
    fake_issuer, resource_server = FakeIssuer(), FakeResourceServer()
    fake_issuer.members, fake_issuer.status = members, status
    async with running(tmp_path, fake_issuer, resource_server) as (client, _):
        error: SignInError = await error_of(get(client), SignInError)
        assert str(error).startswith(f"{fake_issuer.url}: ")
        assert why in str(error)
        assert resource_server.seen == []


@ensureDeferred
@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"issuer": "https://elsewhere.example"}, "not this issuer's"),
        ({"token_endpoint": "http://elsewhere.example/token"}, "no token_endpoint with an https URL"),
        ({"token_endpoint": None}, "no token_endpoint with an https URL"),
    ],
    ids=["another issuer", "plain http", "none"],
)
async def test_untrustworthy_metadata_is_refused(document: dict[str, Any], why: str, tmp_path: Path) -> None:
    fake_issuer = FakeIssuer()
    fake_issuer.document = document
    async with running(tmp_path, fake_issuer, FakeResourceServer()) as (client, _):
        assert why in str(await error_of(get(client), SignInError))


@ensureDeferred
async def test_unreadable_secret_is_reported(tmp_path: Path) -> None:
    fake_issuer = FakeIssuer()
    async with running(tmp_path, fake_issuer, FakeResourceServer()) as (client, issuer):
        (tmp_path / "secret").unlink()
        error: SignInError = await error_of(get(client), SignInError)
        assert str(error).startswith(f"{tmp_path}/secret: cannot be read")
        assert issuer.requests == []
        (tmp_path / "secret").write_text("p\n")
        assert await get(client) == 200
        assert [request.target for request in issuer.requests].count(OPENID) == 1


@ensureDeferred
async def test_unavailable_issuer_is_a_temporary_error(tmp_path: Path) -> None:
    fake_issuer = FakeIssuer()
    async with running(tmp_path, fake_issuer, FakeResourceServer()) as (client, issuer):
        await issuer.stop()
        error: SignInError = await error_of(get(client), SignInError)
        assert error.temporary


@ensureDeferred
async def test_close_cancels_the_token_request(tmp_path: Path) -> None:
    fake_issuer = FakeIssuer()
    fake_issuer.silent = True
    async with running(tmp_path, fake_issuer, FakeResourceServer()) as (client, issuer):
        call = in_background(get(client))
        await wait_until(lambda: fake_issuer.requests)
        await client.close()
        assert await error_of(call, SignInError)
        await wait_until(lambda: not issuer.open)

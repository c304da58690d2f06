"""Tokens that a real issuer, npm's oidc-provider, binds to the key of a client, whose proofs npm's jose makes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.issuer import Key
from tests.proofs import token_hash
from tests.system.provider import AUDIENCE, BOTH, INSTALLED, OPAQUE, Provider
from tests.system.test_provider import decode_part, introspecting, page, serve

MAKER = Path(__file__).with_name("make_proofs.mjs")
ALGORITHMS = ["ES256", "EdDSA", "Ed25519", "PS256", "RS256"]
STOP_MAX_S = PATIENCE_S


class JoseProver:
    """`node make_proofs.mjs`: a client with a key of its own; ends with the `with` block."""

    def __init__(self, algorithm: str) -> None:
        self._command = ["node", str(MAKER), str(INSTALLED), algorithm]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=STOP_MAX_S)

    def prove(self, method: str, url: str, token: str | None = None) -> str:
        """Return a proof for a request, with the hash of a token if one is given."""
        assert self._process.stdin
        assert self._process.stdout
        claims = {"htm": method, "htu": url, **({} if token is None else {"ath": token_hash(token)})}
        print(json.dumps(claims), file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def token(self, provider: Provider, resource: str = AUDIENCE) -> str:
        """Return a token of the client credentials flow, bound to the key."""
        return provider.client_credentials(BOTH, resource, proof=self.prove("POST", provider.token_endpoint))

    def ask(self, daemon: Daemon, token: str, method: str = "GET", path: str = "/post") -> httpx.Response:
        """Make a request with a token and a proof."""
        fields = {"Authorization": f"DPoP {token}", "DPoP": self.prove(method, AUDIENCE + path, token)}
        body = {"post": "by a bound token"} if method == "POST" else None
        return httpx.request(method, daemon.url + path, headers=fields, json=body)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider(Key.make("RS256")) as provider:
        yield provider


@pytest.fixture(scope="module")
def daemon(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = page(), f'{introspecting(provider)}dpop = "accept"\n'
    with serve(tmp_path_factory.mktemp("daemon"), *settings) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("resource", [AUDIENCE, OPAQUE])
def test_bound_token_is_accepted_with_its_proofs(
    daemon: Daemon, provider: Provider, algorithm: str, resource: str
) -> None:
    with JoseProver(algorithm) as owner, JoseProver(algorithm) as thief:
        token = owner.token(provider, resource)
        assert ("." in token) == (resource == AUDIENCE)
        for _ in range(2):
            assert owner.ask(daemon, token).status_code == 200
        assert owner.ask(daemon, token, "POST").status_code == 201
        assert owner.ask(daemon, token, path="/mine").text == "Success: machine-RS256\n"
        assert thief.ask(daemon, token).status_code == 401
        assert httpx.get(f"{daemon.url}/post", headers={"Authorization": f"Bearer {token}"}).status_code == 401
        fields = {"Authorization": f"DPoP {token}", "DPoP": owner.prove("GET", f"{AUDIENCE}/post", token)}
        assert [httpx.get(f"{daemon.url}/post", headers=fields).status_code for _ in range(2)] == [200, 401]


def test_token_of_a_user_is_bound_by_the_code_flow(daemon: Daemon, provider: Provider) -> None:
    with JoseProver("ES256") as owner, JoseProver("ES256") as thief:
        proof = owner.prove("POST", provider.token_endpoint)
        token = provider.authorization_code("alice", BOTH, proof=proof).access
        assert set(decode_part(token, 1)["cnf"]) == {"jkt"}
        assert owner.ask(daemon, token, path="/mine").text == "Success: alice\n"
        assert thief.ask(daemon, token, path="/mine").status_code == 401


@pytest.mark.parametrize("resource", [AUDIENCE, OPAQUE])
def test_token_that_is_not_bound_is_refused_with_a_proof(daemon: Daemon, provider: Provider, resource: str) -> None:
    token = provider.client_credentials(BOTH, resource)
    assert httpx.get(f"{daemon.url}/post", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    with JoseProver("ES256") as client:
        assert client.ask(daemon, token).status_code == 401


@pytest.mark.parametrize("resource", [AUDIENCE, OPAQUE])
def test_only_bound_tokens_are_accepted_where_they_are_required(
    provider: Provider, tmp_path: Path, resource: str
) -> None:
    with serve(tmp_path, f'{introspecting(provider)}dpop = "require"\n') as daemon, JoseProver("PS256") as owner:
        unbound = provider.client_credentials(BOTH, resource)
        answer = httpx.get(f"{daemon.url}/post", headers={"Authorization": f"Bearer {unbound}"})
        (challenge,) = answer.headers.get_list("WWW-Authenticate")
        assert (answer.status_code, challenge.partition(" ")[0]) == (401, "DPoP")
        assert owner.ask(daemon, owner.token(provider, resource)).status_code == 200

"""`DPoP`: the proofs of requests and of token requests, nonces, retries, and tokens that are not bound."""

import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults

from postd.client import (
    AuthClient,
    BearerFile,
    ClientCredentials,
    DPoP,
    DPoPKey,
    PostClient,
    SignInError,
    load_dpop_key,
)
from postd.client.authenticator import ATTEMPTS_MAX
from postd.errors import ConfigError
from tests.client.server import (
    REACTOR,
    Disconnect,
    Request,
    error_of,
    get,
    in_background,
    make_response,
    serving,
    wait_until,
)
from tests.client.test_tokens import FakeIssuer
from tests.proofs import Proof, read_proof, token_hash

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "client.md"
KEY = DPoPKey.generate()
USE_NONCE = 'DPoP error="use_dpop_nonce", error_description="a nonce, please", algs="ES256"'


class ProvingServer:
    """A resource server that verifies each proof, and asks for its nonce when it has one."""

    def __init__(self) -> None:
        self.url = ""
        self.nonce: str | None = None
        self.next_nonces: list[str] = []
        self.refused: set[str] = set()
        self.tokens: list[str] = []
        self.proofs: list[Proof] = []

    def __call__(self, request: Request) -> bytes:
        self.proofs.append(check_request(request, self.url))
        self.tokens.append(request.authorization.removeprefix("DPoP "))
        shown = self.proofs[-1].claims.get("nonce")
        if self.nonce is not None and shown != self.nonce:
            return make_response(401, WWW_Authenticate=f'Bearer realm="r", {USE_NONCE}', DPoP_Nonce=self.nonce)
        if self.tokens[-1] in self.refused:
            return make_response(401, WWW_Authenticate='DPoP error="invalid_token"')
        if self.next_nonces:
            self.nonce = self.next_nonces.pop(0)
            return make_response(200, DPoP_Nonce=self.nonce)
        return make_response(200)

    @property
    def nonces(self) -> list[str | None]:
        return [proof.claims.get("nonce") for proof in self.proofs]


def check_request(request: Request, origin: str) -> Proof:
    """Return the verified proof of a request after a check of all its members, but the nonce."""
    scheme, token = request.authorization.split(" ")
    proof = read_proof(request.fields["dpop"])
    assert scheme == "DPoP"
    assert proof.header == {"typ": "dpop+jwt", "alg": "ES256", "jwk": KEY.jwk}
    assert proof.claims["htm"] == request.method
    assert proof.claims["htu"] == origin + request.target.partition("?")[0]
    assert proof.claims["ath"] == token_hash(token)
    assert abs(proof.claims["iat"] - time.time()) < 30
    assert set(proof.claims) <= {"jti", "htm", "htu", "iat", "ath", "nonce"}
    return proof


class ProvenIssuer(FakeIssuer):
    """An issuer that verifies the proofs of token requests, and asks for its nonce when it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.members = {"token_type": "DPoP"}
        self.nonce: str | None = None
        self.nonces: list[str | None] = []
        self.identifiers: list[str] = []

    def __call__(self, request: Request) -> bytes:
        if request.target == "/token":
            claims = read_proof(request.fields["dpop"]).claims
            assert (claims["htm"], claims["htu"]) == ("POST", f"{self.url}/token")
            assert "ath" not in claims
            self.nonces.append(claims.get("nonce"))
            self.identifiers.append(claims["jti"])
            if self.nonce is not None and claims.get("nonce") != self.nonce:
                return make_response(400, json.dumps({"error": "use_dpop_nonce"}), DPoP_Nonce=self.nonce)
        return super().__call__(request)


class Parts(Struct):
    client: AuthClient
    token_file: Path


@asynccontextmanager
async def with_file(
    folder: Path, handler: Callable[[Request], bytes | Disconnect], *, token: str = "a-token", **options: Any
) -> AsyncIterator[Parts]:
    """Give a client with a token in a file, and a server."""
    file = folder / "token"
    file.write_text(token)
    async with serving(handler) as server:
        if isinstance(handler, ProvingServer):
            handler.url = server.url
        async with AuthClient(REACTOR, server.url, DPoP(BearerFile(str(file)), KEY), **options) as client:
            yield Parts(client, file)


@asynccontextmanager
async def with_issuer(folder: Path, issuer: FakeIssuer, handler: ProvingServer) -> AsyncIterator[AuthClient]:
    """Give a client with tokens of an issuer, and a server."""
    (folder / "secret").write_text("s3cret\n")
    async with serving(issuer) as issuing, serving(handler) as server:
        issuer.url, handler.url = issuing.url, server.url
        source = ClientCredentials(issuer.url, "us", str(folder / "secret"))
        async with AuthClient(REACTOR, server.url, DPoP(source, KEY)) as client:
            yield client


@ensureDeferred
async def test_each_request_has_a_proof_of_its_own(tmp_path: Path) -> None:
    server = ProvingServer()
    async with with_file(tmp_path, server) as parts:
        assert await gatherResults([in_background(get(parts.client)) for _ in range(5)]) == [200] * 5
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            response = await parts.client.request(method, f"{parts.client.origin}/a%20b/?q=1", data=b"{}")
            assert response.code == 200
        assert server.tokens == ["a-token"] * 9
        assert len({proof.claims["jti"] for proof in server.proofs}) == 9
        assert server.nonces == [None] * 9


@ensureDeferred
async def test_changed_token_file_is_read_again(tmp_path: Path) -> None:
    server = ProvingServer()
    async with with_file(tmp_path, server) as parts:
        assert await get(parts.client) == 200
        parts.token_file.write_text("another-token")
        assert await get(parts.client) == 200
        assert server.tokens == ["a-token", "another-token"]


@ensureDeferred
async def test_redirect_gets_a_proof_of_its_target(tmp_path: Path) -> None:
    proofs: list[Proof] = []

    async with serving(lambda _: make_response(200)) as elsewhere:

        def handler(request: Request) -> bytes:
            proofs.append(check_request(request, parts.client.origin))
            target = {"/a": "/b?c", "/b?c": f"{elsewhere.url}/there"}[request.target]
            return make_response(302, Location=target)

        async with with_file(tmp_path, handler) as parts:
            assert await get(parts.client, "/a") == 200
            assert elsewhere.last.target == "/there"
            assert not {"authorization", "dpop"} & set(elsewhere.last.fields)
            assert [proof.claims["htu"] for proof in proofs] == [
                f"{parts.client.origin}{path}" for path in ("/a", "/b")
            ]


@ensureDeferred
async def test_nonce_is_used_after_one_retry_and_renewed(tmp_path: Path) -> None:
    server = ProvingServer()
    server.nonce, server.next_nonces = "n1", ["n1", "n2", "n3"]
    async with with_file(tmp_path, server) as parts:
        response = await parts.client.post(f"{parts.client.origin}/post", data=b"text")
        assert response.code == 200
        assert [await get(parts.client) for _ in range(3)] == [200] * 3
        assert server.nonces == [None, "n1", "n1", "n2", "n3"]
        # The server forgets its nonces.
        server.nonce = "n4"
        assert await get(parts.client) == 200
        assert server.nonces[5:] == ["n3", "n4"]
        assert len({proof.claims["jti"] for proof in server.proofs}) == 7


@ensureDeferred
async def test_server_that_never_accepts_its_nonce_gets_one_retry(tmp_path: Path) -> None:
    nonces: list[Any] = []

    def handler(request: Request) -> bytes:
        nonces.append(read_proof(request.fields["dpop"]).claims.get("nonce"))
        return make_response(401, WWW_Authenticate=USE_NONCE, DPoP_Nonce=f"n{len(nonces)}")

    async with with_file(tmp_path, handler) as parts:
        assert await get(parts.client) == 401
        assert nonces == [None, "n1"]
        assert await get(parts.client) == 401
        assert nonces == [None, "n1", "n2", "n3"]


@ensureDeferred
@pytest.mark.parametrize(
    "fields",
    [
        {"status": 403, "WWW_Authenticate": USE_NONCE, "DPoP_Nonce": "a"},
        {"WWW_Authenticate": USE_NONCE},
        {"WWW_Authenticate": USE_NONCE, "DPoP_Nonce": ""},
        {"WWW_Authenticate": USE_NONCE, "DPoP_Nonce": 'a"b'},
        {"WWW_Authenticate": USE_NONCE, "DPoP_Nonce": "a b"},
        {"WWW_Authenticate": USE_NONCE, "DPoP_Nonce": "ä"},
        {"WWW_Authenticate": USE_NONCE, "DPoP_Nonce": "x" * 1025},
        {"WWW_Authenticate": USE_NONCE, "DPoP_Nonce": "a\r\nDPoP-Nonce: b"},
        {"WWW_Authenticate": USE_NONCE.replace("DPoP", "Bearer"), "DPoP_Nonce": "a"},
        {"WWW_Authenticate": 'DPoP error="invalid_dpop_proof"', "DPoP_Nonce": "a"},
        {"DPoP_Nonce": "a"},
    ],
    ids=[
        "403",
        "none",
        "empty",
        "a quote",
        "a space",
        "ä",
        "long",
        "two",
        "of Bearer",
        "another error",
        "no challenge",
    ],
)
async def test_refusal_without_a_usable_nonce_is_not_retried(fields: dict[str, Any], tmp_path: Path) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> bytes:
        seen.append(request)
        return make_response(**{"status": 401, **fields})

    async with with_file(tmp_path, handler) as parts:
        assert await get(parts.client) == fields.get("status", 401)
        assert len(seen) == 1


@ensureDeferred
async def test_nonce_of_a_body_that_is_too_long_is_used_by_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postd.client.authenticator.BODY_MAX_BYTES", 10)
    server = ProvingServer()
    server.nonce = "n1"
    async with with_file(tmp_path, server) as parts:
        assert "too long" in str(await error_of(parts.client.post(parts.client.origin, data=b"x" * 11), SignInError))
        assert (await parts.client.post(parts.client.origin, data=b"x" * 11)).code == 200


@ensureDeferred
@pytest.mark.parametrize(
    ("method", "body", "repeats"),
    [("GET", None, True), ("DELETE", None, True), ("DELETE", b"x", False), ("POST", None, False)],
)
async def test_request_on_a_broken_connection_is_sent_again_with_another_proof(
    method: str, body: bytes | None, tmp_path: Path, *, repeats: bool
) -> None:
    proofs: list[str] = []

    def handler(request: Request) -> bytes | Disconnect:
        if request.target == "/first":
            return make_response(200)
        proofs.append(read_proof(request.fields["dpop"]).claims["jti"])
        return Disconnect() if len(proofs) == 1 else make_response(200)

    async with with_file(tmp_path, handler) as parts:
        assert await get(parts.client, "/first") == 200
        sending = parts.client.request(method, f"{parts.client.origin}/x", data=body)
        if repeats:
            assert (await sending).code == 200
            assert len(set(proofs)) == 2
        else:
            assert await error_of(sending)
            assert len(proofs) == 1


@ensureDeferred
async def test_server_that_always_disconnects_gets_one_repetition(tmp_path: Path) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> Disconnect:
        seen.append(request)
        return Disconnect()

    async with with_file(tmp_path, handler) as parts:
        assert await error_of(get(parts.client))
        assert len(seen) == 2
    async with with_file(tmp_path, handler, repeats=False) as parts:
        assert await error_of(get(parts.client))
        assert len(seen) == 3


@ensureDeferred
async def test_cancelled_request_is_not_repeated(tmp_path: Path) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> bytes:
        seen.append(request)
        return b""

    async with with_file(tmp_path, handler) as parts:
        sending = in_background(get(parts.client))
        await wait_until(lambda: seen)
        sending.cancel()
        await error_of(sending)
        assert len(seen) == 1


@ensureDeferred
async def test_post_client_adds_and_watches_with_proofs(tmp_path: Path) -> None:
    """Also when the server asks for a nonce."""
    (tmp_path / "token").write_text("a-token")
    proofs: list[Proof] = []

    def handler(request: Request) -> bytes:
        proofs.append(check_request(request, server.url))
        if "nonce" not in proofs[-1].claims:
            return make_response(401, WWW_Authenticate=USE_NONCE, DPoP_Nonce="n1")
        return make_response(201, Location="/post/7")

    async with serving(handler) as server:
        auth = DPoP(BearerFile(str(tmp_path / "token")), KEY)
        async with PostClient(REACTOR, server.url, auth) as posts:
            assert [await posts.add("one"), await posts.add("two")] == [7, 7]
    assert [proof.claims["htu"] for proof in proofs] == [f"{server.url}/post"] * 3
    assert [proof.claims.get("nonce") for proof in proofs] == [None, "n1", "n1"]


@ensureDeferred
async def test_granted_token_is_requested_with_a_proof_of_the_same_key(tmp_path: Path) -> None:
    issuer, server = ProvenIssuer(), ProvingServer()
    async with with_issuer(tmp_path, issuer, server) as client:
        assert await gatherResults([in_background(get(client)) for _ in range(3)]) == [200] * 3
    assert server.tokens == ["t1"] * 3
    assert issuer.nonces == [None]
    (request,) = issuer.requests
    assert read_proof(request.fields["dpop"]).thumbprint == KEY.thumbprint
    assert request.authorization.startswith("Basic ")


@ensureDeferred
async def test_nonces_of_issuer_and_server_are_kept_apart(tmp_path: Path) -> None:
    issuer, server = ProvenIssuer(), ProvingServer()
    issuer.nonce, server.nonce = "i1", "s1"
    async with with_issuer(tmp_path, issuer, server) as client:
        assert await get(client) == 200
        assert (issuer.nonces, server.nonces) == ([None, "i1"], [None, "s1"])
        server.refused = {"t1"}
        issuer.nonce = "i2"
        assert await get(client) == 200
        assert (issuer.nonces[2:], server.nonces[2:]) == (["i1", "i2"], ["s1", "s1"])
        assert server.tokens[2:] == ["t1", "t2"]
        assert len(set(issuer.identifiers)) == 4


@ensureDeferred
@pytest.mark.parametrize(("nonce", "expected"), [(None, [None, "next"]), ("n1", [None, "n1", "next", "n1"])])
async def test_nonce_of_a_granted_token_is_used_for_the_next_one(
    nonce: str | None, expected: list[str | None], tmp_path: Path
) -> None:
    class RotatingIssuer(ProvenIssuer):
        def __call__(self, request: Request) -> bytes:
            return super().__call__(request).replace(b" 200 -\r\n", b" 200 -\r\nDPoP-Nonce: next\r\n")

    issuer, server = RotatingIssuer(), ProvingServer()
    issuer.nonce = nonce
    async with with_issuer(tmp_path, issuer, server) as client:
        assert await get(client) == 200
        server.refused = {"t1"}
        assert await get(client) == 200
    assert issuer.nonces == expected


@ensureDeferred
async def test_issuer_that_never_accepts_its_nonce_is_reported(tmp_path: Path) -> None:
    class StubbornIssuer(ProvenIssuer):
        def __call__(self, request: Request) -> bytes:
            self.nonce = f"n{len(self.nonces)}"
            return super().__call__(request)

    issuer = StubbornIssuer()
    async with with_issuer(tmp_path, issuer, ProvingServer()) as client:
        error = await error_of(get(client), SignInError)
        assert str(error) == f"{issuer.url}: no token granted: use_dpop_nonce"
        assert issuer.nonces == [None, "n0"]


@ensureDeferred
async def test_refused_token_after_a_nonce_stays_within_the_limit_of_attempts(tmp_path: Path) -> None:
    issuer, server = ProvenIssuer(), ProvingServer()
    async with with_issuer(tmp_path, issuer, server) as client:
        assert await get(client) == 200
        server.nonce, server.refused = "n1", {"t1", "t2", "t3"}
        assert await get(client) == 401
        # A nonce, another token.
        assert server.tokens[1:] == ["t1", "t1", "t2"]
        assert len(server.proofs) - 1 <= ATTEMPTS_MAX


@ensureDeferred
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"token_type": "Bearer"}, "the token is not bound to the key: the issuer grants a bearer token"),
        ({"token_type": "mac"}, "the response has no DPoP token"),
        ({"token_type": None}, "the response has no DPoP token"),
        ({"access_token": None}, "the response has no DPoP token"),
        ({"error": "invalid_dpop_proof"}, "no token granted: invalid_dpop_proof"),
    ],
    ids=["bearer", "another type", "no type", "no token", "an error"],
)
async def test_token_that_is_not_bound_is_refused(members: dict[str, Any], why: str, tmp_path: Path) -> None:
    issuer, server = ProvenIssuer(), ProvingServer()
    issuer.members |= members
    async with with_issuer(tmp_path, issuer, server) as client:
        assert str(await error_of(get(client), SignInError)) == f"{issuer.url}: {why}"
        assert server.proofs == []


@ensureDeferred
async def test_example_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.pem").write_bytes(KEY.encode_pem())
    (tmp_path / "client-secret").write_text("s3cret\n")
    issuer, server = ProvenIssuer(), ProvingServer()
    async with serving(issuer) as issuing, serving(server) as resources:
        issuer.url, server.url = issuing.url, resources.url
        _, section = PAGE.read_text().split("\n## Tokens bound to a key\n")
        (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        names: dict[str, Any] = {}
        exec(code.replace("https://issuer.example", issuer.url), names)
        async with AuthClient(REACTOR, server.url, names["auth"]) as client:
            assert await get(client) == 200
    assert server.tokens == ["t1"]


@ensureDeferred
async def test_type_of_a_token_is_compared_without_case(tmp_path: Path) -> None:
    issuer, server = ProvenIssuer(), ProvingServer()
    issuer.members = {"token_type": "dpop"}
    async with with_issuer(tmp_path, issuer, server) as client:
        assert await get(client) == 200


def test_plain_http_to_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        AuthClient(REACTOR, "http://posts.example", DPoP(BearerFile(str(tmp_path / "token")), KEY))
    assert "DPoP would be sent in clear text" in str(caught.value)


def test_source_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError):
        AuthClient(REACTOR, "http://127.0.0.1", DPoP("a-token", KEY))  # type: ignore[arg-type] # the error under test


def test_key_is_loaded_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(KEY.encode_pem())
    assert load_dpop_key(str(tmp_path / "key.pem")).jwk == KEY.jwk


@pytest.mark.parametrize(
    ("content", "why"), [(None, "cannot be read: No such file or directory"), ("x", "is not a private key in PEM")]
)
def test_unusable_key_file_is_named(content: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_dpop_key(str(file))
    assert str(caught.value).startswith(f"{file}: {why}")

"""`postd list --dpop-key` with an issuer that verifies proofs and binds its tokens to their key: npm's oidc-provider.

The proofs for the resource server are verified with npm's jose.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc.jwk import RSAKey
from pytest_twisted import ensureDeferred
from twisted.internet.threads import deferToThread

from tests.client.server import Request, make_response, problem, serving
from tests.helpers import PATIENCE_S
from tests.integration import forking
from tests.integration.daemon import Daemon
from tests.integration.logins import POSTD
from tests.issuer import Key, unb64
from tests.proofs import token_hash
from tests.system.provider import AUDIENCE, BOTH, INSTALLED, SECRET, Provider

VERIFIER = Path(__file__).with_name("verify_proofs.mjs")


@pytest.fixture(scope="module", params=[False, True], ids=["without nonces", "with nonces"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    with Provider(Key.make("ES256"), dpop_nonces=request.param) as provider:
        yield provider


def make_key(kind: str, file: Path) -> None:
    """Make a key file: an EC one by `postd dpop-key`."""
    private: Any
    match kind:
        case "ES256":
            forking.run([POSTD, "dpop-key", str(file)])
            return
        case "RS256":
            jwk = RSAKey.generate_key(2048, {"alg": "RS256"}).as_dict(private=True)
            file.write_text(json.dumps(jwk))
            return
        case "PS256":
            private = rsa.generate_private_key(65537, 3072)
        case _:
            private = ed25519.Ed25519PrivateKey.generate()
    file.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def verify_proofs(proofs: list[str]) -> list[dict[str, Any]]:
    command = ["node", str(VERIFIER), str(INSTALLED)]
    verified = subprocess.run(
        command, input=json.dumps(proofs), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert verified.returncode == 0, verified.stderr
    return list(json.loads(verified.stdout))


def ask_for_token(provider: Provider, secret: Path) -> list[str]:
    """Return the options of a client command for a token of the provider."""
    secret.write_text(f"{SECRET}\n")
    asked = {
        "client-credentials": provider.issuer,
        "client-id": "machine-ES256",
        "client-secret-file": str(secret),
        "scope": BOTH,
        "resource": AUDIENCE,
    }
    return [word for name, value in asked.items() for word in (f"--{name}", value)]


@ensureDeferred
@pytest.mark.parametrize("algorithm", ["ES256", "EdDSA", "PS256", "RS256"])
async def test_granted_token_is_bound_and_each_request_proves_it(
    algorithm: str, provider: Provider, tmp_path: Path
) -> None:
    key, secret = tmp_path / "key", tmp_path / "secret"
    make_key(algorithm, key)
    shown: list[Request] = []

    def handler(request: Request) -> bytes:
        shown.append(request)
        if len(shown) == 1:
            return problem(401, WWW_Authenticate='DPoP error="use_dpop_nonce"', DPoP_Nonce="n1")
        return make_response(200, "[]", Content_Type="application/json")

    async with serving(handler) as server:
        command = [POSTD, "list", "--url", server.url, "--dpop-key", str(key), *ask_for_token(provider, secret)]
        ended = await deferToThread(forking.run, command)
    assert (ended.returncode, ended.stderr) == (0, b"")
    scheme, token = shown[0].authorization.split()
    assert scheme == "DPoP"
    first, second = verify_proofs([request.fields["dpop"] for request in shown])
    assert json.loads(unb64(token.split(".")[1]))["cnf"] == {"jkt": first["thumbprint"]}
    assert first["header"] == second["header"]
    assert first["header"]["alg"] == algorithm
    assert first["claims"]["jti"] != second["claims"]["jti"]
    assert (first["claims"].get("nonce"), second["claims"]["nonce"]) == (None, "n1")
    for proof in (first, second):
        expected = {"htm": "GET", "htu": f"{server.url}/post", "ath": token_hash(token)}
        assert {name: proof["claims"][name] for name in expected} == expected


def test_postd_that_requires_bound_tokens_accepts_those_with_proofs_only(provider: Provider, tmp_path: Path) -> None:
    make_key("ES256", tmp_path / "key")
    (tmp_path / "postd.toml").write_text(
        f"""
        api = {{read = ["bearer"], write = ["bearer"]}}
        [[bearer]]
        issuer = "{provider.issuer}"
        audience = "{AUDIENCE}"
        dpop = "require"
        """
    )
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        options = ["--url", daemon.url, *ask_for_token(provider, tmp_path / "secret")]
        for text in ("one", "two"):
            assert forking.run([POSTD, "add", text, *options, "--dpop-key", str(tmp_path / "key")]).returncode == 0
        listed = forking.run([POSTD, "list", *options, "--dpop-key", str(tmp_path / "key")])
        assert listed.stdout == b"1  one\n2  two\n"
        refused = forking.run([POSTD, "list", *options])
        assert refused.stderr.startswith(b"postd: 401 ")

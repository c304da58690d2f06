"""A real OpenID provider, npm's oidc-provider, and clients that get tokens from it."""

import hashlib
import json
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, quote_plus, urlsplit

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.helpers import PATIENCE_S
from tests.issuer import Key, b64

ROOT = Path(__file__).parent.parent.parent
INSTALLED = Path(os.environ.get("POSTD_TEST_PROVIDER", ROOT / ".venv/provider"))
SCRIPT = Path(__file__).with_suffix(".mjs")

AUDIENCE = "https://posts.example"
ELSEWHERE = "https://elsewhere.example"
OPAQUE = "https://opaque.example"
RESOURCES = {AUDIENCE: "jwt", f"{AUDIENCE}/post": "jwt", ELSEWHERE: "jwt", OPAQUE: "opaque"}
SCOPES = ["openid", "post:read", "post:write"]
BOTH = "post:read post:write"

SECRET = "100% secret: 1 + 1"
"""Of every client that has one; it is another text in the form in which Basic has it (RFC 6749 §2.3.1)."""

RESOURCE_SERVER = "resource-server"
REDIRECT_URI = "http://127.0.0.1/back"
SHORT_S = 1
STOP_MAX_S = PATIENCE_S


class Tokens(NamedTuple):
    """The tokens of the authorization code flow."""

    access: str
    identity: str


class Provider:
    """`node provider.mjs`, on a free port; ends with the `with` block.

    Args:
        keys: it publishes them all; of those of an algorithm, the first one signs.
        dpop_nonces: whether it asks for a nonce in DPoP proofs.
        scopes: what clients may ask for.
        resources: the form of access tokens, "jwt" or "opaque", for each identifier of a resource.
        clients: further clients (OpenID Connect Dynamic Client Registration 1.0 §2).
    """

    def __init__(
        self,
        *keys: Key,
        dpop_nonces: bool = False,
        scopes: Sequence[str] = SCOPES,
        resources: Mapping[str, str] = RESOURCES,
        clients: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._keys = keys
        self._scopes = scopes
        self._resources = resources
        self._clients = clients
        self._dpop_nonces = dpop_nonces
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def token_endpoint(self) -> str:
        return f"{self.issuer}/token"

    def start(self) -> None:
        """Start it, after a stop on the same port."""
        assert INSTALLED.is_dir(), f"npm install --prefix {ROOT}/.venv/provider oidc-provider (wanted: {INSTALLED})"
        self._process = subprocess.Popen(
            ["node", str(SCRIPT), str(INSTALLED)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(self._settings()), file=self._process.stdin, flush=True)
        ready = self._process.stdout.readline()
        assert ready, "the provider did not start"
        self._port = json.loads(ready)["port"]

    def _settings(self) -> dict[str, Any]:
        algorithms = {key.alg for key in self._keys}
        return {
            "port": self._port,
            "keys": [{"pem": _pem(key), "kid": key.kid, "alg": key.alg} for key in self._keys],
            "clients": [client for algorithm in algorithms for client in _clients(algorithm)]
            + [{**_confidential(), "client_id": RESOURCE_SERVER}, *self._clients],
            "scopes": self._scopes,
            "resources": self._resources,
            "lifetimes_s": {f"hasty-{algorithm}": SHORT_S for algorithm in algorithms},
            "dpop_nonces": self._dpop_nonces,
        }

    def stop(self) -> None:
        """Stop it; opaque tokens are lost, signed ones stay valid."""
        if self._process.poll() is None:
            self._process.communicate(timeout=STOP_MAX_S)

    def restart(self, *keys: Key) -> None:
        """Replace its keys."""
        self.stop()
        self._keys = keys
        self.start()

    def client_credentials(
        self,
        scope: str,
        resource: str | None = AUDIENCE,
        *,
        client: str = "machine",
        algorithm: str | None = None,
        proof: str | None = None,
    ) -> str:
        """Return an access token of the client "machine" or "hasty"; without a resource it is opaque.

        With a DPoP proof for `token_endpoint` it is bound to the proof's key.
        """
        asked = {"grant_type": "client_credentials", "scope": scope, "resource": resource}
        return str(self._post("token", self._client(client, algorithm), asked, proof)["access_token"])

    def authorization_code(
        self, login: str, scope: str, resource: str | None = AUDIENCE, *, proof: str | None = None
    ) -> Tokens:
        """Return the tokens of the authorization code flow (RFC 6749 §4.1, RFC 7636), bound if there is a proof."""
        client, verifier = self._client("app"), secrets.token_urlsafe()
        asked = {
            "client_id": client,
            "response_type": "code",
            "redirect_uri": REDIRECT_URI,
            "scope": f"openid {scope}",
            "nonce": secrets.token_urlsafe(),
            "code_challenge": b64(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
            **({"resource": resource} if resource else {}),
        }
        granted = {
            "grant_type": "authorization_code",
            "redirect_uri": REDIRECT_URI,
            "code": self.sign_in(login, asked)["code"],
            "code_verifier": verifier,
            "resource": resource,
        }
        given = self._post("token", client, granted, proof)
        return Tokens(given["access_token"], given["id_token"])

    def revoke(self, token: str, *, client: str = "machine") -> None:
        """Revoke an opaque token (RFC 7009)."""
        self._post("token/revocation", self._client(client), {"token": token})

    def _client(self, kind: str, algorithm: str | None = None) -> str:
        return f"{kind}-{algorithm or self._keys[0].alg}"

    def _post(
        self, path: str, client: str, fields: Mapping[str, str | None], proof: str | None = None
    ) -> dict[str, Any]:
        sent = {name: value for name, value in {"client_id": client, **fields}.items() if value is not None}
        secret = None if client.startswith("app-") else (quote_plus(client), quote_plus(SECRET))
        headers = {} if proof is None else {"DPoP": proof}
        answer = httpx.post(f"{self.issuer}/{path}", data=sent, auth=secret, headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()) if answer.content else {}

    def sign_in(self, login: str, asked: Mapping[str, str]) -> dict[str, str]:
        """Sign in and consent, as with a browser; return the parameters of the redirection to the client."""
        forms = [{"prompt": "login", "login": login, "password": "any"}, {"prompt": "consent"}]
        with httpx.Client(base_url=self.issuer) as browser:
            answer = browser.get("/auth", params=asked)
            while not (where := answer.headers.get("Location", "")).startswith(REDIRECT_URI):
                assert answer.status_code in {200, 303}, answer.text
                answer = browser.get(where) if where else browser.post(answer.url, data=forms.pop(0))
        return dict(parse_qsl(urlsplit(str(where)).query))


def _clients(algorithm: str) -> list[dict[str, Any]]:
    """Return whose tokens are signed so: machines, and an application of people, which can keep no secret."""
    signed = {"id_token_signed_response_alg": algorithm}
    machine = {**signed, **_confidential("client_credentials")}
    return [
        {**machine, "client_id": f"machine-{algorithm}"},
        {**machine, "client_id": f"hasty-{algorithm}"},
        {
            **signed,
            "client_id": f"app-{algorithm}",
            "application_type": "native",
            "redirect_uris": [REDIRECT_URI],
            "token_endpoint_auth_method": "none",
        },
    ]


def _confidential(*grant_types: str) -> dict[str, Any]:
    return {"client_secret": SECRET, "grant_types": grant_types, "redirect_uris": [], "response_types": []}


def _pem(key: Key) -> str:
    pem: bytes = key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode()

"""A browser that binds its sessions to its device, as Chromium 156 does, on the in-memory client.

It has a key, and keeps cookies; a test says when it renews its proof. Signatures are cryptography's alone.
"""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct, field

from tests.helpers import Response
from tests.issuer import ABSENT, Key, b64
from tests.web.clients import PASSWORD
from tests.web.wire import FORM, Server, ask

PROOF = "__Host-session-proof"
NAVIGATION = {
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Site": "cross-site",
}
_REGISTRATION = re.compile(r'\(ES256 RS256\);path="(/[^"]+)";challenge="([^"]+)"')
_CHALLENGE = re.compile(r'"([^"]+)"(?:;id="([^"]+)")?')


def make_proof(key: Key, challenge: str, *, registers: bool = False, **changes: Any) -> str:
    """Return a proof as Chromium makes it; `changes` are members of the header, or claims after `claim_`."""
    header: dict[str, Any] = {"alg": key.alg, "typ": "dbsc+jwt"}
    if registers:
        header["jwk"] = {name: value for name, value in key.jwk().items() if name not in {"kid", "alg", "use"}}
    claims: dict[str, Any] = {"jti": challenge}
    for name, value in changes.items():
        part, member = (claims, name.removeprefix("claim_")) if name.startswith("claim_") else (header, name)
        part[member] = value
    parts = ({name: value for name, value in part.items() if value is not ABSENT} for part in (header, claims))
    signed = ".".join(b64(json.dumps(part).encode()) for part in parts)
    signature = b"" if header["alg"] == "none" else key.sign(signed.encode(), key.alg)
    return f"{signed}.{b64(signature)}"


class Device(Struct):
    """A browser with one session.

    Attributes:
        cookies: what it sends.
        session_id: the identifier of its bound session, empty before.
        challenge: the next challenge that it has.
        path: the path of its next registration.
    """

    server: Server
    key: Key = field(default_factory=lambda: Key.make("ES256"))
    cookies: dict[str, str] = field(default_factory=dict)
    session_id: str = ""
    challenge: str = ""
    path: str = ""

    @property
    def cookie(self) -> dict[str, str]:
        """The field with the cookies, if there are any."""
        pairs = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": pairs} if pairs else {}

    def ask(
        self, method: str, path: str, headers: Mapping[str, Any] | None = None, body: bytes | None = None
    ) -> Response:
        """Send a request with the cookies, and keep those of the response."""
        answer = ask(self.server, method, path, body, {**self.cookie, **(headers or {})}, tls=True)
        for line in answer.headers.get("set-cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            if "Max-Age=0" in line:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def sign_in(self, name: str = "alice", path: str = "/login") -> Response:
        form = urlencode({"username": name, "password": PASSWORD}).encode()
        answer = self.ask("POST", path, {"Content-Type": FORM}, form)
        assert answer.status == 302
        found = _REGISTRATION.fullmatch(answer.header("Secure-Session-Registration") or "")
        assert found, answer.headers
        self.path, self.challenge = found.groups()
        return answer

    def register(self, proof: str | None = None) -> Response:
        """Send a registration; the key is that of the device unless a proof is given."""
        proof = make_proof(self.key, self.challenge, registers=True) if proof is None else proof
        return self._keep(self.ask("POST", self.path, {"Secure-Session-Response": proof}, b""))

    def refresh(self, proof: str | None = None, **headers: Any) -> Response:
        """Ask for a new proof with the challenge that it has."""
        proof = make_proof(self.key, self.challenge) if proof is None else proof
        sent = {"Secure-Session-Response": proof, "Sec-Secure-Session-Id": self.session_id, **headers}
        return self._keep(self.ask("POST", f"{self.path}/refresh", sent, b""))

    def bind(self, name: str = "alice") -> None:
        """Sign in, bind the session, and use it once."""
        self.sign_in(name)
        assert self.register().status == 200
        assert self.gets("/home") == 200

    def gets(self, path: str, headers: Mapping[str, Any] | None = None) -> int:
        """Return the status of a request."""
        return self.ask("GET", path, headers).status

    def copy(self, *names: str) -> "Device":
        """Return a thief, who has some of the cookies, or all, and another key."""
        taken = {name: value for name, value in self.cookies.items() if not names or name in names}
        return Device(self.server, Key.make("ES256"), taken, self.session_id, self.challenge, self.path)

    def _keep(self, answer: Response) -> Response:
        found = _CHALLENGE.fullmatch(answer.header("Secure-Session-Challenge") or "")
        if found:
            self.challenge = found[1]
        if answer.status == 200:
            told = json.loads(answer.body)
            self.session_id = told["session_identifier"] if told.get("continue", True) else ""
        return answer

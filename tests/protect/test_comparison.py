"""Each row of the comparison in docs/how-to/protect.md: a request to stock `twisted.web.guard`, and to `Protection`."""

import hashlib
import re
import socket
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from pytest_twisted import ensureDeferred
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import DigestCredentialFactory as StockDigest
from twisted.cred.portal import IRealm, Portal
from twisted.internet.threads import deferToThread
from twisted.web.guard import BasicCredentialFactory, DigestCredentialFactory, HTTPAuthSessionWrapper
from twisted.web.resource import IResource, Resource
from twisted.web.server import Site
from zope.interface import implementer

from postd.protect import Protection
from tests.client.server import REACTOR
from tests.helpers import PATIENCE_S
from tests.web.clients import PASSWORD, account

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "protect.md"
ODD_NAME = 'al"ice'
CONTROL_NAME = "al\x01ice"
NONCE_LIFETIME_S = 0.3
HASHES: dict[str, Any] = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256, "SHA": hashlib.sha1}


class Target(Struct):
    """Two servers that are to act as one, by their ports; most requests go to the first."""

    ports: list[int]

    def send(self, *lines: str | bytes, method: str = "GET", path: str = "/", server: int = 0) -> bytes:
        """Send a request with further field lines; return the head of the response."""
        fields = [line.encode() if isinstance(line, str) else line for line in lines]
        start = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
        with socket.create_connection(("127.0.0.1", self.ports[server]), timeout=PATIENCE_S) as connection:
            connection.sendall(start + b"".join(line + b"\r\n" for line in fields) + b"\r\n")
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        return received.partition(b"\r\n\r\n")[0]

    def basic(self, user_pass: str = f"alice:{PASSWORD}", **changes: Callable[[bytes], bytes]) -> bytes:
        """Send Basic; `encoded` changes what follows the scheme."""
        encoded = b64encode(user_pass.encode())
        return self.send(b"Authorization: Basic " + changes.get("encoded", bytes)(encoded))

    def challenge(self) -> dict[str, str]:
        """Return the parameters of the challenge for MD5; their names are in lower case."""
        challenges = re.findall(r"(?i)^WWW-Authenticate: digest (.*)$", self.send().decode(), re.MULTILINE)
        (found,) = (one for one in challenges if re.search(r'(?i)algorithm="?md5\b', one))
        return dict(re.findall(r'(\w+)="([^"]*)"', found))

    def digest(self, challenge: dict[str, str] | None = None, **sent: str | None) -> str:
        """Return a right response to a challenge, None for a new one; `sent` are other parameters, None to omit one."""
        found = self.challenge() if challenge is None else challenge
        name = sent.pop("name", "alice") or ""
        algorithm, nc, qop = sent.get("algorithm") or "MD5", sent.get("nc", "00000001"), sent.get("qop", "auth")

        def h(text: str) -> str:
            return str(HASHES[algorithm](text.encode()).hexdigest())

        counted = f"{nc}:cafe:{qop}:" if qop else ""
        response = h(f"{h(f'{name}:postd:{PASSWORD}')}:{found['nonce']}:{counted}{h('GET:/')}")
        parameters: dict[str, str | None] = {
            "username": name.replace('"', '\\"'),
            "realm": "postd",
            "nonce": found["nonce"],
            "uri": "/",
            "algorithm": algorithm,
            "nc": nc,
            "qop": qop,
            "cnonce": "cafe",
            "response": response,
            "opaque": found.get("opaque"),
            **sent,
        }
        written = ", ".join(
            f"{key}={value}" if key in {"algorithm", "nc", "qop"} else f'{key}="{value}"'
            for key, value in parameters.items()
            if value is not None
        )
        return f"Authorization: Digest {written}"


def twice(target: Target, *, path: str) -> bytes:
    response = target.digest()
    assert target.send(response).startswith(b"HTTP/1.1 200")
    return target.send(response, path=path)


def fail_often(target: Target) -> bytes:
    for _ in range(10):
        assert target.basic("alice:wrong").startswith(b"HTTP/1.1 401")
    return target.basic("alice:wrong")


def wait_for_nonce(target: Target) -> bytes:
    response = target.digest()
    time.sleep(NONCE_LIFETIME_S + 0.2)
    return target.send(response)


def right_basic(name: str = "alice") -> str:
    return "Authorization: Basic " + b64encode(f"{name}:{PASSWORD}".encode()).decode()


REQUESTS: dict[str, Callable[[Target], bytes]] = {
    "without credentials": lambda to: to.send(),
    "HEAD without credentials": lambda to: to.send(method="HEAD"),
    "two `Authorization` fields, the second one right": lambda to: to.send("Authorization: Basic eDp4", right_basic()),
    "`Authorization` of 9 KiB": lambda to: to.send(f"Authorization: Basic {'A' * 9 * 1024}"),
    "a tab after the name of the scheme": lambda to: to.send(right_basic().replace("Basic ", "Basic\t")),
    "Basic, right": lambda to: to.basic(),
    "Basic, Base64 without padding": lambda to: to.basic(encoded=lambda encoded: encoded.rstrip(b"=")),
    "Basic, other characters amid Base64": lambda to: to.basic(
        encoded=lambda encoded: encoded[:4] + b"!" + encoded[4:]
    ),
    "Basic, a control character in the name": lambda to: to.send(right_basic(CONTROL_NAME)),
    "Basic, a WebSocket handshake of another origin": lambda to: to.send(
        right_basic(), "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Origin: http://evil.example"
    ),
    "Basic, the 11th wrong password": fail_often,
    "Digest, MD5": lambda to: to.send(to.digest()),
    "Digest, SHA-256": lambda to: to.send(to.digest(algorithm="SHA-256")),
    "Digest, SHA-1, which is not offered": lambda to: to.send(to.digest(algorithm="SHA")),
    "Digest, the same response again": lambda to: twice(to, path="/"),
    "Digest, a response for another URL": lambda to: to.send(to.digest(), path="/other"),
    "Digest, without `uri`": lambda to: to.send(to.digest(uri=None)),
    "Digest, without `qop`, `nc` and `cnonce`": lambda to: to.send(to.digest(qop=None, nc=None, cnonce=None)),
    "Digest, `nc=zzzzzzzz`": lambda to: to.send(to.digest(nc="zzzzzzzz")),
    "Digest, another realm": lambda to: to.send(to.digest(realm="elsewhere")),
    "Digest, spaces around `=`": lambda to: to.send(to.digest().replace("uri=", "uri = ")),
    "Digest, a quote in the name, escaped": lambda to: to.send(to.digest(name=ODD_NAME)),
    "Digest, bytes that are no parameter": lambda to: to.send(to.digest().encode() + b', \xe9="x"'),
    "Digest, an expired nonce": wait_for_nonce,
    "Digest, a nonce of another process": lambda to: to.send(to.digest(), server=1),
}

MARKS = ("no-store", "Content-Length", "Cache-Control: private", "Retry-After", "rspauth", "stale=true")
"""What the table says of a response beside its status."""


class Open(Resource):
    """Says hello at each path."""

    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        return b"Hello\n"


@implementer(IRealm)
class StockRealm:
    def requestAvatar(self, avatarId: object, mind: object, *interfaces: object) -> Any:
        return IResource, Open(), lambda: None


@asynccontextmanager
async def listening(*roots: IResource) -> AsyncIterator[Target]:
    ports = [REACTOR.listenTCP(0, Site(root), interface="127.0.0.1") for root in roots]
    try:
        yield Target([port.getHost().port for port in ports])
    finally:
        for port in ports:
            await port.stopListening()


@asynccontextmanager
async def stock() -> AsyncIterator[Target]:
    """Two processes with stock Twisted, for each of which there are factories of its own."""
    checker = InMemoryUsernamePasswordDatabaseDontUse()
    for name in ("alice", ODD_NAME, CONTROL_NAME):
        checker.addUser(name.encode(), PASSWORD.encode())
    portal = Portal(StockRealm(), [checker])
    roots = [
        HTTPAuthSessionWrapper(portal, [DigestCredentialFactory(b"md5", b"postd"), BasicCredentialFactory(b"postd")])
        for _ in range(2)
    ]
    async with listening(*roots) as target:
        yield target


@asynccontextmanager
async def ours(folder: Path, nonce_lifetime_s: float) -> AsyncIterator[Target]:
    """Two processes with one store."""
    (folder / "users").write_text(account("alice") + account(ODD_NAME))
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"users": folder / "users", "nonce_lifetime_s": nonce_lifetime_s}
        made = [Protection(REACTOR, store=f"sqlite:{folder / 'logins.db'}", **options) for _ in range(2)]
        for one in made:
            await stack.enter_async_context(one)
        yield await stack.enter_async_context(listening(*(one.protect(Open(), "digest", "basic") for one in made)))


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield the cells of each row of the table."""
    section = PAGE.read_text().partition("## Compared with twisted.web.guard\n")[2].partition("\n## ")[0]
    for line in section.splitlines()[2:]:
        if line.startswith("| ") and not line.startswith("| request |"):
            request, theirs, own = (cell.strip() for cell in line.strip("|").split("|"))
            yield request, theirs, own


def test_each_row_is_tried() -> None:
    assert [request for request, _, _ in rows()] == list(REQUESTS)


@ensureDeferred
@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0])
async def test_row_is_true(row: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request, *cells = row
    expires = "expired" in request
    monkeypatch.setattr(StockDigest, "CHALLENGE_LIFETIME_SECS", -1 if expires else 900)
    async with stock() as theirs, ours(tmp_path, NONCE_LIFETIME_S if expires else 300) as own:
        heads = [(await deferToThread(REQUESTS[request], target)).decode("latin-1") for target in (theirs, own)]
    assert [head.split(" ")[1] for head in heads] == [cell[:3] for cell in cells]
    for mark in (mark for mark in MARKS if any(mark in cell for cell in cells)):
        assert [mark.lower() in head.lower() for head in heads] == [mark in cell for cell in cells]

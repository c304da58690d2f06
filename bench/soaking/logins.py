"""Logins of good clients with each scheme: an object for each connection, with the state that the scheme has."""

import base64
import hashlib
import ipaddress
import random
import re
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlencode

from bench.soaking.findings import Findings
from bench.soaking.secrets_used import USED
from bench.soaking.server import AUDIENCE, PASSWORD, REALM
from bench.soaking.wire import Connection, Response
from tests.issuer import JWKS, Issuer, Key, Reply

FORM = "Content-Type: application/x-www-form-urlencoded"
TOKENS_KEPT, TOKEN_EVERY_S = 20, 1.0
KEYS_FRESH_S = 60
"""The freshness lifetime of the issuer's keys (`max-age`), which is the least that postd uses."""

SIGNED_IN_FOR = (20, 60)
"""The least and greatest number of requests of a session before its user signs out."""

JUNK_COOKIES, JUNK_SHARE = "".join(f"session=junk{number}; " for number in range(10)), 0.1
"""Cookies that another application of the host has set, and the share of a session's requests that carry them."""


class Login(Protocol):
    """Makes requests with credentials."""

    async def ask(
        self, connection: Connection, method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None
    ) -> Response: ...


class Basic:
    """A user of the user file (RFC 7617)."""

    def __init__(self, user: str, password: str = PASSWORD) -> None:
        self.field = basic_field(user, password)

    async def ask(
        self, connection: Connection, method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None
    ) -> Response:
        return await connection.ask(method, target, [*fields, self.field], body)


def basic_field(user: str, password: str) -> str:
    user_pass = base64.b64encode(f"{user}:{USED.add(password)}".encode()).decode()
    return f"Authorization: Basic {USED.add(user_pass)}"


class Digest:
    """A user of Digest (RFC 7616) who counts the uses of a nonce, and uses a new one after a 401."""

    def __init__(self, user: str, findings: Findings) -> None:
        self._user = user
        self._findings = findings
        self._nonce = ""
        self._count = 0

    async def ask(
        self, connection: Connection, method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None
    ) -> Response:
        had_nonce = bool(self._nonce)
        if had_nonce:
            answer = await self._ask(connection, method, target, fields, body)
            if answer.status != 401:
                return answer
        else:
            answer = await connection.ask(method, target, fields, body)
            if not self._findings.expect(f"{method} {target} without credentials", answer, 401):
                return answer
        challenges = " ".join(answer.fields.get("www-authenticate", []))
        if had_nonce and "stale=true" not in challenges:
            self._findings.broke("a right Digest response is accepted or stale", f"{method} {target}: {challenges}")
        found = re.search(r'nonce="([^"]+)"', challenges)
        if found is None:
            self._findings.broke("a Digest challenge has a nonce", f"{method} {target}: {challenges}")
            return answer
        self._nonce, self._count = found[1], 0
        return await self._ask(connection, method, target, fields, body)

    async def _ask(
        self, connection: Connection, method: str, target: str, fields: Sequence[str], body: bytes | None
    ) -> Response:
        self._count += 1
        field, proof = digest_field((self._user, PASSWORD), method, target, self._nonce, self._count)
        answer = await connection.ask(method, target, [*fields, field], body)
        if answer.status < 400 and f'rspauth="{proof}"' not in answer.field("authentication-info"):
            self._findings.broke("a response to Digest has the right rspauth", f"{method} {target}: {answer.fields}")
        return answer


def digest_field(who: tuple[str, str], method: str, uri: str, nonce: str, number: int) -> tuple[str, str]:
    """Return an `Authorization` field for a user with a password, and the expected `rspauth`."""
    user, password = who
    nc, cnonce = f"{number:08x}", secrets.token_hex(8)
    ha1 = _md5(f"{user}:{REALM}:{password}")
    middle = f"{nonce}:{nc}:{cnonce}:auth"
    response, proof = (_md5(f"{ha1}:{middle}:{_md5(f'{said}:{uri}')}") for said in (method, ""))
    field = (
        f'Authorization: Digest username="{user}", realm="{REALM}", nonce="{nonce}", uri="{uri}", algorithm=MD5, '
        f'qop=auth, nc={nc}, cnonce="{cnonce}", response="{USED.add(response)}"'
    )
    return field, proof


def elsewhere() -> str:
    """Return an `X-Forwarded-For` field with an address that no other client has."""
    kind, bits = random.choice(((ipaddress.IPv4Address, 32), (ipaddress.IPv6Address, 128)))
    return f"X-Forwarded-For: {kind(random.getrandbits(bits))}"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


class Session:
    """A user who signs in by form, and signs out after a number of requests."""

    def __init__(self, user: str, findings: Findings) -> None:
        self._user = user
        self._findings = findings
        self._cookie = ""
        self._left = 0

    async def ask(
        self, connection: Connection, method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None
    ) -> Response:
        if not self._cookie:
            await self._sign_in(connection)
        elif self._left <= 0:
            await self._sign_out(connection)
            await self._sign_in(connection)
        self._left -= 1
        junk = JUNK_COOKIES if random.random() < JUNK_SHARE else ""
        return await connection.ask(method, target, [*fields, f"Cookie: {junk}{self._cookie}"], body)

    async def _sign_in(self, connection: Connection) -> None:
        self._cookie = await sign_in(connection, self._user, PASSWORD, self._findings)
        self._left = random.randint(*SIGNED_IN_FOR)

    async def _sign_out(self, connection: Connection) -> None:
        field = f"Cookie: {self._cookie}"
        answer = await connection.ask("POST", "/logout", [field], b"")
        self._findings.note_good("sign out", answer)
        self._findings.expect("POST /logout", answer, 302)
        await expect_signed_out(connection, self._cookie, self._findings)
        self._cookie = ""


async def sign_in(connection: Connection, user: str, password: str, findings: Findings) -> str:
    """Sign in by form; return the session cookie."""
    form = urlencode({"username": user, "password": password}).encode()
    answer = await connection.ask("POST", "/login", [FORM], form)
    findings.note_good("sign in", answer)
    findings.expect("POST /login", answer, 302)
    return USED.add(answer.field("set-cookie").partition(";")[0])


async def expect_signed_out(connection: Connection, cookie: str, findings: Findings) -> None:
    answer = await connection.ask("GET", "/home", [f"Cookie: {cookie}"])
    findings.note_good("page", answer)
    if findings.expect("GET /home after the session has ended", answer, 302) and answer.field("location") != "/":
        findings.broke("a request without a session is redirected to the form", answer.field("location"))


class Tokens:
    """Access tokens of an issuer on loopback. A new key is published for a while before it signs tokens.

    Args:
        issuer: the issuer.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self._kept: deque[tuple[str, str]] = deque(maxlen=TOKENS_KEPT)
        self._made_at = 0.0
        self._numbers = len(issuer.keys)
        issuer.replies[JWKS] = Reply(headers={"Cache-Control": f"max-age={KEYS_FRESH_S}"})

    @staticmethod
    def make_issuer() -> Issuer:
        return Issuer(AUDIENCE, *(Key.make("RS256", f"key{number}") for number in range(3)))

    def any(self) -> str:
        """Return a valid token, often one that was used before."""
        if time.monotonic() > self._made_at + TOKEN_EVERY_S:
            self._made_at = time.monotonic()
            # Of the three keys, the first is about to be removed, and the last is not in use yet.
            key = self.issuer.keys[1]
            self._kept.append((key.kid, self.issuer.token(key, jti=secrets.token_hex(8))))
        return random.choice(self._kept)[1]

    def opaque(self) -> str:
        """Return a new valid opaque token, for introspection."""
        token = secrets.token_urlsafe(30)
        self.issuer.active = {token: self.issuer.claims()}
        return token

    def rotate(self) -> None:
        """Publish a new key; remove the oldest one, and its tokens."""
        fresh = Key.make("RS256", f"key{self._numbers}")
        self._numbers += 1
        in_use = self.issuer.keys[1].kid
        self.issuer.keys[:] = [*self.issuer.keys[1:], fresh]
        self.issuer.asked.clear()
        self._kept = deque((pair for pair in self._kept if pair[0] == in_use), maxlen=TOKENS_KEPT)
        self._made_at = 0.0


class Bearer:
    """A user with an access token (RFC 6750)."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def ask(
        self, connection: Connection, method: str, target: str, fields: Sequence[str] = (), body: bytes | None = None
    ) -> Response:
        return await connection.ask(method, target, [*fields, bearer_field(self._tokens.any())], body)


def bearer_field(token: str) -> str:
    return f"Authorization: Bearer {USED.add(token)}"

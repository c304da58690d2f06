"""Credentials of test clients: user file lines, `Authorization` fields, challenges; and checks of the log."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
from msgspec import Struct
from twisted.internet.interfaces import IAddress
from twisted.internet.task import Clock
from twisted.logger import LogEvent, capturedLogs, eventAsJSON, eventAsText

from postd.front.factory import HttpFactory
from tests.helpers import InMemoryApi, Response
from tests.web.wire import Worker, begin_raw

PASSWORD = "s3cr3t-pässword"
BCRYPT = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()  # what `htpasswd -B -C 4` makes, but faster

HASHES: Mapping[str, Any] = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}


def h(algorithm: str, text: str) -> str:
    return str(HASHES[algorithm](text.encode(errors="surrogateescape")).hexdigest())


def account(name: str, *, realm: str = "postd", algorithms: Iterable[str] = HASHES) -> str:
    """Return a line of the user file for a user with `PASSWORD`."""
    hashes = ",".join(f"{algorithm}={h(algorithm, f'{name}:{realm}:{PASSWORD}')}" for algorithm in algorithms)
    return f"{name}:{BCRYPT}:{hashes},realm={realm}\n" if hashes else f"{name}:{BCRYPT}\n"


def make_api(folder: Path, settings: str = "", users: str = account("alice") + account("bob")) -> InMemoryApi:
    (folder / "users").write_text(users)
    return InMemoryApi(folder, settings)


def basic(username: str = "alice", password: str = PASSWORD, encoding: str = "utf-8") -> dict[str, Any]:
    return {"Authorization": "Basic " + b64encode(f"{username}:{password}".encode(encoding)).decode()}


class Challenge(Struct):
    """A Digest challenge in its exact form (reference: Digest)."""

    realm: str
    algorithm: str
    nonce: str
    stale: bool

    _FORM = re.compile(
        r'Digest realm="([^"\\]+)", qop="auth", algorithm=(MD5|SHA-256), nonce="([A-Za-z0-9_-]{16,})"(, stale=true)?'
    )

    @classmethod
    def decode(cls, line: str) -> "Challenge":
        match = cls._FORM.fullmatch(line)
        assert match, line
        return cls(match[1], match[2], match[3], stale=bool(match[4]))


def challenges_in(answer: Response) -> list[Challenge]:
    lines = answer.headers.get("www-authenticate", [])
    return [Challenge.decode(line) for line in lines if line.startswith("Digest ")]


class Proof(Struct, kw_only=True):
    """The parameters of a Digest response."""

    nonce: str
    method: str = "GET"
    uri: str = "/digest"
    username: str = "alice"
    password: str = PASSWORD
    realm: str = "postd"
    algorithm: str = "MD5"
    cnonce: str = "Y25vbmNl"
    nc: str = "00000001"
    qop: str = "auth"

    def hash(self, method: str) -> str:
        ha1 = h(self.algorithm, f"{self.username}:{self.realm}:{self.password}")
        ha2 = h(self.algorithm, f"{method}:{self.uri}")
        return h(self.algorithm, f"{ha1}:{self.nonce}:{self.nc}:{self.cnonce}:{self.qop}:{ha2}")

    def parameters(self, **other: str | None) -> dict[str, str]:
        """Return the parameters as sent; `other` changes what is sent, not what is hashed."""
        quoted = ("username", "realm", "nonce", "uri", "cnonce")
        written = {name: '"' + re.sub(r'(["\\])', r"\\\1", getattr(self, name)) + '"' for name in quoted}
        written |= {"nc": self.nc, "qop": self.qop, "algorithm": self.algorithm}
        written["response"] = f'"{self.hash(self.method)}"'
        return {name: value for name, value in {**written, **other}.items() if value is not None}

    def headers(self, **other: str | None) -> dict[str, Any]:
        value = "Digest " + ", ".join(f"{name}={value}" for name, value in self.parameters(**other).items())
        return {"Authorization": value.encode(errors="surrogateescape")}

    @property
    def info(self) -> str:
        """The expected `Authentication-Info` (spec: Digest)."""
        return f'qop=auth, rspauth="{self.hash("")}", cnonce="{self.cnonce}", nc={self.nc}'


def ask_raw(site: HttpFactory, clock: Clock, request: bytes, peer: IAddress | None = None) -> Response:
    """Send bytes on a new connection and return the response."""
    return begin_raw(Worker(site, clock), request, peer).response()


@contextmanager
def recorded_log(api: InMemoryApi) -> Iterator[Sequence[LogEvent]]:
    """Record every log event, those of the access log at the end."""
    with capturedLogs() as events:
        yield events
        api.clock.advance(1)


def check_secret(events: Iterable[LogEvent], *secrets: str | bytes) -> None:
    """Check that no event contains a secret, in any format."""
    for event in events:
        written = [repr(event), eventAsText(event), eventAsJSON(event)]
        if "log_failure" in event:
            written.append(event["log_failure"].getTraceback(detail="verbose"))
        for secret in secrets:
            text = secret.decode("latin-1") if isinstance(secret, bytes) else secret
            assert text
            assert not any(text in form for form in written)

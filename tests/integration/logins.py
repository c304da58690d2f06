"""What tests of logins on the real process share: users, and Digest by RFC 7616 with no code of postd's in it."""

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.forking import run

POSTD = str(Path(sys.executable).parent / "postd")
HASHES: Mapping[str, Any] = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}


def run_postd_user(file: Path, command: str, name: str, password: str | None = None) -> str:
    """Run `postd user …`; return what it has printed."""
    options = [] if password is None else ["--password-stdin"]
    result = run([POSTD, "user", command, name, "-u", str(file), *options], given=f"{password}\n".encode())
    assert result.returncode == 0, result.stderr
    return result.stdout.decode()


def sign_in(daemon: Daemon, name: str, password: str) -> httpx.Response:
    """Send the form as a browser does, without following the redirect."""
    return httpx.post(f"{daemon.url}/login", data={"username": name, "password": password}, timeout=PATIENCE_S)


def sign_in_at_once(daemons: Sequence[Daemon], name: str, password: str, count: int) -> list[str]:
    """Sign in that often at the same time, in turns on each server; return the sessions that are live then."""
    with ThreadPoolExecutor(20) as threads:
        answers = threads.map(lambda n: sign_in(daemons[n % len(daemons)], name, password), range(count))
        sessions = [answer.cookies["session"] for answer in answers]
        homes = threads.map(lambda n: see_home(daemons[n % len(daemons)], sessions[n]), range(count))
        return [session for session, home in zip(sessions, homes, strict=True) if home.status_code == 200]


def see_home(daemon: Daemon, session: str) -> httpx.Response:
    return httpx.get(f"{daemon.url}/home", headers={"Cookie": f"session={session}"})


@contextmanager
def taken_up(daemon: Daemon, words: str) -> Iterator[None]:
    """Change the user file in the block, then wait until the log has the words once more."""
    before = daemon.log.count(words)
    yield
    daemon.wait_for(words, before + 1)


def decode_parameters(field: str) -> dict[str, str]:
    """Return the parameters of a challenge, of credentials or of `Authentication-Info`, without their quotes."""
    return {name.lower(): quoted or word for name, quoted, word in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,]+))', field)}


def h_a1(algorithm: str, user: str, realm: str, password: str) -> str:
    return _hash(algorithm, f"{user}:{realm}:{password}")


def compute(sent: Mapping[str, str], password: str, method: str) -> str:
    """Return `response` (RFC 7616 §3.4.1), or with no method `rspauth` as the specification has it."""
    algorithm = sent.get("algorithm", "MD5")
    ha1 = h_a1(algorithm, sent["username"], sent["realm"], password)
    ha2 = _hash(algorithm, f"{method}:{sent['uri']}")
    return _hash(algorithm, f"{ha1}:{sent['nonce']}:{sent['nc']}:{sent['cnonce']}:{sent['qop']}:{ha2}")


def _hash(algorithm: str, text: str) -> str:
    hashed: str = HASHES[algorithm](text.encode()).hexdigest()
    return hashed


def check_info(field: str, credentials: str, password: str) -> None:
    """Check an `Authentication-Info` exactly: it proves that the server knows the password, too."""
    sent = decode_parameters(credentials)
    rspauth = compute(sent, password, "")
    assert field == f'qop=auth, rspauth="{rspauth}", cnonce="{sent["cnonce"]}", nc={sent["nc"]}'


class DigestUser:
    """A Digest client that sends any count with any nonce, in any order."""

    def __init__(self, name: str, password: str, *, algorithm: str = "MD5", path: str = "/digest") -> None:
        self.name = name
        self.password = password
        self.algorithm = algorithm
        self.path = path

    def nonce(self, daemon: Daemon) -> str:
        """Return a new nonce."""
        challenge = httpx.get(f"{daemon.url}{self.path}").headers.get_list("WWW-Authenticate")[0]
        return decode_parameters(challenge)["nonce"]

    def credentials(self, nonce: str, count: int, *, method: str = "GET", realm: str = "postd") -> str:
        """Return an `Authorization`."""
        sent = {
            "username": self.name,
            "realm": realm,
            "nonce": nonce,
            "uri": self.path,
            "algorithm": self.algorithm,
            "qop": "auth",
            "nc": f"{count:08x}",
            "cnonce": "0a4f113b",
        }
        sent["response"] = compute(sent, self.password, method)
        bare = {"algorithm", "qop", "nc"}
        return "Digest " + ", ".join(
            f"{name}={value}" if name in bare else f'{name}="{value}"' for name, value in sent.items()
        )

    def get(self, client: httpx.Client, nonce: str, count: int) -> httpx.Response:
        return client.get(self.path, headers={"Authorization": self.credentials(nonce, count)})


def is_stale(answer: httpx.Response) -> bool:
    """Return whether a response asks for a retry with a new nonce (`stale=true`)."""
    return answer.status_code == 401 and "stale=true" in answer.headers["WWW-Authenticate"]

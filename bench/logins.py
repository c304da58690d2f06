"""Workloads with logins."""

import base64
import hashlib
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey

from bench.contenders import AUDIENCE, ISSUER, ORIGIN, REALM
from bench.loads import Load, load, percentile, script, time_slow_client
from bench.servers import LOAD_CORE, SERVER_CORE, BenchError, Server, ask, command_of_this_python, running
from bench.workloads import SHORT_LIST, Duration, check_list, check_stored, serving_short_list
from postd.auth.user_file import make_account, set_account
from postd.protocol.dpop_proof import DPoPKey, make_proof
from postd.protocol.password import hash_password, verify_password

USER, PASSWORD = "bench", "correct horse battery staple"
FORM = "Content-Type: application/x-www-form-urlencoded"
DIGESTS_PER_SECOND, SIGNINS_PER_SECOND = 40_000, 500
"""More than one core can answer in a second: a run that uses up all of them fails."""
DIGESTS_A_PROOF = 5
"""Digest responses for each DPoP proof: a proof takes longer to make and to verify, and fewer are needed."""
WARM_UP_SIGNINS = 10
TOKEN_LIFETIME_S = 3600
KEEP_SESSIONS = ("postd", "falcon")
"""The servers with a table of sessions. The others keep a session in the cookie alone."""


@dataclass(frozen=True)
class Fields:
    """Header fields with credentials: one for all requests, or one for each of a number of requests."""

    each: Sequence[str]
    always: str = ""
    """A further field of all requests; empty if there is none."""


Login = Callable[[Server, int, int], Fields]
"""Returns the credentials for a number of requests to a server at a port."""


def basic_fields(_server: Server, _port: int, _count: int) -> Fields:
    user_pass = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode("ascii")
    return Fields([f"Authorization: Basic {user_pass}"])


def session_fields(server: Server, port: int, _count: int) -> Fields:
    return Fields([f"Cookie: {sign_in(server, port, USER)}"])


def sign_in(server: Server, port: int, user: str) -> str:
    """Sign in by form; return the session cookie."""
    answer = ask(port, "POST", "/login", urlencode({"username": user, "password": PASSWORD}), FORM)
    cookie = cookie_of(answer.headers.get("Set-Cookie", ""))
    if answer.status != HTTPStatus.FOUND or not cookie.startswith("session="):
        raise BenchError(f"{server.name}: POST /login answered {answer.status} {answer.body[:200]!r}")
    return cookie


def cookie_of(set_cookie: str) -> str:
    return set_cookie.partition(";")[0]


def token_fields(folder: Path, server: Server, _port: int, _count: int) -> Fields:
    """Make a personal access token of the user."""
    command = [command_of_this_python("postd"), "token", "add", USER, "-c", "postd.toml"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        raise BenchError(f"{server.name}: {made.stderr}")
    return Fields([f"Authorization: Bearer {made.stdout.strip()}"])


def digest_fields(server: Server, port: int, count: int, *, nonces: int = 1) -> Fields:
    """Return responses to challenges in turn, with counts from 1 on (RFC 7616 §3.4), and the cookie of the last one."""
    each = list[Iterator[str]]()
    for _ in range(nonces):
        refused = ask(port, "GET", "/post").headers
        challenges = " ".join(refused.get_all("WWW-Authenticate", []))
        found = re.search(r'nonce="([^"]+)"', challenges)
        if found is None:
            raise BenchError(f"{server.name}: GET /post was answered without a nonce: {challenges}")
        opaque = re.search(r'opaque="[^"]*"', challenges)
        each.append(digest_responses(found[1], opaque[0] if opaque else ""))
    cookie = cookie_of(refused.get("Set-Cookie", ""))
    return Fields(
        list(islice(chain.from_iterable(zip(*each, strict=True)), count)), f"Cookie: {cookie}" if cookie else ""
    )


def digest_responses(nonce: str, opaque: str) -> Iterator[str]:
    """Yield the responses to a challenge."""
    ha1, ha2 = digest_secret(), md5("GET:/post")
    start = f'Authorization: Digest username="{USER}", realm="{REALM}", nonce="{nonce}", uri="/post"'
    more = f", {opaque}" if opaque else ""
    for number in itertools.count(1):
        nc, cnonce = f"{number:08x}", f"{hash((nonce, number)) & (1 << 64) - 1:016x}"
        response = md5(f"{ha1}:{nonce}:{nc}:{cnonce}:auth:{ha2}")
        yield f'{start}, algorithm=MD5, qop=auth, cnonce="{cnonce}"{more}, nc={nc}, response="{response}"'


def digest_secret() -> str:
    """Return H(A1) of the user."""
    return md5(f"{USER}:{REALM}:{PASSWORD}")


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def measure_known(login: Login, server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure as `measure_logged_in`, with the credentials of a user in the user file."""
    (folder / "users").write_bytes(set_account(b"", make_account(USER, PASSWORD, REALM)))
    (folder / "users.digest").write_text(f"{USER}:{REALM}:{digest_secret()}\n")
    return measure_logged_in(login, server, folder, duration)


def measure_stock(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure as `measure_known`, with Basic; the password is also in a file for Twisted's checker."""
    (folder / "users.plain").write_text(f"{USER}:{PASSWORD}\n")
    return measure_known(basic_fields, server, folder, duration)


def measure_personal_token(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    return measure_known(partial(token_fields, folder), server, folder, duration)


def measure_logged_in(login: Login, server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure as `measure_get20`, with credentials in each request."""
    with serving_short_list(server, folder) as address:
        if ask(address.port, "GET", "/post").status != HTTPStatus.UNAUTHORIZED:
            raise BenchError(f"{server.name}: GET /post does not require a login")
        fields = login(server, address.port, 1)
        check_list(server, address.port, SHORT_LIST, fields.each[0], fields.always)
        load_logged_in(server, login, address.port, folder, duration.warm_up_s)
        return {"requests/s": load_logged_in(server, login, address.port, folder, duration.measured_s).per_second}


def load_logged_in(server: Server, login: Login, port: int, folder: Path, seconds: int) -> Load:
    fields = login(server, port, seconds * DIGESTS_PER_SECOND)
    if len(fields.each) == 1:
        return load(server, port, seconds, ["-H", fields.each[0]])
    table = folder / "fields"
    table.write_text("\n".join(fields.each))
    return load(server, port, seconds, script("fields"), [str(table), *([fields.always] if fields.always else [])])


def measure_bearer(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure as `measure_logged_in`, with an access token."""

    def show(token: str, _count: int) -> Fields:
        return Fields([f"Authorization: Bearer {token}"])

    return measure_token(show, {}, server, folder, duration)


def measure_dpop(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure as `measure_bearer`, with a token that is bound to a key, and a DPoP proof in each request."""
    key = DPoPKey.generate()

    def show(token: str, count: int) -> Fields:
        now = time.time()
        proofs = (
            make_proof(key, method="GET", url=f"{ORIGIN}/post", now=now, token=token)
            for _ in range(1 + count // DIGESTS_A_PROOF)
        )
        return Fields([f"DPoP: {proof}" for proof in proofs], f"Authorization: DPoP {token}")

    return measure_token(show, {"cnf": {"jkt": key.thumbprint}}, server, folder, duration)


def measure_token(
    show: Callable[[str, int], Fields], claims: Mapping[str, Any], server: Server, folder: Path, duration: Duration
) -> dict[str, float]:
    """Measure as `measure_logged_in`, with a token of a configured issuer that has these further claims.

    `show` returns the header fields for a number of requests with a token.
    """
    documents = folder / "issuer.files"
    documents.mkdir()
    with running(ISSUER, documents) as address:
        issuer = f"http://127.0.0.1:{address.port}"
        token = write_issuer(documents, issuer, claims)
        (folder / "issuer").write_text(issuer)
        trusting = replace(server, settings=server.settings.replace("ISSUER", issuer))
        return measure_logged_in(lambda _server, _port, count: show(token, count), trusting, folder, duration)


def write_issuer(folder: Path, issuer: str, more: Mapping[str, Any]) -> str:
    """Write an issuer's metadata and a new key (OpenID Connect Discovery §4); return a token with these claims, too."""
    key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, auto_kid=True)
    (folder / "jwks").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    (folder / ".well-known").mkdir()
    metadata = json.dumps({"issuer": issuer, "jwks_uri": f"{issuer}/jwks"})
    (folder / ".well-known" / "openid-configuration").write_text(metadata)
    now = int(time.time())
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": USER, "iat": now, "exp": now + TOKEN_LIFETIME_S, **more}
    return jwt.encode({"typ": "at+jwt", "alg": "RS256", "kid": key.kid}, claims, key)


def measure_signin(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure logins by form, each of a different user, and the latency of one client that reads the list meanwhile."""
    seconds, password_hash = duration.measured_s, hash_password(PASSWORD)
    users = range(WARM_UP_SIGNINS + seconds * SIGNINS_PER_SECOND)
    (folder / "users").write_text("".join(f"{USER}{number}:{password_hash}\n" for number in users))
    with serving_short_list(server, folder) as address, ThreadPoolExecutor(1) as beside:
        size = len(check_list(server, address.port, SHORT_LIST))
        # Not with wrk, which would leave logins in progress when it ends.
        for number in users[:WARM_UP_SIGNINS]:
            sign_in(server, address.port, f"{USER}{number}")
        arguments = [USER, str(WARM_UP_SIGNINS), PASSWORD]
        logins = beside.submit(load, server, address.port, seconds, script("signin"), arguments)
        took = time_slow_client(server, address.port, size, until=logins.done)
        measured = logins.result()
    if server.name in KEEP_SESSIONS:
        # As many users as responses: no login was answered because of an earlier one.
        answered = WARM_UP_SIGNINS + measured.requests
        check_stored(server, folder, answered, "SELECT count(DISTINCT username) FROM session")
    return {"logins/s": measured.per_second, "GET p99 ms": percentile(took, 99) * 1000}


def measure_without_signins(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure the reader of `measure_signin` without logins beside it."""
    with serving_short_list(server, folder) as address:
        size = len(check_list(server, address.port, SHORT_LIST))
        load(server, address.port, duration.warm_up_s)
        end = time.monotonic() + duration.measured_s
        took = time_slow_client(server, address.port, size, until=lambda: time.monotonic() >= end)
    return {"GET p99 ms": percentile(took, 99) * 1000}


def measure_hash(_server: Server, _folder: Path, duration: Duration) -> dict[str, float]:
    """Measure how often the servers' core verifies the password if it does nothing else."""
    password_hash = hash_password(PASSWORD)
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        verified, start = 0, time.monotonic()
        while time.monotonic() < start + duration.measured_s:
            verified += verify_password(password_hash, PASSWORD)
        return {"logins/s": verified / (time.monotonic() - start)}
    finally:
        os.sched_setaffinity(0, {LOAD_CORE})

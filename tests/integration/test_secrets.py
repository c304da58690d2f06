"""A run that uses every scheme leaves none of its secrets in the log, in what the processes print, or in `/metrics`.

What is malformed, and what the log of Basic, Digest and the form says in detail, is in `test_logins.py`.
"""

import base64
import hashlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from postd.auth.user_file import make_account, set_account
from postd.protocol.personal_token import make_token
from tests.cli.test_session import postd
from tests.helpers import make_certificate
from tests.integration.daemon import FREE_PORT, START_MAX_S, Daemon
from tests.integration.logins import DigestUser, compute, decode_parameters, h_a1
from tests.issuer import INTROSPECTION, Issuer, Key

PASSWORD, WRONG = "correct-horse-battery", "wrong-horse-battery"
CLIENT_SECRET = "what-the-issuer-knows-us-by"
URL_PASSWORD, QUERY_PASSWORD = "password-in-userinfo", "password-in-a-query"
AUDIENCE = "https://posts.example"
SESSION = re.compile(r"session=([^;]+)")

SETTINGS = """\
listen = ["{port}", "ssl:0:interface=127.0.0.1:privateKey=key.pem:certKey=cert.pem"]
users = "users"
workers = {workers}

[api]
read = ["open"]
write = ["basic", "digest", "session", "bearer", "token"]

[[page]]
path = "/any"
schemes = ["digest", "bearer", "basic", "session", "token"]
[[page]]
path = "/few"
schemes = ["basic", "bearer", "token"]
users = ["unknown"]

[[bearer]]
issuer = "{issuer}"
audience = "{audience}"
introspection_endpoint = "{introspection}"
client_id = "postd"
client_secret_file = "secret"
write_scope = "post:write"

[admin]
listen = ["{port}"]

[log]
format = "{format}"
"""


class Run:
    """A client that sends all kinds of credentials, right and wrong, and records what must not be logged.

    Args:
        url: of the server.
        issuer: of the tokens.
        token: a personal access token of alice.
    """

    def __init__(self, url: str, issuer: Issuer, token: str) -> None:
        self._url = url
        self._issuer = issuer
        self._token = token
        self.secrets: set[str] = set()
        self.statuses: set[int] = set()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=START_MAX_S, verify=False) as client:
            for scheme in (self._basic, self._digest, self._form, self._bearer, self._personal, self._elsewhere):
                scheme(client)

    def _ask(self, client: httpx.Client, **headers: str) -> None:
        """Send credentials to paths that accept them, and to others."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        for path in ("/any", "/few", "/nothing", "/post/events?after=999999999"):
            with client.stream("GET", path, headers=fields) as answer:  # events would go on
                self.statuses.add(answer.status_code)
        key = f"key-{len(self.secrets)}-of-a-client"
        self.secrets.add(key)
        written = client.post("/post", json={"post": "x"}, headers={**fields, "Idempotency-Key": key})
        self.statuses.add(written.status_code)

    def _basic(self, client: httpx.Client) -> None:
        for name, password in (("alice", PASSWORD), ("alice", WRONG), ("unknown", WRONG)):
            shown = base64.b64encode(f"{name}:{password}".encode()).decode()
            self.secrets |= {password, shown, shown.rstrip("=")}
            self._ask(client, Authorization=f"Basic {shown}")

    def _digest(self, client: httpx.Client) -> None:
        for password in (PASSWORD, WRONG):
            alice = DigestUser("alice", password, path="/any")
            challenge = client.get("/any").headers.get_list("WWW-Authenticate")[0]
            nonce = decode_parameters(challenge)["nonce"]
            for count in (1, 1, 2):
                credentials = alice.credentials(nonce, count)
                self.secrets |= {
                    decode_parameters(credentials)["response"],
                    compute(decode_parameters(credentials), password, ""),
                }
                answer = client.get("/any", headers={"Authorization": credentials})
                self.statuses.add(answer.status_code)
            self.secrets |= {nonce, "0a4f113b", h_a1("MD5", "alice", "postd", password)}
            self._ask(client, Authorization=credentials)

    def _form(self, client: httpx.Client) -> None:
        for password in (WRONG, PASSWORD, PASSWORD):
            answer = client.post("/login", data={"username": "alice", "password": password})
            self.statuses.add(answer.status_code)
        (session,) = SESSION.findall(answer.headers["Set-Cookie"])
        self.secrets |= {session, hashlib.sha256(session.encode()).hexdigest()}
        client.cookies.clear()
        cookie = f"session={session}"
        self._ask(client, Cookie=cookie)
        client.post("/logout", headers={"Cookie": cookie})
        self._ask(client, Cookie=cookie)
        made_up = "A" * (len(session) - 6) + "madeup"
        self.secrets.add(made_up)
        self._ask(client, Cookie=f"session={made_up}")
        client.cookies.clear()

    def _bearer(self, client: httpx.Client) -> None:
        good, narrow = self._issuer.token(scope="post:write"), self._issuer.token(scope="post:read")
        expired, unknown = self._issuer.token(exp=1), self._issuer.token(Key.make("ES256", "not-in-the-set"))
        opaque, dead = "opaque-token-that-is-good-0123456789", "opaque-token-that-is-not-9876543210"
        self._issuer.active[opaque] = {"sub": "alice", "aud": AUDIENCE, "scope": "post:write"}
        for token in (good, narrow, expired, unknown, opaque, dead, good[:-8]):
            self.secrets |= {token, token[-20:]}
            self._ask(client, Authorization=f"Bearer {token}")

    def _personal(self, client: httpx.Client) -> None:
        for token in (self._token, make_token(), self._token[:-1]):
            shown = base64.b64encode(f"alice:{token}".encode()).decode()
            self.secrets |= {token, token[6:], shown, hashlib.sha256(token.encode()).hexdigest()}
            for value in (f"Bearer {token}", f"Basic {shown}", f"token {token}"):
                self._ask(client, Authorization=value)
        client.get(
            f"/post/{self._token}", headers={"X-Request-Id": self._token, "Referer": f"{self._url}/{self._token}"}
        )
        client.get(f"/{self._token}?token={self._token}", headers={"User-Agent": f"agent/{self._token}"})

    def _elsewhere(self, client: httpx.Client) -> None:
        """Send secrets where they do not belong, as programs have done."""
        token = self._issuer.token(jti="in-a-place-of-its-own")
        self.secrets |= {token, token[-20:], QUERY_PASSWORD, URL_PASSWORD}
        client.get("/post", headers={"X-Request-Id": token, "User-Agent": f"agent/{token}"})
        client.get("/post", headers={"X-Request-Id": f"trace:{token}", "Referer": f"https://a.example/?t={token}"})
        client.get("/post", headers={"Referer": f"https://alice:{URL_PASSWORD}@posts.example/post"})
        for query in (f"access_token={token}", f"password={QUERY_PASSWORD}", f"client%5Fsecret={QUERY_PASSWORD}"):
            client.get(f"/post?{query}")
            client.get(f"/any?a=b&{query}#c")
        client.get(f"/post/{quote(token)}")
        # In the absolute form, as to a proxy (RFC 9112 §3.2.2).
        client.get("/post", extensions={"target": f"{self._url}/post?token={token}".encode()})
        client.get("/post", extensions={"target": f"http://alice:{URL_PASSWORD}@127.0.0.1/post".encode()})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(AUDIENCE, Key.make("ES256")) as issuer:
        yield issuer


@pytest.mark.slow
@pytest.mark.parametrize(("format_", "workers"), [("text", 1), ("json", 2)])
def test_no_secret_is_in_log_files_or_metrics(tmp_path: Path, issuer: Issuer, format_: str, workers: int) -> None:
    (tmp_path / "users").touch(0o600)
    (tmp_path / "users").write_bytes(set_account(b"", make_account("alice", PASSWORD, "postd")))
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text(CLIENT_SECRET + "\n")
    make_certificate(tmp_path)
    (tmp_path / "postd.toml").write_text(
        SETTINGS.format(
            port=FREE_PORT,
            workers=workers,
            issuer=issuer.issuer,
            audience=AUDIENCE,
            introspection=issuer.origin + INTROSPECTION,
            format=format_,
        )
    )
    with Daemon(tmp_path, "-c", "postd.toml", listen=None) as daemon:
        (ready,) = [line for line in daemon.log.splitlines() if "postd ready: " in line]
        urls = re.findall(r"https?://127\.0\.0\.1:\d+", ready)
        token = postd(tmp_path, "token", "add", "alice", "--access", "write", "-c", "postd.toml")[1].strip()
        run = Run(urls[workers - 1], issuer, token)  # the second one is over TLS
        run.run()
        metrics = "".join(
            httpx.get(f"{urls[2]}{path}", timeout=START_MAX_S, verify=False).text for path in ("/metrics", "/readyz")
        )
        assert daemon.stop() == -signal.SIGTERM
    assert {200, 201, 401, 403, 404} <= run.statuses
    for scheme in ("basic", "digest", "form", "session", "bearer", "token"):
        for outcome in ("accepted", "refused"):
            assert f'postd_auth_total{{outcome="{outcome}",scheme="{scheme}"}}' in metrics
    log = daemon.log
    assert "Traceback" not in log
    assert re.search(r"/~\d+", log)
    (key, user_entry) = ((tmp_path / name).read_text() for name in ("key.pem", "users"))
    secrets = run.secrets | {CLIENT_SECRET, base64.b64encode(f"postd:{CLIENT_SECRET}".encode()).decode()}
    secrets |= {*key.splitlines()[1:-1], *user_entry.strip().split(":")[1:]}
    secrets |= {part.partition("=")[2] for part in user_entry.strip().split(":")[2].split(",")} - {"postd"}
    found = {secret: re.findall(f".*{re.escape(secret)}.*", log + metrics) for secret in secrets}
    assert {secret: lines for secret, lines in found.items() if lines} == {}
    if format_ == "json":
        for line in log.splitlines():
            json.loads(line)

"""Digest of `postd.client` against Apache httpd's mod_auth_digest, an independent implementation."""

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import httpx
import pytest
import treq
from pytest_twisted import ensureDeferred
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from postd.client import AuthClient, Digest
from tests.client.server import REACTOR, in_background
from tests.helpers import PATIENCE_S, wait_until
from tests.redis_server import free_port

START_MAX_S = PATIENCE_S
USER, REALM, PASSWORD = "alice", "members only", "correct: hörse"

MODULES = ("mpm_event", "authn_core", "authn_file", "authz_core", "authz_user", "auth_digest", "dir", "mime")

SETTINGS = """
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {folder}/pid
ErrorLog {folder}/error
CustomLog {folder}/access "%r %>s"
DocumentRoot {folder}/pages
TypesConfig /dev/null
DefaultRuntimeDir {folder}
<Directory {folder}/pages>
    AuthType Digest
    AuthName "{realm}"
    AuthDigestProvider file
    AuthUserFile {folder}/digest
    AuthDigestNonceLifetime {lifetime}
    Require valid-user
</Directory>
"""


class Apache:
    """Apache httpd with one folder behind Digest; ends with the `with` block."""

    def __init__(self, port: int | None = None, *, nonce_lifetime_s: int = 300) -> None:
        # Started by root it serves as another user, without access to pytest's folders.
        self._made = TemporaryDirectory()
        self._folder = Path(self._made.name)
        self._folder.chmod(0o755)
        self.port = port or free_port()
        self._nonce_lifetime_s = nonce_lifetime_s
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        program = shutil.which("apache2", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "there is no Apache httpd: it is Debian's package apache2"
        (self._folder / "pages").mkdir()
        (self._folder / "pages" / "page").write_text("Success\n")
        hashed = hashlib.md5(f"{USER}:{REALM}:{PASSWORD}".encode()).hexdigest()
        (self._folder / "digest").write_text(f"{USER}:{REALM}:{hashed}\n")
        modules = [f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in MODULES]
        if os.getuid() == 0:
            modules.append("User www-data\nGroup www-data")
        settings = SETTINGS.format(port=self.port, folder=self._folder, realm=REALM, lifetime=self._nonce_lifetime_s)
        (self._folder / "apache.conf").write_text("\n".join([*modules, settings]))
        with (self._folder / "stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                [program, "-D", "FOREGROUND", "-d", str(self._folder), "-f", str(self._folder / "apache.conf")],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        deadline = time.monotonic() + START_MAX_S
        while not self._answers():
            assert self._process.poll() is None, self.error_log
            assert time.monotonic() < deadline, self.error_log
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(START_MAX_S)
        self._made.cleanup()

    @property
    def error_log(self) -> str:
        files = [self._folder / name for name in ("stderr", "error")]
        return "\n".join(file.read_text() for file in files if file.exists())

    @property
    def statuses(self) -> list[int]:
        """The statuses of all responses, but for those to `_answers`."""
        lines = (self._folder / "access").read_text().splitlines()
        return [int(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("GET / ")]

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url).status_code == 401
        except httpx.TransportError:
            return False


@pytest.fixture
def apache() -> Iterator[Apache]:
    with Apache() as apache:
        yield apache


async def get(client: AuthClient, path: str = "/page") -> tuple[int, str]:
    response = await client.get(f"{client.origin}{path}")
    return response.code, await response.text()


async def logged(apache: Apache, count: int) -> list[int]:
    """Return the statuses of all responses once there are so many; Apache logs one after it was sent."""
    await deferToThread(wait_until, lambda: len(apache.statuses) >= count)
    return apache.statuses


@ensureDeferred
async def test_digest_client_is_accepted_by_apache(apache: Apache) -> None:
    async with AuthClient(REACTOR, apache.url, Digest(USER, PASSWORD)) as client:
        assert await get(client) == (200, "Success\n")
        # It proves that it knows the password, too, which is verified where it does.
        response = await client.get(f"{apache.url}/page?a=1&b=%C3%A4")
        assert b"rspauth" in response.headers.getRawHeaders(b"Authentication-Info")[0]
        assert await response.text() == "Success\n"
        codes = await gatherResults([in_background(get(client)) for _ in range(5)])
        assert codes == [(200, "Success\n")] * 5
        response = await treq.head(f"{apache.url}/page", agent=client.agent)
        assert response.code == 200
        assert (await get(client, "/missing"))[0] == 404
        # One request was asked for credentials, and none after it.
        assert sorted(await logged(apache, 10)) == [*[200] * 8, 401, 404]


@ensureDeferred
async def test_stale_apache_nonce_is_replaced() -> None:
    with Apache(nonce_lifetime_s=1) as apache:
        async with AuthClient(REACTOR, apache.url, Digest(USER, PASSWORD)) as client:
            assert await get(client) == (200, "Success\n")
            before = await logged(apache, 2)
            await deferLater(REACTOR, 2.5)
            assert await get(client) == (200, "Success\n")
            # A nonce may expire meanwhile on a busy machine, too.
            *stale, last = (await logged(apache, len(before) + 2))[len(before) :]
            assert (set(stale), last) == ({401}, 200)


@ensureDeferred
async def test_wrong_password_is_refused_by_apache(apache: Apache) -> None:
    async with AuthClient(REACTOR, apache.url, Digest(USER, "wrong")) as client:
        assert (await get(client))[0] == 401
        assert await logged(apache, 2) == [401, 401]


@ensureDeferred
async def test_client_survives_restart_of_apache() -> None:
    """After a restart Apache has forgotten its nonces, and answers them without `stale`."""
    with Apache() as first:
        client = AuthClient(REACTOR, first.url, Digest(USER, PASSWORD))
        assert await get(client) == (200, "Success\n")
    with Apache(first.port):
        assert await get(client) == (200, "Success\n")
        await client.close()

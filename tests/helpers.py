"""Helpers of the tests of several packages: in-memory server and client, certificates, locks."""

import ipaddress
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from msgspec import Struct
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransportWithDisconnection
from twisted.web.resource import IResource

from postd.auth.password import HashThreads
from postd.daemon.log import ACCESS_LOG
from postd.daemon.schemes import make_authentication
from postd.daemon.server import make_tree
from postd.front.access_log import AccessLog
from postd.front.connection import HttpConnection
from postd.front.factory import HttpFactory
from postd.protect.guard import ProtectedResource
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import LoadedSettings
from postd.settings.schema import Limits, Settings
from postd.settings.values import decode_value
from postd.store.sqlite.database_file import DatabaseFile
from postd.store.sqlite.store import MemoryStore, SqliteStore
from postd.store.sqlite.writer_thread import WriterThread
from postd.web.events import Events
from postd.web.routing import is_api

FIELD_TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
"""What the value of a field may consist of (RFC 9110 §5.5); with anything else the whole request is refused."""

IS_THOROUGH = os.environ.get("POSTD_THOROUGH", "0") not in {"", "0"}
"""Whether more is to be tried of what is endless, such as inputs of a parser; `.ci/run` does."""

NOT_ROOT = "not run as root, and files of other users have to be made"
"""The reason of a skipped test."""

PATIENCE_S = 120.0
"""The timeout of tests, in seconds: longer than anything takes on a busy machine, so that it means a hang."""

SALT = b"$2b$04$abcdefghijklmnopqrstuu"
"""A salt of bcrypt for hashes in names of tests, which have to be equal in all processes of pytest-xdist."""


def result_of(call: Any) -> Any:
    """Return the result of a coroutine or Deferred that does not have to wait, or raise its error."""
    results: list[Any] = []
    waiting = call if isinstance(call, Deferred) else Deferred.fromCoroutine(call)
    waiting.addBoth(results.append)
    assert results, "still waiting"
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]


@contextmanager
def make_socket_folder() -> Iterator[Path]:
    """Make a temporary folder with a short path, for UNIX sockets, whose paths have at most 107 bytes."""
    root = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="postd-", dir=root if len(os.fsencode(root)) < 40 else "/tmp") as name:
        yield Path(name)


@contextmanager
def make_shared_folder(mode: int) -> Iterator[Path]:
    """Make a temporary folder that other users reach: a folder above TMPDIR may be closed to them (libpam-tmpdir)."""
    with tempfile.TemporaryDirectory(prefix="postd-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(mode)
        yield folder


def run_sql(path: Path, *statements: str) -> list[Any]:
    """Run statements in a database, as the sqlite3 shell does; return the rows of the last one."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


@contextmanager
def locked(path: Path, how: str) -> Iterator[None]:
    """Hold a lock of a database, as another program would: IMMEDIATE excludes writers, EXCLUSIVE readers, too."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if how == "EXCLUSIVE":  # with a write-ahead log BEGIN EXCLUSIVE alone does not exclude readers
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(f"BEGIN {how}")
        yield
        connection.execute("COMMIT")


def wait_until(
    is_so: Callable[[], object], shown: Callable[[], object] = lambda: "not in time", *, within_s: float = PATIENCE_S
) -> None:
    """Wait until a condition holds; `shown` is called for the message if it does not in time."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.02)


class _Inline:
    """Mixin in place of a thread: runs each call at once, in the caller."""

    def start(self) -> None:
        pass

    def run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return maybeDeferred(function, *args)

    def stop(self) -> None:
        pass


class InlineThread(_Inline, WriterThread):
    """A writer thread that runs each call at once, in the caller; it is always idle."""


class Response(Struct):
    """An HTTP response. Header names are in lower case."""

    status: int
    headers: dict[str, list[str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header, None if there is none; it may not be repeated."""
        values = self.headers.get(name.lower(), [])
        assert len(values) <= 1
        return values[0] if values else None


def forget_own(*answers: Any) -> None:
    """Remove the headers that differ between equal responses: the date and the request id."""
    for answer in answers:
        for name in ("date",) if "server" in answer.headers else ("date", "x-request-id"):  # a stock site has no id
            del answer.headers[name]


def make_site(root: IResource, *, clock: Clock | None = None, **limits: Any) -> HttpFactory:
    """Return a site for a resource, with a clock that stands still; `limits` are fields of `Limits`."""
    reactor = cast(IReactor, clock or Clock())
    access_log = AccessLog("text", address_of=_peer, log=ACCESS_LOG, reactor=reactor)
    with patch("postd.front.request_turns.TURN_COST", sys.maxsize):  # as in `InMemoryApi`
        return HttpFactory(root, limits=Limits(**limits), access_log=access_log, is_api=is_api, reactor=reactor)


def _peer(request: Any) -> str:
    return getattr(request.getClientAddress(), "host", "unix")


class MemoryTransport(StringTransportWithDisconnection):
    """The server's transport of a connection in memory."""

    aborted = False
    write_closed = False

    def setTcpNoDelay(self, enabled: bool) -> None:  # noqa: FBT001 - Twisted's signature
        pass

    def loseWriteConnection(self) -> None:
        self.write_closed = True

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


class SlowTransport(MemoryTransport):
    """Pauses a producer after each write, until `drain` is called."""

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.producer is not None and self.streaming:
            self.producer.pauseProducing()

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def drain(self) -> bytes:
        sent: bytes = self.value()
        self.clear()
        producer: Any = self.producer
        producer.resumeProducing()
        return sent


def connect(transport: MemoryTransport, site: HttpFactory) -> HttpConnection:
    """Make a connection to a site; return its protocol."""
    channel = cast(HttpConnection, site.buildProtocol(None))
    transport.protocol = channel
    channel.makeConnection(transport)
    return channel


class InlineHashThreads(_Inline, HashThreads):
    """As `InlineThread`, for password hashes."""


@cache
def _new_database() -> bytes:
    """Return an SQLite file without posts: to create it takes as long as all else of an `InMemoryApi`."""
    with tempfile.TemporaryDirectory(prefix="postd-") as folder:
        path = Path(folder) / "posts.db"
        SqliteStore(str(path), reactor=cast(IReactor, Clock())).prepare()
        return path.read_bytes()


class InMemoryApi:
    """The resource tree over a real SQLite store, without sockets, threads or waiting; `tests.web.wire` is the client.

    Its clock stands at `START_S` until a test advances it. Requests to issuers get no response.

    Args:
        folder: the folder of the user file, which may not exist yet; None for no user file.
        settings: TOML of the settings, without `users`.
    """

    START_S = 1_800_000_000.0

    def __init__(self, folder: Path | None = None, settings: str = "") -> None:
        self.clock = MemoryReactorClock()
        self.clock.rightNow = self.START_S
        reactor = cast(IReactor, self.clock)
        loaded = msgspec.convert(tomllib.loads(settings), Settings, dec_hook=decode_value)
        self.users = folder / "users" if folder else None
        if self.users:
            loaded = msgspec.structs.replace(loaded, users=str(self.users))
        self.store = MemoryStore(reactor=reactor, thread=InlineThread(reactor))
        self.site = self._serve(loaded, reactor)

    def _serve(self, settings: Settings, reactor: IReactor) -> HttpFactory:
        """Start the store and all that authentication needs; return the site."""
        loaded, threads = LoadedSettings(settings, {}, {}), InlineHashThreads(reactor)
        clock = ServiceClock(reactor)
        self.logins = make_authentication(loaded, self.store, clock=clock, reactor=reactor, threads=threads)
        self.settings = settings
        # Last: nothing would close the store if one of the others failed.
        self.store.prepare()
        new = _new_database()
        with patch.object(DatabaseFile, "_create_if_missing", lambda file: Path(file.path).write_bytes(new)):
            result_of(self.store.start())
        self.logins.start()
        self.events = Events(self.store, reactor=reactor)
        with patch("postd.fair_queue.TURN_MAX_S", math.inf):  # no request waits for the clock on a busy machine
            root = make_tree(settings, self.store, self.events, self.logins)
        site = make_site(root, clock=self.clock)
        site.site_name = settings.realm
        return site

    def protect(self, resource: IResource, *schemes: str) -> IResource:
        """Return a resource behind a guard, as that of a page."""
        return self.logins.protect(resource, schemes, ProtectedResource(self.logins.context.clients))

    def close(self) -> None:
        self.clock.advance(0)  # writes that no request waits for
        self.logins.stop()
        result_of(self.store.stop())

    def add(self, text: str) -> int:
        """Add a post to the store, not by the API; return its id."""
        adding = Deferred.fromCoroutine(self.store.add_post(text))
        self.clock.advance(0)
        post_id: int = result_of(adding)
        return post_id


def make_certificate(
    folder: Path,
    given: rsa.RSAPrivateKey | None = None,
    *,
    subject: str = "localhost",
    signed_by: tuple[str, rsa.RSAPrivateKey] | None = None,
    ends_in: timedelta = timedelta(days=1),
) -> tuple[Path, Path]:
    """Make a certificate for localhost, with an ECDSA key unless given; return the files of both.

    It is signed by itself unless the name and the key of an issuer are given.
    """
    key = given or ec.generate_private_key(ec.SECP256R1())
    issuer, signing_key = signed_by or (subject, key)
    now = datetime.now(tz=UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(_name(issuer), _name(subject), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + ends_in)
        .add_extension(names, critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    key_file, certificate_file = folder / "key.pem", folder / "cert.pem"
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_file, certificate_file


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def start_on_terminal(command: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command with a terminal of its own, which Ctrl-C and `/dev/tty` need; return our end of it, too.

    `pty.fork` warns in a process with threads, as those of pytest have.
    """
    ours, theirs = os.openpty()
    shim = [sys.executable, "-c", _ON_TERMINAL, *command]
    process = subprocess.Popen(shim, cwd=folder, start_new_session=True, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return process, ours

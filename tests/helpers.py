"""What tests of several layers share."""

import ipaddress
import os
import sqlite3
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

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
from postd.daemon.authentication import Authentication
from postd.daemon.server import make_tree
from postd.reactor import IReactor
from postd.settings.schema import Limits, Settings
from postd.settings.values import decode_text
from postd.store.sqlite.engine import WriterThread
from postd.store.sqlite.store import SqliteStore
from postd.web.events import Events
from postd.web.server.access_log import AccessLog
from postd.web.server.connection import Channel
from postd.web.server.factory import PostdSite

FIELD_TEXT = bytes([0x09, *range(0x20, 0x7F), *range(0x80, 0x100)])
"""What the value of a field may consist of (RFC 9110 §5.5); with anything else the whole request is refused."""

NOT_ROOT = "not run as root, and files of other users have to be made"
"""Why a test is skipped."""

PATIENCE_S = 120.0
"""How long a test waits for what must come: longer than a busy machine takes, so that it means a hang."""

SALT = b"$2b$04$abcdefghijklmnopqrstuu"
"""For bcrypt where a hash is part of a test's name, which is to be the same in each process."""


def result_of(call: Any) -> Any:
    """Return what a coroutine or Deferred that needs nothing more comes to; raise what it raises."""
    results: list[Any] = []
    waiting = call if isinstance(call, Deferred) else Deferred.fromCoroutine(call)
    waiting.addBoth(results.append)
    assert results, "still waiting"
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]


@contextmanager
def make_socket_folder() -> Iterator[Path]:
    """Make a folder whose path leaves a UNIX socket in it enough of its 107 bytes, wherever the temporary folder is."""
    root = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix="postd-", dir=root if len(os.fsencode(root)) < 40 else "/tmp") as name:
        yield Path(name)


def run_sql(path: Path, *statements: str) -> list[Any]:
    """Do something to a database past postd, as the sqlite3 shell would; return the last statement's rows."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


@contextmanager
def locked(path: Path, how: str) -> Iterator[None]:
    """Hold a lock of a database, as another program would: IMMEDIATE keeps writers out, EXCLUSIVE all."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if how == "EXCLUSIVE":  # the word after BEGIN keeps no reader out where there is a write-ahead log
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(f"BEGIN {how}")
        yield
        connection.execute("COMMIT")


class _Inline:
    """What is no thread: all is done at once, where it is asked for."""

    def start(self) -> None:
        pass

    def run(self, function: Callable[..., Any], *args: object) -> Deferred[Any]:
        return maybeDeferred(function, *args)

    def stop(self) -> None:
        pass


class InlineThread(_Inline, WriterThread):
    """The writer's thread that is none."""


class Response(Struct):
    """An HTTP answer. The names of its headers are in lower case."""

    status: int
    headers: dict[str, list[str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header that is there once or not at all."""
        values = self.headers.get(name.lower(), [])
        assert len(values) <= 1
        return values[0] if values else None


def forget_own(*answers: Any) -> None:
    """Take away what each answer has of its own: the time, and the name of its request."""
    for answer in answers:
        for name in ("date", "x-request-id"):
            del answer.headers[name]


def make_site(root: IResource, *, clock: Clock | None = None, **limits: Any) -> PostdSite:
    """Put our front before a resource, with a clock that stands still; `limits` are fields of `Limits`."""
    reactor = cast(IReactor, clock or Clock())
    access_log = AccessLog(as_json=False, address_of=_peer, reactor=reactor)
    return PostdSite(root, limits=Limits(**limits), access_log=access_log, reactor=reactor)


def _peer(request: Any) -> str:
    return getattr(request.getClientAddress(), "host", "unix")


class MemoryTransport(StringTransportWithDisconnection):
    """A client's end of a connection, in memory."""

    aborted = False
    write_closed = False

    def loseWriteConnection(self) -> None:
        self.write_closed = True

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


class SlowTransport(MemoryTransport):
    """Holds up whoever writes until `drain` is called."""

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


def connect(transport: MemoryTransport, site: PostdSite) -> Channel:
    """Make a connection to the server; return the server's end."""
    channel = cast(Channel, site.buildProtocol(None))
    transport.protocol = channel
    channel.makeConnection(transport)
    return channel


class InlineHashThreads(_Inline, HashThreads):
    """As `InlineThread`, for passwords."""


class InMemoryApi:
    """The resource tree over a real SQLite store, without sockets, threads or waiting; `tests.web.wire` is the client.

    Its clock stands at `START_S` until a test advances it, nobody answers what it asks of issuers, and its folder is
    only for the user file, `users`.

    Args:
        folder: has the user file, or will.
        settings: what would stand in the settings file, but for `users`.
    """

    START_S = 1_800_000_000.0

    def __init__(self, folder: Path | None = None, settings: str = "") -> None:
        self.clock = MemoryReactorClock()
        self.clock.rightNow = self.START_S
        reactor = cast(IReactor, self.clock)
        loaded = msgspec.convert(tomllib.loads(settings), Settings, dec_hook=decode_text)
        self.users = folder / "users" if folder else None
        if self.users:
            loaded = msgspec.structs.replace(loaded, users=str(self.users))
        self.store = SqliteStore.in_memory(reactor=reactor, thread=InlineThread(reactor))
        self.logins = Authentication(loaded, self.store, reactor=reactor, threads=InlineHashThreads(reactor))
        # Opened when nothing can be refused any more: nobody would close it.
        self.store.prepare()
        result_of(self.store.start())
        self.logins.start()
        self.events = Events(self.store, reactor=reactor)
        self.site = make_site(make_tree(loaded, self.store, self.events, self.logins), clock=self.clock)

    def close(self) -> None:
        self.logins.stop()
        result_of(self.store.stop())

    def add(self, text: str) -> int:
        """Store a post past the API; return its id."""
        adding = Deferred.fromCoroutine(self.store.add_post(text))
        self.clock.advance(0)
        post_id: int = result_of(adding)
        return post_id


def make_certificate(folder: Path, given: rsa.RSAPrivateKey | None = None) -> tuple[Path, Path]:
    """Make a self-signed certificate for this machine, of ECDSA unless given; return the files of its key and of it."""
    key = given or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(tz=UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = folder / "key.pem", folder / "cert.pem"
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_file, certificate_file

"""Loads that only TLS has: handshakes that do not end, and what a client may send beside its requests.

Each connection has a new handshake unless the load says otherwise. The client is OpenSSL in memory, whose records are
sent as the load wants.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from ctypes import PYFUNCTYPE, c_int, c_void_p
from typing import Any, cast

from msgspec import Struct
from OpenSSL import SSL

from bench.heavy import HELD_S, SOURCE, run_clients
from bench.soaking.wire import encode_request
from postd.net.openssl import find_function
from postd.twisted_private import openssl_behind

REQUEST = encode_request("GET", "/post?limit=1", close=True)
TRICKLE_S = 0.2
TOGETHER_S = 3.0
REPEATED = 50
"""How many ChangeCipherSpec records, KeyUpdate messages or renegotiations a connection has."""

HEAD_BYTES = 5
"""The length of the head of a record."""
CHANGE_CIPHER_SPEC = b"\x14\x03\x03\0\1\1"
"""A record that a server of TLS 1.3 ignores until the handshake is done (RFC 8446 §5)."""

_CONTEXT = SSL.Context(SSL.TLS_CLIENT_METHOD)
_TLS_1_2 = SSL.Context(SSL.TLS_CLIENT_METHOD)
_TLS_1_2.set_max_proto_version(SSL.TLS1_2_VERSION)
_SESSIONS: list[SSL.Session] = []


class Client:
    """A TLS client on streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: SSL.Context) -> None:
        self.tls = SSL.Connection(context)
        self.tls.set_connect_state()
        self._reader = reader
        self.writer = writer

    def flush(self) -> None:
        """Send what OpenSSL has to send."""
        try:
            while True:
                self.writer.write(self.tls.bio_read(65536))
        except SSL.WantReadError:
            return

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a function of OpenSSL until it need not read; return None at the end of the connection."""
        while True:
            try:
                return function(*arguments)
            except SSL.WantReadError:
                self.flush()
                received = await self._reader.read(65536)
                if not received:
                    return None
                self.tls.bio_write(received)
            except SSL.Error:
                return None
            finally:
                self.flush()

    async def shake_hands(self) -> None:
        await self.call(self.tls.do_handshake)

    async def ask(self) -> bool:
        """Send a request, and return whether there is a response; read it to its end."""
        self.tls.send(REQUEST)
        return await self.read()

    async def read(self) -> bool:
        received = piece = await self.call(self.tls.recv, 65536)
        while piece:
            piece = await self.call(self.tls.recv, 65536)
        return bool(received)


def hello() -> bytes:
    """Return a ClientHello."""
    tls = SSL.Connection(_CONTEXT)
    tls.set_connect_state()
    try:
        tls.do_handshake()
    except SSL.WantReadError:
        return tls.bio_read(65536)
    raise AssertionError


async def _ask(client: Client) -> bool:
    await client.shake_hands()
    return await client.ask()


async def _send_half(client: Client) -> bool:
    data = hello()
    client.writer.write(data[: len(data) // 2])
    return await _stay(client)


async def _send_hello(client: Client) -> bool:
    client.writer.write(hello())
    return await _stay(client)


async def _send_hello_together(client: Client) -> bool:
    """Send it with all others that have connected since the last time."""
    await asyncio.sleep(TOGETHER_S - asyncio.get_running_loop().time() % TOGETHER_S)
    return await _send_hello(client)


async def _trickle_hello(client: Client) -> bool:
    for byte in hello()[: int(HELD_S / TRICKLE_S)]:
        client.writer.write(bytes([byte]))
        await asyncio.sleep(TRICKLE_S)
    return False


async def _split_hello(client: Client) -> bool:
    """Send it in records of a byte each."""
    data = hello()
    client.writer.write(b"".join(data[:3] + b"\0\1" + bytes([byte]) for byte in data[HEAD_BYTES:]))
    return await _stay(client)


async def _change_cipher_spec(client: Client) -> bool:
    client.writer.write(hello() + CHANGE_CIPHER_SPEC * REPEATED)
    return await _stay(client)


async def _shake_hands_only(client: Client) -> bool:
    await client.shake_hands()
    return await _stay(client)


async def _stay(_: Client) -> bool:
    await asyncio.sleep(HELD_S)
    return False


async def _resume(client: Client) -> bool:
    if _SESSIONS:
        client.tls.set_session(_SESSIONS[-1])
    answered = await _ask(client)
    session = client.tls.get_session()
    if session is not None:
        _SESSIONS[:] = [session]
    return answered


async def _send_in_bytes(client: Client) -> bool:
    """Send a request in records of a byte each."""
    await client.shake_hands()
    for byte in REQUEST:
        client.tls.send(bytes([byte]))
    return await client.read()


async def _end_output(client: Client) -> bool:
    """Send close_notify after a request."""
    await client.shake_hands()
    client.tls.send(REQUEST)
    client.tls.shutdown()
    return await client.read()


async def _update_keys(client: Client) -> bool:
    """Ask for new keys of the server, again and again."""
    await client.shake_hands()
    file, _ = openssl_behind(_CONTEXT)
    update = find_function(file, "SSL_key_update", PYFUNCTYPE(c_int, c_void_p, c_int))
    if update is None:
        return False
    pointer = int(cast(Any, SSL)._ffi.cast("intptr_t", client.tls._ssl))  # noqa: SLF001 - there is no method for it
    for _ in range(REPEATED):
        update(pointer, 1)
        client.tls.do_handshake()
    return await client.ask()


async def _renegotiate(client: Client) -> bool:
    """Ask for another handshake in TLS 1.2, which the server refuses."""
    await client.shake_hands()
    for _ in range(REPEATED):
        client.tls.renegotiate()
        if await client.call(client.tls.do_handshake) is None:
            return False
    return await client.ask()


class Handshake(Struct, frozen=True):
    """A load: what a client does, its context, and whether it gets a response."""

    act: Callable[[Client], Awaitable[bool]]
    context: SSL.Context = _CONTEXT
    asks: bool = False


HARMLESS = "handshake and a short page"
LOADS: Mapping[str, Handshake] = {
    HARMLESS: Handshake(_ask, asks=True),
    "half a ClientHello": Handshake(_send_half),
    "only a ClientHello": Handshake(_send_hello),
    "300 ClientHellos together": Handshake(_send_hello_together),
    "ClientHello byte by byte": Handshake(_trickle_hello),
    "ClientHello in records of a byte": Handshake(_split_hello),
    "ChangeCipherSpec again and again": Handshake(_change_cipher_spec),
    "only a handshake": Handshake(_shake_hands_only),
    "resumed sessions": Handshake(_resume, asks=True),
    "request in records of a byte": Handshake(_send_in_bytes, asks=True),
    "close_notify after the request": Handshake(_end_output, asks=True),
    "KeyUpdate again and again": Handshake(_update_keys, asks=True),
    "renegotiation (TLS 1.2)": Handshake(_renegotiate, _TLS_1_2),
}
"""The loads by name; the first one is the measure of the others."""


def run(name: str, port: int, seconds: float) -> tuple[int, int]:
    """Load a server; return the numbers of requests and of responses. All clients have disconnected at the end."""
    return asyncio.run(run_clients(lambda _: connect(LOADS[name], port, SOURCE), seconds))


async def connect(load: Handshake, port: int, source: str) -> bool:
    """Run a client with an address; return whether it got a response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        return await load.act(Client(reader, writer, load.context))
    finally:
        writer.transport.abort()

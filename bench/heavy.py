"""Heavy loads: clients that request a different page of 1,000 long posts each, over a connection each.

Some close it at once, some read nothing, and some read the page with gzip. In a further load the clients open an event
stream and end it. The posts have characters of three bytes, or control characters, of which JSON makes six.
"""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import cast

from msgspec import Struct

from bench.open_loop import random_moments
from bench.soaking.wire import Connection, encode_request, end_output

POSTS, PAGE = 10_000, 1000
PAGES = 9001
"""A prime: the first ids of complete pages come in an order that no cache of near pages helps."""
STRIDE = 1999

PER_S = 100
SOURCE = "127.0.0.2"
"""The one address of all clients of the load; it is no trusted proxy."""

HELD_S = 8.0
"""How long a client that does not read stays connected; some 800 of them are, at a time."""
SMALL_BUFFER_BYTES = 4096
PIECE_BYTES = 256 * 1024
POST_CHARACTERS = 140
SEED = 1


def chinese(count: int) -> Iterator[str]:
    """Yield texts of posts: Chinese characters at random, which compress badly."""
    rng = random.Random(SEED)
    for _ in range(count):
        yield "".join(chr(rng.randrange(0x4E00, 0xA000)) for _ in range(POST_CHARACTERS))


def controls(count: int) -> Iterator[str]:
    """Yield texts of posts: control characters, which have the longest form in JSON."""
    yield from ["\1" * POST_CHARACTERS] * count


async def _read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> bool:
    """Read to the end; return whether anything came. The same holds for the other clients' functions."""
    received = piece = await reader.read(PIECE_BYTES)
    while piece:
        piece = await reader.read(PIECE_BYTES)
    return bool(received)


async def _leave(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    return False


async def _stay(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(HELD_S)
    return False


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """End this side within the response, and wait for the server to end it."""
    received = await reader.read(PIECE_BYTES)
    end_output(writer)
    await _read(reader, writer)
    return bool(received)


def _page(number: int, *fields: str) -> bytes:
    return encode_request("GET", f"/post?limit={PAGE}&after={number * STRIDE % PAGES}", fields, close=True)


class Heavy(Struct, frozen=True):
    """A load.

    Args:
        texts: yields the texts of so many posts, which the server has.
        request: makes a request from its number.
        act: what the client does when it has sent the request.
    """

    texts: Callable[[int], Iterator[str]]
    request: Callable[[int], bytes]
    act: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


HARMLESS = "short pages"
LOADS: Mapping[str, Heavy] = {
    HARMLESS: Heavy(chinese, lambda _: encode_request("GET", "/post?limit=1", close=True), _read),
    "the client has gone": Heavy(chinese, _page, _leave),
    "the client has gone (U+0001)": Heavy(controls, _page, _leave),
    "the client does not read": Heavy(chinese, _page, _stay),
    "the client does not read (U+0001)": Heavy(controls, _page, _stay),
    "gzip": Heavy(chinese, lambda number: _page(number, "Accept-Encoding: gzip"), _read),
    "gzip (U+0001)": Heavy(controls, lambda number: _page(number, "Accept-Encoding: gzip"), _read),
    "event streams end": Heavy(chinese, lambda _: encode_request("GET", "/post/events"), _end),
}
"""The loads by name; the first one is the measure of the others."""


def run(name: str, port: int, seconds: float) -> tuple[int, int]:
    """Load a server; return the numbers of requests and of responses. All clients have disconnected at the end."""
    return asyncio.run(run_clients(lambda number: _ask(LOADS[name], port, number), seconds))


async def run_clients(act: Callable[[int], Coroutine[None, None, bool]], seconds: float) -> tuple[int, int]:
    """Run clients, each with a number; return how many there were, and how many got a response."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    clients = []
    for number, at in enumerate(random_moments(PER_S, seconds)):
        await asyncio.sleep(start + at - loop.time())
        clients.append(asyncio.create_task(act(number)))
    await asyncio.sleep(start + seconds - loop.time())
    for client in clients:
        client.cancel()
    answered = await asyncio.gather(*clients, return_exceptions=True)
    return len(clients), answered.count(True)


async def _ask(load: Heavy, port: int, number: int) -> bool:
    with socket.socket() as own, suppress(OSError):
        if load.act is _stay:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        own.settimeout(0)
        own.bind((SOURCE, 0))
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
        tls = Connection.tls
        reader, writer = await asyncio.open_connection(
            sock=own, limit=PIECE_BYTES, ssl=tls, server_hostname="localhost" if tls else None
        )
        try:
            if load.act is _stay:
                cast("asyncio.Transport", writer.transport).pause_reading()
            writer.write(load.request(number))
            return await load.act(reader, writer)
        finally:
            writer.transport.abort()
    return False

"""The Redis store and faults of the network."""

import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError
from twisted.internet.testing import StringTransport
from txredisapi import BaseRedisProtocol

from postd.errors import (
    StoreUnavailableError,
)
from postd.store.redis.connecting import connect
from postd.store.redis.connection import RedisProtocol
from postd.store.redis.url import Host, RedisAddress
from tests.helpers import PATIENCE_S
from tests.redis_server import Proxy, RedisServer, free_port
from tests.store.contract import posts_of
from tests.store.failing import (
    Log,
    connected,
    fails,
    make_store,
    reactor,
    serves_again,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("log")


def test_commands_are_encoded_as_by_txredisapi() -> None:
    command = ("HSET", "kéy 🚀", b"\0\xff\r\n", 17, -1, "", 2**53)
    ours, theirs = RedisProtocol("", reactor), BaseRedisProtocol(charset="utf-8", convertNumbers=False)
    sent = []
    for protocol in (ours, theirs):
        protocol.makeConnection(StringTransport())
        protocol.connected = 1
        protocol.execute_command(*command)
        sent.append(protocol.transport.value())
    assert sent[0] == sent[1]
    assert sent[0].startswith(b"*7\r\n$4\r\nHSET\r\n")


def test_cancelled_command_leaves_the_next_one_its_reply() -> None:
    protocol = RedisProtocol("", reactor)
    protocol.makeConnection(StringTransport())
    first, second, third = (protocol.execute_command("GET", name) for name in "abc")
    first.addErrback(lambda failure: failure.trap(CancelledError) and "cancelled")
    first.cancel()
    protocol.dataReceived(b"$1\r\na\r\n-OOM full\r\n$1\r\nc\r\n")
    results: list[object] = []
    for reply in (first, second, third):
        reply.addErrback(lambda failure: str(failure.value)).addCallback(results.append)
    assert results == ["cancelled", "OOM full", "c"]


def cut_off(data: bytes) -> bytes:
    return b""


def reply_http(data: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def reply_numbers(data: bytes) -> bytes:
    return b":1\r\n"


def cut_a_script_off(data: bytes) -> bytes:
    return b"" if b"EVAL" in data else data


def _break(proxy: Proxy, kind: str) -> None:
    if kind == "refuses":
        proxy.is_refusing = True
    elif kind == "says nothing":
        proxy.pause()
    elif kind == "cuts off in the handshake":
        proxy.to_server = cut_off
    elif kind == "cuts off the first script":
        proxy.to_server = cut_a_script_off
    else:
        proxy.to_client = {"speaks HTTP": reply_http, "speaks nonsense": reply_numbers}[kind]


def _repair(proxy: Proxy) -> None:
    proxy.is_refusing = False
    proxy.to_server = proxy.to_client = lambda data: data
    proxy.resume()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("refuses", "says nothing", "cuts off in the handshake", "cuts off the first script", "speaks HTTP"),
        "speaks nonsense",
    ],
)
@ensureDeferred
async def test_connection_recovers_from_each_network_fault(guarded: RedisServer, kind: str, log: Log) -> None:
    with Proxy(guarded.port) as proxy:
        url = f"redis://:right@127.0.0.1:{proxy.port}/1"
        async with connected(url) as store:
            await store.add_post("before")
            _break(proxy, kind)
            guarded.ask("CLIENT", "KILL", "TYPE", "normal")
            accepted = proxy.accepted
            await wait_until(lambda: proxy.accepted > accepted + 2)
            await fails(store.add_post("ghost"), store.version())
            began = reactor.seconds()
            with pytest.raises(StoreUnavailableError):
                make_store(url).prepare()
            assert reactor.seconds() < began + PATIENCE_S
            _repair(proxy)
            await serves_again(store)
            assert await posts_of(store) == [(1, "before")]
            lines = log.lines("trying again")
            assert all(line != following for line, following in pairwise(lines))  # no reason is repeated


def test_host_that_does_not_answer_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(StoreUnavailableError, match=r"^redis://127.0.0.1:\d+/0: does not answer$"):
            make_store(f"redis://127.0.0.1:{full.getsockname()[1]}").prepare()


def test_missing_server_is_unavailable(socket_folder: Path) -> None:
    for url in (
        f"redis://127.0.0.1:{free_port()}",
        f"redis+unix://{socket_folder}/none",
        "redis://no.such.host.invalid",
    ):
        began = reactor.seconds()
        with pytest.raises(StoreUnavailableError):
            make_store(url).prepare()
        assert reactor.seconds() < began + PATIENCE_S


@ensureDeferred
async def test_unix_socket(socket_folder: Path) -> None:
    with RedisServer(socket_folder / "redis", f"unixsocket {socket_folder}/r") as server:
        async with connected(f"redis+unix://{socket_folder}/r?db=1") as store:
            assert await store.add_post("x") == 1
            server.kill()
            await fails(store.add_post("ghost"))
            server.start()
            await serves_again(store)
            assert await posts_of(store) == [(1, "x")]


@ensureDeferred
async def test_whendisconnected_fires_on_a_lost_connection(lasting: RedisServer) -> None:
    address = RedisAddress(hosts=(Host("127.0.0.1", lasting.port),))
    protocol = await connect(address, address.hosts[0], reactor=reactor)
    gone = protocol.whenDisconnected()
    protocol.close()
    assert await gone is protocol
    assert await protocol.whenDisconnected().addTimeout(PATIENCE_S, reactor) is protocol

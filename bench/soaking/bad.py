"""Bad clients: slow, broken, excessive or hostile requests, each with a check of the server's reaction.

A bad client runs once and returns. It raises `BrokenPromiseError` if the check fails.
"""

import asyncio
import gzip
import json
import os
import random
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import cycle
from urllib.parse import urlencode

from msgspec import Struct

from bench.handshakes import LOADS, Handshake, connect
from bench.hostile import LOGGED, patterns
from bench.soaking.bursts import Bursts
from bench.soaking.findings import BUSY, BrokenPromiseError, Findings
from bench.soaking.good import LIST_MOST
from bench.soaking.ledger import HIDDEN_TEXT
from bench.soaking.logins import FORM, Tokens, basic_field, bearer_field, digest_field, elsewhere
from bench.soaking.secrets_used import USED
from bench.soaking.server import BODY_S, CONNECTIONS, HEADER_S, IDLE_S, PASSWORD, USERS, VISITORS
from bench.soaking.wire import BrokenResponseError, ClosedError, Connection, encode_request, send_and_stall

CUT_SLACK_S = 4.5
"""The longest time from a limit to the end of a connection: the server checks every second or so, under load."""

STALLED_SLACK_S = 15.0
"""The same for a client that does not read: the server can send until the buffers of both sockets are full."""

SLOW_S, SLOW_BYTES, SLOW_EVERY_S = 10.0, 256, 0.5
"""The least time in which a client may read less than 1 KiB a second, and what a slow one reads, and how often."""

_ESTABLISHED = b"\x01"
"""The first byte of Linux' `tcp_info` for a connection that is open."""

TRICKLE_S = 0.4
FLOOD_HELD_S = 1.5
FLOOD_AT_ONCE, FLOOD_PAUSE_S = 20, 0.05
PIPELINED = 200
THROTTLE_FAILURES = 10

_WRITER = basic_field(USERS[0], PASSWORD)
_HIDDEN_BODY = f'{{"post": "{HIDDEN_TEXT}"}}'
_HIDDEN = (
    f"POST /post HTTP/1.1\r\nHost: localhost\r\n{_WRITER}\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(_HIDDEN_BODY)}\r\n\r\n{_HIDDEN_BODY}"
)
_POST = f"POST /post HTTP/1.1\r\nHost: localhost\r\n{_WRITER}\r\nContent-Type: application/json\r\n"

SMUGGLING: Mapping[str, str] = {
    "two lengths": f"{_POST}Content-Length: 3\r\nContent-Length: {len(_HIDDEN)}\r\n\r\n{_HIDDEN}",
    "length and chunks": f"{_POST}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{_HIDDEN}",
    "an unknown coding": f"{_POST}Transfer-Encoding: identity\r\n\r\n{_HIDDEN}",
    "a coding before chunked": f"{_POST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{_HIDDEN}",
    "chunked twice": f"{_POST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{_HIDDEN}",
    "chunked with a tail": f"{_POST}Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n{_HIDDEN}",
    "space before the colon": f"{_POST}Content-Length : {len(_HIDDEN)}\r\n\r\n{_HIDDEN}",
    "a folded line": f"{_POST}X: a\r\n Content-Length: 0\r\n\r\n{_HIDDEN}",
    "a bare line feed": f"{_POST}X: a\nContent-Length: 0\r\n\r\n{_HIDDEN}",
    "a length with a sign": f"{_POST}Content-Length: +0\r\n\r\n{_HIDDEN}",
    "a chunk with a sign": f"{_POST}Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n{_HIDDEN}",
    "a chunk that ends early": f"{_POST}Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n{_HIDDEN}",
    "a request as a trailer": f"{_POST}Transfer-Encoding: chunked\r\n\r\n0\r\n{_HIDDEN}",
    "a wrong end of chunks": f"{_POST}Transfer-Encoding: chunked\r\n\r\n0\r\n\n{_HIDDEN}",
    "two hosts": f"GET /post/1 HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n{_HIDDEN}",
    "a NUL": f"GET /post/1 HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n{_HIDDEN}",
    "no version": f"GET /post/1\r\n\r\n{_HIDDEN}",
    "another version": f"GET /post/1 HTTP/2.0\r\nHost: localhost\r\n\r\n{_HIDDEN}",
    "after the last request": f"GET /post/1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n{_HIDDEN}",
}
"""Requests with another one inside, which must not be executed."""

OVERSIZED: Mapping[str, tuple[bytes, int]] = {
    "a long field": (encode_request("GET", "/post/1", [f"X: {'x' * 20_000}"]), 431),
    "a long cookie": (encode_request("GET", "/home", [f"Cookie: session={'x' * 20_000}"]), 431),
    "many fields": (encode_request("GET", "/post/1", [f"X-{number}: x" for number in range(150)]), 431),
    "a long target": (encode_request("GET", f"/post?{'x' * 9000}"), 414),
    "a long body": (f"{_POST}Content-Length: {1024**2}\r\n\r\n".encode(), 413),
    "an endless length": (f"{_POST}Content-Length: {'9' * 400}\r\n\r\n".encode(), 413),
    "long chunks": (
        f"{_POST}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1000\r\n%b\r\n" % (b"x" * 4096) * 5,
        413,
    ),
}
"""Requests that are too large, with the expected status."""

STREAMS, FOREIGN, NAMES, HOSTILE, HEAVY, SLOW, ENDED, SHAKING, *SIGNING_IN = (
    f"127.0.0.{number}" for number in range(2, 18)
)
"""Addresses of attackers; none is a trusted proxy. Good clients have another address, and so limits of their own."""

PAGE = 1000
HEAVY_AT_ONCE, ENDED_AT_ONCE = 5, 5
"""How many heavy pages, and event streams, are requested together."""

STREAMS_HELD_S = 2.0
LEFT_S = 1.0
"""The longest time for the server to handle the end of many connections."""

HOSTILE_BYTES = 2000
"""The size of the text in each field; the log has no more of it."""
HOSTILE_TEXTS = tuple(text for _, text in patterns(3 * HOSTILE_BYTES))
WORST_TEXT = "=" + "?" * (3 * HOSTILE_BYTES - 1)
ENDLESS_NAME = "\xff" * 7800

MISPLACED_SECRETS = (
    ("/x?next=/login?password={}", "X: x"),
    ("/x?next=%2Flogin%3Fpassword%3D{}", "X: x"),
    ("/x?next=%252Flogin%253Fpassword%253D{}", "X: x"),
    ("/post?access_token={}", "X: x"),
    ("/reset/{}", "X: x"),
    ("/home", "Referer: https://user:{}@client.example/"),
    ("/home", "Referer: https://client.example/?next=%2Fx%3Ftoken%3D{}"),
    ("/home", "User-Agent: {}"),
    ("/home", "Cookie: other={}"),
)
"""Request targets and header fields with a secret in an unusual place."""

FOREIGN_HOSTS = ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example")
"""Host names that a foreign site may resolve to 127.0.0.1 (DNS rebinding)."""

_ACCEPTED = b"HTTP/1.1 200 "

# The beginning of a ClientHello from OpenSSL, as a server without TLS receives it.
_TLS_HELLO = bytes.fromhex("16030100c4010000c00303") + os.urandom(32) + b"\x20" + os.urandom(32) + bytes(120)


class BadClients:
    """All kinds of bad clients, each repeated.

    Args:
        port: the port of the server.
        workers: the number of its processes.
        findings: records failed checks.
        tokens: real tokens, as models of wrong ones.
    """

    def __init__(self, port: int, workers: int, findings: Findings, tokens: Tokens) -> None:
        self._port = port
        self._workers = workers
        self._findings = findings
        self._tokens = tokens
        self._bursts = Bursts(port, workers, findings, tokens)
        self._many = asyncio.Lock()
        """Held by each client that opens many connections: two at a time would leave none for good clients."""
        self._guesses = 0
        self._smuggling = cycle(SMUGGLING.items())
        self._oversized = cycle(OVERSIZED.items())
        self._misplaced = cycle(MISPLACED_SECRETS)
        self.kinds: tuple[Kind, ...] = (
            Kind("trickled head", self._trickle_head, 10, 1),
            Kind("trickled body", self._trickle_body, 6, 1),
            Kind("silent", self._say_nothing, 6, 1),
            Kind("half a request", self._send_half, 6, 1),
            Kind("stalled reader", self._read_nothing, 4, 1),
            Kind("slow reader", self._read_slowly, 3, 1),
            Kind("heavy pages, not waited for", self._leave_heavy_pages, 1, 0.25),
            Kind("heavy page with gzip", self._read_heavy_page, 2, 0.25),
            Kind("half-closed", self._half_close, 1, 0.25),
            Kind("ended event streams", self._end_streams, 1, 0.5),
            Kind("many sign-ins", self._sign_in_often, 1, 2),
            Kind("garbage", self._send_garbage, 2, 0.5),
            Kind("smuggling", self._smuggle, 2, 0.3),
            Kind("oversized", self._send_too_much, 2, 0.5),
            Kind("reset within an answer", self._reset, 2, 1),
            Kind("pipelining", self._pipeline, 2, 2),
            Kind("TLS to a plain port", self._greet_in_tls, 1, 1),
            Kind("wrong passwords", self._guess, 1, 2),
            Kind("bad tokens", self._show_bad_tokens, 1, 0.5),
            Kind("come and go", self._come_and_go, 1, 0.5),
            Kind("flood of connections", self._flood, 1, 20),
            Kind("idle event streams", self._listen_idly, 1, 20),
            Kind("burst of wrong passwords", self._burst_of_passwords, 1, 8),
            Kind("burst of refused tokens", self._burst_of_tokens, 1, 20),
            Kind("hostile text in the log", self._send_hostile, 4, 0.25),
            Kind("endless user name", self._name_endlessly, 1, 1),
            Kind("misplaced secret", self._misplace_secret, 1, 1),
            Kind("foreign host", self._ask_foreign_host, 1, 1),
            *(Kind(name, partial(self._shake_hands, load), 1, 1) for name, load in LOADS.items() if Connection.tls),
        )

    async def run(self, kind: "Kind") -> None:
        """Run a kind of bad client repeatedly, until cancelled."""
        await asyncio.sleep(random.uniform(0, min(kind.every_s, 3)))
        while True:
            came_in_a_crowd = self._findings.crowded
            try:
                await kind.act()
            except (BrokenResponseError, BrokenPromiseError, ClosedError) as error:
                by_crowd = isinstance(error, ClosedError) or getattr(error, "crowded", False)
                if not (by_crowd and (came_in_a_crowd or self._findings.crowded)):
                    about = getattr(error, "about", "")
                    promise = f"the server handles bad clients ({kind.name}{about and ', '}{about})"
                    self._findings.broke(promise, str(error))
            else:
                self._findings.bad[kind.name] += 1
            await asyncio.sleep(kind.every_s * random.uniform(0.5, 1.5))

    # --- Slow clients

    async def _trickle(self, connection: Connection, start: bytes, rest: bytes, limit_s: float) -> None:
        """Send slowly until the server closes the connection, which must be soon after a limit."""
        began = time.monotonic()
        connection.send(start)
        sending = asyncio.create_task(self._send_slowly(connection, rest))
        try:
            await self._expect_end(connection, limit_s + CUT_SLACK_S, 408)
        finally:
            sending.cancel()
        if time.monotonic() < began + limit_s - 1:
            took_s = time.monotonic() - began
            raise BrokenPromiseError(f"closed after {took_s:.1f} s, before the limit of {limit_s:.0f} s")

    async def _send_slowly(self, connection: Connection, data: bytes) -> None:
        for place in range(len(data)):
            await asyncio.sleep(TRICKLE_S)
            connection.send(data[place : place + 1])

    async def _expect_end(self, connection: Connection, within_s: float, *statuses: int) -> None:
        """Wait for the server to close the connection, after a response with one of the statuses if there are any."""
        received = await connection.read_to_end(within_s)
        if received is None:
            raise BrokenPromiseError(f"still open after {within_s:.1f} s", crowded=True)
        status = int(received[9:12]) if received.startswith(b"HTTP/1.1 ") and received[9:12].isdigit() else 0
        if status:
            self._findings.note_bad("a bad client", status)
        if statuses and status not in statuses:
            wanted = " or ".join(map(str, statuses))
            raise BrokenPromiseError(f"expected {wanted}, received {received[:60]!r}", crowded=not received)

    async def _trickle_head(self) -> None:
        with await Connection.open(self._port) as connection:
            await self._trickle(connection, b"GET /post/1 HTTP/1.1\r\n", b"X-Slow: " + b"x" * 100, HEADER_S)

    async def _trickle_body(self) -> None:
        with await Connection.open(self._port) as connection:
            await self._trickle(connection, f"{_POST}Content-Length: 1000\r\n\r\n".encode(), b"x" * 100, BODY_S)

    async def _say_nothing(self) -> None:
        with await Connection.open(self._port) as connection:
            await self._expect_end(connection, IDLE_S + CUT_SLACK_S, 0)

    async def _send_half(self) -> None:
        """Send a part of a request, then nothing, or end the sending side of the connection."""
        with await Connection.open(self._port) as connection:
            whole = f"{_POST}Content-Length: 30\r\n\r\n{{"
            connection.send(whole[: random.choice((3, 30, len(_POST), len(whole)))].encode())
            if random.random() < 0.3:
                await connection.finish_sending()
                await self._expect_end(connection, max(HEADER_S, BODY_S) + CUT_SLACK_S)
            else:
                await self._expect_end(connection, max(HEADER_S, BODY_S) + CUT_SLACK_S, 408)

    async def _read_nothing(self) -> None:
        """Request lists and read nothing: the responses exceed the sockets' buffers."""
        lists = (encode_request("GET", "/post") * 8, b"".join(_heavy_page() for _ in range(80)))
        await self._expect_cut(random.choice(lists), 0, IDLE_S)

    async def _read_slowly(self) -> None:
        """Read less than 1 KiB a second of the same."""
        await self._expect_cut(encode_request("GET", "/post") * 8, SLOW_BYTES, SLOW_S)

    async def _expect_cut(self, requests: bytes, read_bytes: int, limit_s: float) -> None:
        """Send requests and read a few bytes at a time, until the server closes the connection, soon after a limit."""
        try:
            slow = await asyncio.to_thread(send_and_stall, SLOW, self._port, requests, 4096)
        except OSError as error:
            raise ClosedError(f"connection not accepted: {error!r}") from None
        with slow as own:
            deadline = time.monotonic() + limit_s + STALLED_SLACK_S
            while own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _ESTABLISHED:
                if time.monotonic() > deadline:
                    raise BrokenPromiseError(f"still open after {limit_s + STALLED_SLACK_S:.1f} s")
                await asyncio.sleep(SLOW_EVERY_S)
                if read_bytes:
                    with suppress(OSError):  # nothing has come, or the connection is closed
                        own.recv(read_bytes)

    # --- Heavy work, and clients that do not wait for it

    async def _leave_heavy_pages(self) -> None:
        opened = [await Connection.open(self._port, source=HEAVY) for _ in range(HEAVY_AT_ONCE)]
        for connection in opened:
            connection.send(_heavy_page("Accept-Encoding: gzip"))
            random.choice((connection.close, connection.reset))()

    async def _read_heavy_page(self) -> None:
        with await Connection.open(self._port, source=HEAVY) as connection:
            connection.send(_heavy_page("Accept-Encoding: gzip"))
            answer = await connection.read_response()
        self._findings.note_bad("a heavy page", answer.status, greedy=True)
        if answer.status == BUSY and answer.field("retry-after"):
            return
        body = gzip.decompress(answer.body) if answer.field("content-encoding") == "gzip" else answer.body
        posts = len(json.loads(body)) if answer.status == 200 else 0
        if posts != PAGE:
            raise BrokenPromiseError(f"answered with {answer.status}, {posts} posts")

    async def _half_close(self) -> None:
        """End the sending side of the connection after a request; the response must come all the same."""
        form = urlencode({"username": random.choice(VISITORS), "password": PASSWORD}).encode()
        requests = {
            "GET /post": (encode_request("GET", "/post"), 200),
            "GET of a heavy page": (_heavy_page(), 200),
            "GET /any": (encode_request("GET", "/any", [basic_field(VISITORS[0], PASSWORD)]), 200),
            "POST /login": (encode_request("POST", "/login", [FORM], form), 302),
        }
        what, (request, wanted) = random.choice(list(requests.items()))
        with await Connection.open(self._port, source=ENDED) as connection:
            connection.send(request)
            await connection.finish_sending()
            answer = await connection.read_response()
        self._findings.note_bad(what, answer.status)
        USED.add(answer.field("set-cookie").partition(";")[0])
        if answer.status != wanted:
            raise BrokenPromiseError(f"answered with {answer.status}", what)

    async def _end_streams(self) -> None:
        """Open event streams and end the sending side of their connections; the server must end them, too."""
        with ExitStack() as stack:
            opened = [
                stack.enter_context(await Connection.open(self._port, source=ENDED)) for _ in range(ENDED_AT_ONCE)
            ]
            for connection in opened:
                connection.send(encode_request("GET", "/post/events"))
            begun = await asyncio.gather(*(connection.read_some(len(_ACCEPTED)) for connection in opened))
            for connection in opened:
                await connection.finish_sending()
            await asyncio.gather(*(self._expect_end(connection, CUT_SLACK_S) for connection in opened))
        if set(begun) != {_ACCEPTED}:
            raise BrokenPromiseError(f"answered with {set(begun)}", crowded=b"" in begun)

    async def _sign_in_often(self) -> None:
        """Sign in from several addresses at a time."""
        form = urlencode({"username": random.choice(VISITORS), "password": PASSWORD}).encode()
        with ExitStack() as stack:
            opened = [stack.enter_context(await Connection.open(self._port, source=source)) for source in SIGNING_IN]
            signing_in = (connection.ask("POST", "/login", [FORM], form) for connection in opened)
            answers = await asyncio.gather(*signing_in)
        for answer in answers:
            self._findings.note_bad("one of many sign-ins", answer.status)
            USED.add(answer.field("set-cookie").partition(";")[0])
        statuses = sorted(answer.status for answer in answers)
        if set(statuses) != {302}:
            raise BrokenPromiseError(f"answered with {statuses}")

    # --- Invalid requests

    async def _send_garbage(self) -> None:
        with await Connection.open(self._port) as connection:
            start = random.choice((b"", b"", b"GET / HTTP/1.1\r\n", b"\r\n", _POST.encode()))
            connection.send(start + os.urandom(random.choice((1, 10, 100, 1000, 30_000))))
            await self._expect_end(connection, IDLE_S + CUT_SLACK_S)

    async def _smuggle(self) -> None:
        name, data = next(self._smuggling)
        with await Connection.open(self._port) as connection:
            connection.send(data.encode("latin-1"))
            received = await connection.read_to_end(max(HEADER_S, BODY_S) + CUT_SLACK_S)
        if received is None:
            raise BrokenPromiseError("the connection stays open", name, crowded=True)
        answers = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
        for status in answers:
            self._findings.note_bad(f"smuggling, {name},", status)
        harmless = {200, 404} if name == "after the last request" else {400, 501, 505}
        if len(answers) != 1 or answers[0] not in harmless:
            raise BrokenPromiseError(f"answered with {answers}", name, crowded=not received)

    async def _send_too_much(self) -> None:
        name, (data, wanted) = next(self._oversized)
        with await Connection.open(self._port) as connection:
            connection.send(data)
            try:
                await self._expect_end(connection, HEADER_S + CUT_SLACK_S, wanted)
            except BrokenPromiseError as error:
                raise BrokenPromiseError(str(error), name, crowded=error.crowded) from None

    async def _greet_in_tls(self) -> None:
        with await Connection.open(self._port) as connection:
            connection.send(_TLS_HELLO)
            await self._expect_end(connection, HEADER_S + CUT_SLACK_S)

    async def _shake_hands(self, load: Handshake) -> None:
        """Do what only a client of TLS can do."""
        try:
            answered = await connect(load, self._port, SHAKING)
        except OSError:
            answered = False
        if load.asks and not answered:
            raise BrokenPromiseError("there was no response", crowded=True)

    # --- Many connections, and connections that end early

    async def _reset(self) -> None:
        with await Connection.open(self._port) as connection:
            connection.send(encode_request("GET", "/post"))
            await connection.read_some(random.choice((1, 100, 10_000, 100_000)))
            connection.reset()

    async def _pipeline(self) -> None:
        with await Connection.open(self._port) as connection:
            connection.send(encode_request("GET", "/post/1") * PIPELINED)
            for _ in range(random.choice((0, PIPELINED // 2, PIPELINED))):
                answer = await connection.read_response()
                self._findings.note_bad("pipelining", answer.status)
                if answer.status not in {200, 404}:
                    raise BrokenPromiseError(f"a pipelined request was answered with {answer.status}")

    async def _come_and_go(self) -> None:
        opened = [await Connection.open(self._port) for _ in range(10)]
        for connection in opened:
            random.choice((connection.close, connection.reset))()
        with await Connection.open(self._port) as connection:
            connection.send(encode_request("GET", "/post/1"))
            await connection.finish_sending()
            await self._expect_end(connection, HEADER_S + CUT_SLACK_S, 200, 404)

    async def _flood(self) -> None:
        """Open more connections than the limit: some are refused at once, the others stay open."""
        async with self._taking_many():
            began = time.monotonic()
            self._findings.begin_crowd()
            try:
                stayed = await self._open_too_many(FLOOD_HELD_S)
            finally:
                self._findings.end_crowd()
        # The first ones have reached the idle timeout if it took long to open the last.
        least = CONNECTIONS / 2 if time.monotonic() < began + LEFT_S + IDLE_S else 0
        if not least <= stayed <= CONNECTIONS * self._workers:
            example = f"{stayed} of {self._flood_size} stayed open, with a limit of {CONNECTIONS} for each worker"
            self._findings.broke("the limit on connections holds", example)

    async def _listen_idly(self) -> None:
        """Open many event streams from one address; all connections of good clients must succeed meanwhile."""
        async with self._taking_many():
            stayed = await self._open_too_many(STREAMS_HELD_S, encode_request("GET", "/post/events"), STREAMS)
        most = CONNECTIONS // 2 * self._workers
        if not 0 < stayed <= most:
            raise BrokenPromiseError(f"{stayed} streams stayed open, with a limit of {most} connections for an address")

    @asynccontextmanager
    async def _taking_many(self) -> AsyncIterator[None]:
        async with self._many:
            yield
            await asyncio.sleep(LEFT_S)

    @property
    def _flood_size(self) -> int:
        return (CONNECTIONS + 50) * self._workers

    async def _open_too_many(self, held_s: float, request: bytes = b"", source: str = "") -> int:
        """Open more connections than the limit and send a request on each; return how many stay open."""
        opened: list[Connection] = []
        try:
            for _ in range(0, self._flood_size, FLOOD_AT_ONCE):
                opening = (Connection.open(self._port, source=source) for _ in range(FLOOD_AT_ONCE))
                tried = await asyncio.gather(*opening, return_exceptions=True)
                # A refused one fails here if the server was quick, else when it is read.
                new = [connection for connection in tried if isinstance(connection, Connection)]
                for connection in new:
                    connection.send(request)
                opened += new
                # A full backlog makes all new connections wait for a second.
                await asyncio.sleep(FLOOD_PAUSE_S)
            endings = await asyncio.gather(*(connection.read_to_end(held_s) for connection in opened))
        finally:
            for connection in opened:
                connection.close()
        return sum(ending is None for ending in endings)

    # --- Guesses

    async def _burst_of_passwords(self) -> None:
        async with self._taking_many():
            await self._bursts.guess()

    async def _burst_of_tokens(self) -> None:
        async with self._taking_many():
            await self._bursts.show_tokens()

    async def _guess(self) -> None:
        """Guess passwords until the throttle refuses, from an address of its own."""
        self._guesses += 1
        address, user = elsewhere(), f"unknown{self._guesses}"
        with await Connection.open(self._port) as connection:
            statuses = []
            for number in range(THROTTLE_FAILURES + 2):
                wrong = basic_field(user, secrets.token_hex(4))
                if number % 3 == 2:
                    wrong = digest_field((user, "wrong"), "GET", "/any", await self._nonce(connection), 1)[0]
                answer = await connection.ask("GET", "/any", [address, wrong])
                self._findings.note_bad("a wrong password", answer.status)
                statuses.append(answer.status)
        if statuses != [401] * THROTTLE_FAILURES + [429] * 2:
            raise BrokenPromiseError(f"{user}, {address}, was answered with {statuses}")

    async def _nonce(self, connection: Connection) -> str:
        answer = await connection.ask("GET", "/digest")
        self._findings.note_bad("a page without credentials", answer.status)
        return answer.nonce

    async def _show_bad_tokens(self) -> None:
        issuer, good = self._tokens.issuer, self._tokens.any()
        key = issuer.keys[1]
        bad = {
            "of an unknown key": issuer.token(key, {"kid": secrets.token_hex(8)}),
            "that has expired": issuer.token(key, exp=int(time.time()) - 3600),
            "for another audience": issuer.token(key, aud="https://other.example"),
            "of another issuer": issuer.token(key, iss="https://other.example"),
            "signed by another key": issuer.token(key, {"kid": issuer.keys[2].kid}),
            "cut short": good[:-10],
            "unsigned": f"{good.rpartition('.')[0]}.",
            "that is none": secrets.token_urlsafe(100),
        }
        address = elsewhere()
        with await Connection.open(self._port) as connection:
            for what, token in bad.items():
                answer = await connection.ask("GET", "/bearer", [address, bearer_field(token)])
                self._findings.note_bad("a bad token", answer.status)
                if answer.status != 401:
                    raise BrokenPromiseError(f"answered with {answer.status}", f"a token {what}")

    # --- Attacks on the log, and foreign host names

    async def _ask(self, what: str, request: bytes, source: str = "") -> int:
        """Send a request over a connection of its own; return the status of the response."""
        with await Connection.open(self._port, source=source) as connection:
            connection.send(request)
            answer = await connection.read_response()
        self._findings.note_bad(what, answer.status)
        return answer.status

    async def _send_hostile(self) -> None:
        text = random.choice(HOSTILE_TEXTS)
        everywhere, somewhere = LOGGED["all that is logged"], random.choice(list(LOGGED.values()))
        requests = (everywhere(WORST_TEXT), everywhere(text), somewhere(text[:HOSTILE_BYTES]))
        await self._ask("hostile text", random.choice(requests), HOSTILE)

    async def _name_endlessly(self) -> None:
        for uri in ("/digest", "/elsewhere"):
            field = digest_field((ENDLESS_NAME, "wrong"), "GET", uri, "0", 1)[0]
            status = await self._ask("an endless user name", encode_request("GET", "/digest", [field]), NAMES)
            if status not in {400, 401}:
                raise BrokenPromiseError(f"answered with {status}")

    async def _misplace_secret(self) -> None:
        secret = USED.add(secrets.token_urlsafe(27))
        target, field = next(self._misplaced)
        await self._ask("a misplaced secret", encode_request("GET", target.format(secret), [field.format(secret)]))
        as_user = basic_field(secret, "x"), elsewhere()
        await self._ask("a password as user name", encode_request("GET", "/any", as_user))
        as_digest_user = digest_field((secret, "x"), "GET", "/elsewhere", "0", 1)[0]
        await self._ask("a password as user name", encode_request("GET", "/any", [as_digest_user]))

    async def _ask_foreign_host(self) -> None:
        host = f"Host: {random.choice(FOREIGN_HOSTS)}"
        fields = [host, _WRITER, "Content-Type: application/json"]
        requests = {
            "GET /post": encode_request("GET", "/post", [host]),
            "OPTIONS /post": encode_request("OPTIONS", "/post", [host]),
            "GET /home": encode_request("GET", "/home", [host]),
            "POST /post": encode_request("POST", "/post", fields, _HIDDEN_BODY.encode()),
        }
        for what, request in requests.items():
            status = await self._ask(f"{what} for another host", request, FOREIGN)
            if status != 421:
                raise BrokenPromiseError(f"answered with {status}", what)


def _heavy_page(*fields: str) -> bytes:
    """Return a request for a complete page, mostly a different one each time."""
    # The number of posts moves; so many are always there.
    return encode_request("GET", f"/post?limit={PAGE}&after={random.randrange(LIST_MOST // 2)}", fields)


class Kind(Struct, frozen=True):
    """A kind of bad client: its name, its action, how many there are at a time, and the mean pause between actions."""

    name: str
    act: Callable[[], Awaitable[None]]
    count: int
    every_s: float

"""Clients of the event stream, which reconnect, and must receive each event exactly once."""

import asyncio
import random
from contextlib import suppress

from bench.soaking.findings import Findings
from bench.soaking.wire import ANSWER_MAX_S, Connection

LISTENERS = 20
LISTENS_S = (2, 30)
"""The least and greatest duration of a stream before the client reconnects."""

QUIET_MAX_S = 20.0
"""The longest time without data in a stream; the server sends a comment each 15 s."""

_AGAIN_AFTER_S = 0.5


class Listener:
    """A client of the event stream.

    Args:
        port: the port of the server.
        findings: records failed checks.
    """

    def __init__(self, port: int, findings: Findings) -> None:
        self._port = port
        self._findings = findings
        self._heard = -1

    async def run(self) -> None:
        """Listen, and reconnect, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=Connection.tls)
            except OSError:  # refused because of a flood of connections
                await asyncio.sleep(_AGAIN_AFTER_S)
                continue
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    await self._listen(reader, writer)
            finally:
                writer.close()
            await asyncio.sleep(random.uniform(0, _AGAIN_AFTER_S))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        field = f"Last-Event-ID: {self._heard}\r\n" if self._heard >= 0 else ""
        # The response to HTTP/1.0 is not chunked.
        writer.write(f"GET /post/events HTTP/1.0\r\nHost: 127.0.0.1\r\n{field}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            self._findings.broke("event streams are accepted", head.decode("latin-1").partition("\r\n")[0])
            return
        self._findings.heard["streams"] += 1
        ends = asyncio.get_running_loop().time() + random.uniform(*LISTENS_S)
        while asyncio.get_running_loop().time() < ends:
            try:
                async with asyncio.timeout(QUIET_MAX_S):
                    block = await reader.readuntil(b"\n\n")
            except TimeoutError:
                self._findings.broke("event streams have keep-alive comments", f"no data for {QUIET_MAX_S} s")
                return
            self._note(dict(line.partition(": ")[::2] for line in block.decode().splitlines()))

    def _note(self, fields: dict[str, str]) -> None:
        number = int(fields.get("id", self._heard))
        if fields.get("event", "position") != "position":
            self._findings.heard["events"] += 1
            if fields["event"] == "reset" or number != self._heard + 1:
                example = f"{fields['event']} {number} came after {self._heard}"
                self._findings.broke("each event is received exactly once", example)
        self._heard = number

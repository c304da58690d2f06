"""Clients of the event stream, which reconnect after each interruption, and must receive each change exactly once."""

import asyncio
import json
from collections import Counter
from contextlib import suppress

from bench.soaking.findings import Findings
from bench.soaking.wire import ANSWER_MAX_S

LISTENERS = 4
AGAIN_AFTER_S = 0.05
QUIET_MAX_S = 20.0
"""The longest time without data in a stream; the server sends a comment each 15 s."""


class Listener:
    """A client of the event stream.

    Args:
        port: the port of the server.
        findings: records failed checks.

    Attributes:
        heard: the id of the last event, -1 before the first stream.
        texts: the texts of all posts in events.
        ends: the number of streams that ended "in order", with the last chunk, and of those that were "cut".
    """

    def __init__(self, port: int, findings: Findings) -> None:
        self._port = port
        self._findings = findings
        self.heard = -1
        self.texts: set[str] = set()
        self.ends: Counter[str] = Counter()

    async def run(self) -> None:
        """Listen, and reconnect, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(AGAIN_AFTER_S)
                continue
            try:
                await self._listen(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass  # before a stream began
            finally:
                writer.close()
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        field = f"Last-Event-ID: {self.heard}\r\n" if self.heard >= 0 else ""
        writer.write(f"GET /post/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{field}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            self._findings.broke("event streams are accepted", head.decode("latin-1").partition("\r\n")[0])
            return
        self._findings.heard["streams"] += 1
        try:
            await self._hear(reader)
        except (OSError, asyncio.IncompleteReadError):
            self.ends["cut"] += 1
        else:
            self.ends["in order"] += 1

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        """Read the events of a stream, up to its last chunk."""
        received = b""
        async with asyncio.timeout(None) as quiet:
            while True:
                quiet.reschedule(asyncio.get_running_loop().time() + QUIET_MAX_S)
                size = int(await reader.readuntil(b"\r\n"), 16)
                received += await reader.readexactly(size)
                await reader.readexactly(2)
                if size == 0:
                    return
                *blocks, received = received.split(b"\n\n")
                for block in blocks:
                    self._note(dict(line.partition(": ")[::2] for line in block.decode().splitlines()))

    def _note(self, fields: dict[str, str]) -> None:
        number = int(fields.get("id", self.heard))
        if fields.get("event", "position") != "position":
            self._findings.heard["events"] += 1
            self.texts.add(json.loads(fields["data"]).get("post", ""))
            if fields["event"] == "reset" or number != self.heard + 1:
                example = f"{fields['event']} {number} came after {self.heard}"
                self._findings.broke("each event is received exactly once", example)
        self.heard = number


async def wait_until_level(listeners: list[Listener], within_s: float) -> bool:
    """Wait until all have the same last event, and no other one for a moment; return whether that was so in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            before = -1
            while True:
                heard = {listener.heard for listener in listeners}
                if heard == {before}:
                    return True
                before = max(heard)
                await asyncio.sleep(0.3)
    return False

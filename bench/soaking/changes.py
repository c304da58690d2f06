"""Changes during the load: reloads, replacements of the user file, rotations of the issuer's keys."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable

from bench.soaking.findings import Findings
from bench.soaking.logins import KEYS_FRESH_S, Basic, Tokens, expect_signed_out, sign_in
from bench.soaking.server import GUEST, PASSWORD, Server
from bench.soaking.wire import BrokenResponseError, ClosedError, Connection

TAKEN_UP_S = 2.5
"""The time until a changed user file must be in force: two seconds (reference: User file), and a margin."""

AGAIN_AFTER_S = 5.0


class Changes:
    """Changes that must not affect good clients.

    Args:
        server: the server.
        findings: records failed checks.
        tokens: the tokens, whose keys are rotated.
    """

    def __init__(self, server: Server, findings: Findings, tokens: Tokens) -> None:
        self._server = server
        self._findings = findings
        self._tokens = tokens
        self._password = PASSWORD

    async def run(self, every_s: float) -> None:
        """Make both changes in each period of `every_s` seconds, until cancelled."""
        rotating = asyncio.create_task(self._rotate())
        try:
            while True:
                for change in (self._hang_up, self._replace_users):
                    await asyncio.sleep(every_s / 2)
                    await self._try(change)
        finally:
            rotating.cancel()

    async def _rotate(self) -> None:
        # As issuers do: a key is published for longer than it may be cached before it signs tokens.
        while True:
            await asyncio.sleep(KEYS_FRESH_S * 1.25)
            self._tokens.rotate()
            self._findings.changes["issuer's keys rotated"] += 1

    async def _try(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change; repeat it if a flood of connections prevented the check."""
        while True:
            try:
                await change()
            except (BrokenResponseError, ClosedError) as error:
                if not self._findings.crowded:
                    self._findings.broke("good clients keep their connections", str(error))
                    return
                await asyncio.sleep(AGAIN_AFTER_S)
            else:
                return

    async def _hang_up(self) -> None:
        self._server.hang_up()
        self._findings.changes["SIGHUP"] += 1

    async def _replace_users(self) -> None:
        """Change the guest's password, and check that the old one and its sessions are no longer valid."""
        with await Connection.open(self._server.port) as connection:
            cookie = await sign_in(connection, GUEST, self._password, self._findings)
            old, self._password = self._password, secrets.token_urlsafe(12)
            await asyncio.to_thread(self._server.replace_users, self._password)
            self._findings.changes["user file replaced"] += 1
            await asyncio.sleep(TAKEN_UP_S)
            # A new address each time, since the throttle counts the wrong password against it.
            from_elsewhere = [f"X-Forwarded-For: 198.51.100.{random.randrange(256)}"]
            for password, status in ((self._password, 200), (old, 401)):
                answer = await Basic(GUEST, password).ask(connection, "GET", "/basic", from_elsewhere)
                self._findings.note_good("page", answer)
                self._findings.expect("GET /basic after the user file was replaced", answer, status)
            await expect_signed_out(connection, cookie, self._findings)

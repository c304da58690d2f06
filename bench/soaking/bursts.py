"""Bursts: requests that are complete at the same moment, so that each is checked before another one has failed.

The requests of a burst are for one account, and from one address of its own (`X-Forwarded-For`).
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from urllib.parse import urlencode

from bench.soaking.findings import BrokenPromiseError, Findings
from bench.soaking.logins import FORM, Tokens, basic_field, bearer_field, digest_field, elsewhere
from bench.soaking.secrets_used import USED
from bench.soaking.server import PASSWORD, TARGETS
from bench.soaking.wire import Connection, Response, encode_request

FAILURES, ADDRESS_FAILURES = 10, 50
"""The defaults of `[throttle]`."""

PASSWORDS, TOKENS = 150, 100
"""The number of requests in a burst; with the other clients they stay below `[limits] connections`."""

HELD_S = 0.3
"""The delay of the last bytes, in which the server reads all others."""


async def release(port: int, requests: Sequence[bytes]) -> list[Response]:
    """Send requests over a connection each, the last bytes together; return the responses."""
    with ExitStack() as stack:
        opened = [stack.enter_context(await Connection.open(port)) for _ in requests]
        for connection, request in zip(opened, requests, strict=True):
            connection.send(request[:-1])
        await asyncio.sleep(HELD_S)
        for connection, request in zip(opened, requests, strict=True):
            connection.send(request[-1:])
        return await asyncio.gather(*(connection.read_response() for connection in opened))


class Bursts:
    """Wrong passwords and refused tokens.

    Args:
        port: the port of the server.
        workers: the number of its processes.
        findings: counts the responses.
        tokens: tokens of the issuer.
    """

    def __init__(self, port: int, workers: int, findings: Findings, tokens: Tokens) -> None:
        self._port = port
        self._workers = workers
        self._findings = findings
        self._tokens = tokens
        self._turns = cycle([(scheme, account) for account in TARGETS for scheme in ("Basic", "Digest", "form")])

    async def guess(self) -> None:
        """Guess the password of an account whose owner has just signed in.

        Raises:
            BrokenPromiseError: more passwords were verified than the throttle allows, or the right one after them was.
        """
        scheme, account = next(self._turns)
        address, owners_address = elsewhere(), elsewhere()
        right, wrong = PASSWORD, [secrets.token_urlsafe(12) for _ in range(PASSWORDS)]
        with await Connection.open(self._port) as connection:
            field = basic_field(account, right)
            owner = await connection.ask("GET", "/basic", [owners_address, field])
            self._findings.expect(f"GET /basic of {account}", owner, 200)
            nonce = (await connection.ask("GET", "/digest")).nonce
        requests = [
            _attempt(scheme, address, (account, password), nonce, number)
            for number, password in enumerate([*wrong, right], 1)
        ]
        # The right one is sent after all others are answered: a busy server reads connections in any order.
        verified = self._check(f"wrong passwords, {scheme}", await release(self._port, requests[:PASSWORDS]), FAILURES)
        if verified >= FAILURES:
            self._check(f"the right password after them, {scheme}", await release(self._port, requests[PASSWORDS:]), 0)

    async def show_tokens(self) -> None:
        """Send opaque tokens that are unknown to the issuer.

        Raises:
            BrokenPromiseError: more tokens were verified than the throttle allows.
        """
        address = elsewhere()
        fields = [bearer_field(secrets.token_urlsafe(30)) for _ in range(TOKENS)]
        requests = [encode_request("GET", "/bearer", [address, field]) for field in fields]
        self._check("opaque tokens", await release(self._port, requests), ADDRESS_FAILURES)
        with await Connection.open(self._port) as connection:
            answer = await connection.ask("GET", "/bearer", [elsewhere(), bearer_field(self._tokens.opaque())])
            self._findings.expect("GET /bearer with an opaque token", answer, 200)

    def _check(self, what: str, answers: Sequence[Response], most: int) -> int:
        """Return how many of the responses are 401.

        Raises:
            BrokenPromiseError: they are more than `most` and one for each further worker, or others are not 429.
        """
        for answer in answers:
            self._findings.note_bad(what, answer.status)
        statuses = Counter(answer.status for answer in answers)
        allowed = most + self._workers - 1 if most else 0
        if statuses[401] > allowed or statuses[401] + statuses[429] < len(answers):
            raise BrokenPromiseError(
                f"expected at most {allowed} of 401 and all others 429, got {dict(statuses)}", what
            )
        return statuses[401]


def _attempt(scheme: str, address: str, who: tuple[str, str], nonce: str, number: int) -> bytes:
    user, password = who
    if scheme == "form":
        form = urlencode({"username": user, "password": USED.add(password)}).encode()
        return encode_request("POST", "/login", [FORM, address], form)
    if scheme == "Digest":
        field = digest_field(who, "GET", "/digest", nonce, number)[0]
        return encode_request("GET", "/digest", [address, field])
    return encode_request("GET", "/basic", [address, basic_field(user, password)])

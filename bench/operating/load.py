"""The load: each request is sent once, when it is due, and its outcome is recorded.

Requests are due at random moments (`bench.open_loop`), whatever the outcomes of earlier ones are. They are sent over
kept connections, which are renewed now and then, and over new ones, some of them with TLS. A latency counts from the
moment at which the request was due.
"""

import asyncio
import json
import random
import re
import select
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from bench.open_loop import random_moments
from bench.operating.ledger import Ledger
from bench.operating.server import OperatedServer
from bench.operating.tally import Outcome, Tally
from bench.soaking.findings import Findings
from bench.soaking.logins import FORM, Tokens, basic_field, bearer_field, digest_field
from bench.soaking.server import PASSWORD, USERS
from bench.soaking.wire import BrokenResponseError, ClosedError, Connection, NoConnectionError, Response, encode_request

NEW_SHARE = 0.2
"""The share of requests with a connection of their own."""
TLS_SHARE = 0.2
"""The share of connections with TLS, if the server has TLS."""
KEPT = 32
"""The least number of kept connections."""
KEPT_FOR = (20, 200)
"""The least and greatest number of requests on a kept connection."""
CONNECTIONS_MAX = 3000
"""The greatest number of connections that wait in the backlog during a restart; further requests wait here."""

FOREVER_S = 1e6
_JSON = "Content-Type: application/json"
_END = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Link(Connection):
    """A connection that can detect that the server has closed it without a read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.left = random.randint(*KEPT_FOR)
        """The number of further requests before it is closed."""
        self.local_port: int = writer.get_extra_info("sockname")[1]
        self.is_tls = writer.get_extra_info("ssl_object") is not None
        self._poll = select.poll()
        self._poll.register(writer.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)

    @property
    def fingerprint(self) -> bytes:
        """The server's certificate."""
        certificate: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return certificate

    async def has_ended(self) -> bool:
        """Return whether the server has closed it; there must be no request in progress."""
        if self.is_tls:  # the closing alert is encrypted, and unread data may be a session ticket
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return self.closed or self._reader.at_eof() or self.ends_now()

    def ends_now(self) -> bool:
        """Return whether the kernel has received the end of the connection; over TLS, whether it has unread data."""
        if self._writer.is_closing():
            return True
        events = sum(event for _, event in self._poll.poll(0))
        return bool(events & (_END | (select.POLLIN if self.is_tls else 0)))


class Request(Struct, frozen=True):
    """A request, and the expected statuses."""

    method: str
    target: str
    right: tuple[int, ...]
    fields: Sequence[str] = ()
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


class Load:
    """Users of the server.

    Args:
        server: the server.
        ledger: the record of posts.
        tokens: access tokens that the server accepts.
        findings: records failed checks.
        rate: requests per second.
    """

    def __init__(
        self, server: OperatedServer, ledger: Ledger, tokens: Tokens, findings: Findings, *, rate: float
    ) -> None:
        self._server = server
        self._ledger = ledger
        self._tokens = tokens
        self._findings = findings
        self._rate = rate
        self.tally = Tally()
        self.doomed_ports: set[int] = set()
        """The client ports of connections to a killed worker."""
        self._free: list[Link] = []
        self._kept = 0
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._tls = ssl.create_default_context() if server.tls_port else None
        if self._tls is not None:
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._cookies: list[str] = []
        self._digests = [_DigestUser(user, self) for user in USERS]
        does: dict[Callable[[float], Coroutine[Any, Any, None]], int] = {
            self._read_list: 30,
            self._read_one: 35,
            self._visit: 15,
            self._add: 12,
            self._replace: 8,
        }
        self._does, self._weights = list(does), list(does.values())

    async def sign_in(self) -> None:
        """Sign in by form, as each user."""
        for user in USERS:
            form = urlencode({"username": user, "password": PASSWORD}).encode()
            answer = await self.ask(Request("POST", "/login", (302,), [FORM], form))
            if answer is not None:
                self._cookies.append(answer.field("set-cookie").partition(";")[0])

    async def run(self, ending: asyncio.Event) -> None:
        """Send requests until `ending` is set; return when each has an outcome and all connections are closed."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as requests:
            for moment in random_moments(self._rate, FOREVER_S):
                due = start + moment
                await asyncio.sleep(max(0.0, due - loop.time()))
                if ending.is_set():
                    break
                self.tally.late_ms.append((loop.time() - due) * 1000)
                (do,) = random.choices(self._does, self._weights)
                requests.create_task(do(due))
        for link in self._free:
            link.close()
        self._free.clear()

    # --- Requests

    async def _read_list(self, due_s: float) -> None:
        await self.ask(Request("GET", "/post?limit=20", (200,)), due_s)

    async def _read_one(self, due_s: float) -> None:
        post_id = random.choice(list(self._ledger.texts))
        answer = await self.ask(Request("GET", f"/post/{post_id}", (200,)), due_s)
        if answer is not None and json.loads(answer.body)["id"] != post_id:
            self._findings.broke("a response is that of its request", f"GET /post/{post_id}: {answer.body!r}")

    async def _visit(self, due_s: float) -> None:
        answer = await self._ask_as_somebody(Request("GET", "/any", (200,)), due_s)
        if answer is not None and not answer.body.startswith(b"Success: "):
            self._findings.broke("a page has the name of its user", repr(answer.body))

    async def _add(self, due_s: float) -> None:
        text = self._ledger.new_text()
        fields = [_JSON, f"Idempotency-Key: {random.getrandbits(64):x}"]
        self._ledger.doubt_add(text)
        answer = await self._ask_as_somebody(Request("POST", "/post", (201,), fields, _body_of(text)), due_s)
        if answer is not None:
            problem = self._ledger.add(int(answer.field("location").removeprefix("/post/")), text)
            if problem:
                self._findings.broke("no post id is assigned twice", problem)

    async def _replace(self, due_s: float) -> None:
        if not self._ledger.replaceable:  # all are being replaced
            await self._read_one(due_s)
            return
        post_id, text = self._ledger.replaceable.popleft(), self._ledger.new_text()
        self._ledger.doubt_replace(post_id, text)
        answer = await self._ask_as_somebody(Request("PUT", f"/post/{post_id}", (200,), [_JSON], _body_of(text)), due_s)
        if answer is not None:
            self._ledger.replace(post_id, text)
        self._ledger.replaceable.append(post_id)

    async def _ask_as_somebody(self, request: Request, due_s: float) -> Response | None:
        way = random.randrange(4)
        if way == 0:
            return await random.choice(self._digests).ask(request, due_s)
        if way == 1:
            field = basic_field(random.choice(USERS), PASSWORD)
        elif way == 2:
            field = f"Cookie: {random.choice(self._cookies)}"
        else:
            field = bearer_field(self._tokens.any())
        return await self.ask(_with(request, field), due_s)

    # --- Connections

    async def ask(self, request: Request, due_s: float | None = None, *, alone: bool = False) -> Response | None:
        """Make a request, once; return the response if it is an expected one.

        Args:
            request: the request.
            due_s: when it was due, by the event loop's clock; None if its latency does not count.
            alone: whether to use a connection of its own.
        """
        async with self._room:
            alone = alone or random.random() < NEW_SHARE
            close = alone and random.random() < 0.5
            try:
                link = await self._take(alone=alone)
            except NoConnectionError as error:
                # A reset while it connects: the worker that accepted it was killed before its ports were listed.
                doomed = bool(self.doomed_ports) and isinstance(error.__cause__, ConnectionResetError)
                self.tally.note(Outcome.DOOMED if doomed else Outcome.REFUSED, f"{request}: {error}")
                return None
            data = encode_request(request.method, request.target, request.fields, request.body, close=close)
            outcome, answer = await self._send(link, request, data)
            if answer is not None and due_s is not None:
                self.tally.note_latency(due_s, asyncio.get_running_loop().time())
            link.left -= 1
            if alone:
                link.close()
            elif link.closed or link.left <= 0 or answer is None:
                self._give_up(link)
            else:
                self._free.append(link)
        return answer if outcome is Outcome.ANSWERED else None

    async def ask_over(self, link: Link, request: Request) -> Response | None:
        """Make a request over a connection; return the response if it is an expected one."""
        data = encode_request(request.method, request.target, request.fields, request.body)
        outcome, answer = await self._send(link, request, data)
        return answer if outcome is Outcome.ANSWERED else None

    async def _send(self, link: Link, request: Request, data: bytes) -> tuple[Outcome, Response | None]:
        answer, outcome, what = None, Outcome.ANSWERED, f"{request}{' over TLS' if link.is_tls else ''}"
        link.send(data)
        crossed = link.answers > 0 and link.ends_now()
        try:
            answer = await link.read_response(head=request.method == "HEAD")
        except ClosedError as error:
            outcome = Outcome.LOST_LATER if link.answers else Outcome.LOST_FIRST
            if link.local_port in self.doomed_ports:
                outcome = Outcome.DOOMED
            elif crossed:
                outcome = Outcome.CROSSED
            what += f": {error}"
        except BrokenResponseError as error:
            outcome = Outcome.DOOMED if link.local_port in self.doomed_ports else Outcome.BROKEN
            what += f": {error}"
        else:
            self.tally.note_answer(request.method, answer.status)
            if answer.status not in request.right:
                outcome = Outcome.UNAVAILABLE if answer.status == 503 else Outcome.WRONG
                what += f": {answer.status} {answer.body[:120]!r}"
        self.tally.note(outcome, what)
        return outcome, answer

    async def _take(self, *, alone: bool) -> Link:
        """Return a connection that the server has not closed."""
        while self._free and self._kept >= KEPT and not alone:
            link = self._free.pop(random.randrange(len(self._free)))
            if not await link.has_ended():
                return link
            self.tally.closed_idle += 1
            self._give_up(link)
        tls = self._tls is not None and random.random() < TLS_SHARE
        link = await (self.open_tls() if tls else Link.open(self._server.port))
        if not alone:
            self._kept += 1
        return link

    def _give_up(self, link: Link) -> None:
        link.close()
        self._kept -= 1

    async def open_tls(self) -> Link:
        return await Link.open(self._server.tls_port, self._tls)


class _DigestUser:
    """A user of Digest (RFC 7616) who counts the uses of a nonce, and uses a new one after a 401."""

    def __init__(self, user: str, load: Load) -> None:
        self._user = user
        self._load = load
        self._nonce = ""
        self._count = 0

    async def ask(self, request: Request, due_s: float) -> Response | None:
        right = request.right
        answer: Response | None = None
        if self._nonce:
            answer = await self._ask(request, due_s, right=(*right, 401))
        else:
            bare = Request(request.method, request.target, (401,), request.fields, request.body)
            answer = await self._load.ask(bare, due_s)
        if answer is None or answer.status != 401:
            return answer
        found = re.search(r'nonce="([^"]+)"', " ".join(answer.fields.get("www-authenticate", [])))
        if found:
            self._nonce, self._count = found[1], 0
        return await self._ask(request, due_s, right=right)

    async def _ask(self, request: Request, due_s: float, *, right: tuple[int, ...]) -> Response | None:
        self._count += 1
        who = (self._user, PASSWORD)
        field, _ = digest_field(who, request.method, request.target, self._nonce, self._count)
        sent = Request(request.method, request.target, right, [*request.fields, field], request.body)
        return await self._load.ask(sent, due_s)


def _with(request: Request, field: str) -> Request:
    return Request(request.method, request.target, request.right, [*request.fields, field], request.body)


def _body_of(text: str) -> bytes:
    return json.dumps({"post": text}).encode()

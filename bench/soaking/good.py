"""Good clients: they read, write and log in, and check each response. Other clients must not affect them."""

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.soaking.findings import Findings
from bench.soaking.ledger import Ledger
from bench.soaking.logins import Basic, Bearer, Digest, Login, Session, Tokens
from bench.soaking.server import BODY_MAX_BYTES, USERS
from bench.soaking.wire import BrokenResponseError, ClosedError, Connection, Response

CLIENTS = 24
REQUESTS_A_CONNECTION = (50, 400)
"""The least and greatest number of a good client's requests on a connection."""

AGAIN_AFTER_S = 0.3
"""The pause of a good client that was refused during a flood of connections."""

LIST_MOST = 10_000
"""The longest list with one ETag. The number of posts moves above and below it."""
SWING = 60

_JSON = "Content-Type: application/json"
_BAD_BODIES = (
    (b"{", [_JSON], 400),
    (b"\xff\xfe", [_JSON], 400),
    (b'{"post": ""}', [_JSON], 422),
    (b'{"post": "a", "post": "b"}', [_JSON], 400),
    (b'{"post": "%b"}' % (b"x" * 141), [_JSON], 422),
    (b'{"post": "x"}', ["Content-Type: text/plain"], 415),
    (b'{"post": "%b"}' % (b"x" * BODY_MAX_BYTES), [_JSON], 413),
)


class GoodClient:
    """A client with one connection and one request at a time, which logs in with each of four schemes.

    Args:
        number: the number of this client.
        port: the port of the server.
        ledger: the record of posts.
        findings: records latencies and failed checks.
        tokens: the source of access tokens.
    """

    def __init__(self, number: int, port: int, ledger: Ledger, findings: Findings, tokens: Tokens) -> None:
        user = USERS[number % len(USERS)]
        self._port = port
        self._ledger = ledger
        self._findings = findings
        self._logins: dict[str, Login] = {
            "/basic": Basic(user),
            "/digest": Digest(user, findings),
            "/bearer": Bearer(tokens),
            "/home": Session(user, findings),
        }
        self._etags: dict[str, str] = {}
        self._connection: Connection | None = None
        self._left = 0
        does: dict[Callable[[Connection], Awaitable[None]], int] = {
            self._read_page: 30,
            self._read_one: 30,
            self._read_again: 10,
            self._visit: 14,
            self._write: 12,
            self._ask_oddly: 3,
            self._read_whole: 1,
        }
        self._does, self._weights = list(does), list(does.values())

    async def run(self, every_s: float, stopping: asyncio.Event) -> None:
        """Make a request, or a few that belong together, each `every_s` seconds on average, until `stopping` is set."""
        await asyncio.sleep(random.uniform(0, every_s))
        due = time.monotonic()
        while not stopping.is_set():
            await self._do_one()
            due = max(due + every_s * random.uniform(0.5, 1.5), time.monotonic() - every_s)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        if self._connection is not None:
            self._connection.close()

    async def _do_one(self) -> None:
        connection = self._connection
        try:
            if connection is None or connection.closed or self._left <= 0:
                connection = await self._connect()
            self._left -= 1
            (do,) = random.choices(self._does, self._weights)
            await do(connection)
        except ClosedError as error:
            # A write is never the first request of a connection, so a refused connection loses no write.
            if not self._findings.crowded or self._connection is not None:
                self._findings.broke("good clients keep their connections", str(error))
            self._connection = None
            await asyncio.sleep(AGAIN_AFTER_S)
        except BrokenResponseError as error:
            self._findings.broke("good clients get complete responses", str(error))
            self._connection = None

    async def _connect(self) -> Connection:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        connection = await Connection.open(self._port)
        try:
            await self._read_one(connection)
        except ClosedError:
            connection.close()
            raise
        self._connection = connection
        self._left = random.randint(*REQUESTS_A_CONNECTION)
        return connection

    # --- Reads

    async def _read_page(self, connection: Connection) -> None:
        after, limit = self._ledger.any_id(), random.choice((1, 20, 20, 100))
        target = f"/post?limit={limit}&after={after}"
        asked_at = time.monotonic()
        answer = await connection.ask("GET", target)
        self._findings.note_good("page of posts", answer)
        if self._findings.expect(f"GET {target}", answer, 200):
            self._etags[target] = answer.field("etag")
            posts = self._check_list(target, answer, after, asked_at)
            cut_short = len(posts) < limit and self._is_more(posts)
            if len(posts) > limit or cut_short or (self._is_more(posts) and not answer.field("link")):
                self._findings.broke("pages have the requested length", f"GET {target}: {len(posts)} posts")

    def _is_more(self, posts: list[Any]) -> bool:
        # At the end of the list other clients add and delete posts: there either is right.
        return bool(posts) and posts[-1]["id"] < self._ledger.newest - SWING

    async def _read_whole(self, connection: Connection) -> None:
        asked_at = time.monotonic()
        answer = await connection.ask("GET", "/post")
        self._findings.note_good("whole list", answer)
        if self._findings.expect("GET /post", answer, 200):
            if answer.field("etag"):
                self._etags["/post"] = answer.field("etag")
            posts = self._check_list("/post", answer, 0, asked_at)
            if abs(len(posts) - len(self._ledger)) > SWING:
                self._findings.broke("the list has all posts", f"{len(posts)} of {len(self._ledger)}")

    def _check_list(self, target: str, answer: Response, after: int, asked_at: float) -> list[Any]:
        posts: list[Any] = json.loads(answer.body)
        problem = self._ledger.problem_with_list(posts, after=after, asked_at=asked_at)
        if problem:
            self._findings.broke("what is read is what was written", f"GET {target}: {problem}")
        return posts

    async def _read_one(self, connection: Connection) -> None:
        post_id = self._ledger.any_id()
        target = f"/post/{post_id}"
        asked_at = time.monotonic()
        answer = await connection.ask(random.choice(("GET", "GET", "GET", "HEAD")), target)
        self._findings.note_good("one post", answer)
        if not self._findings.expect(f"GET {target}", answer, 200, 404):
            return
        if answer.status == 200:
            self._etags[target] = answer.field("etag")
        if answer.body or answer.status == 404:
            text = json.loads(answer.body)["post"] if answer.status == 200 else None
            problem = self._ledger.problem_with(post_id, text, asked_at=asked_at)
            if problem:
                self._findings.broke("what is read is what was written", f"GET {target}: {problem}")

    async def _read_again(self, connection: Connection) -> None:
        if not self._etags:
            return
        target = random.choice(list(self._etags))
        answer = await connection.ask("GET", target, [f"If-None-Match: {self._etags.pop(target)}"])
        self._findings.note_good("if it has changed", answer)
        self._findings.expect(f"GET {target} with If-None-Match", answer, 200, 304, 404)
        if answer.status == 304:
            self._etags[target] = answer.field("etag")

    # --- Logins

    async def _visit(self, connection: Connection) -> None:
        path, login = random.choice(list(self._logins.items()))
        answer = await login.ask(connection, "GET", random.choice((path, "/any")) if path != "/home" else path)
        self._findings.note_good("page", answer)
        if self._findings.expect(f"GET of a page as by {path}", answer, 200) and b"Success: " not in answer.body:
            self._findings.broke("a page has the name of its user", f"{path}: {answer.body!r}")

    # --- Writes

    async def _write(self, connection: Connection) -> None:
        many, few = len(self._ledger) > LIST_MOST + SWING, len(self._ledger) < LIST_MOST - SWING
        self._ledger.shrinking = (self._ledger.shrinking or many) and not few
        add, delete = (2, 5) if self._ledger.shrinking else (5, 2)
        writes = (self._add, self._replace, self._delete)
        (write,) = random.choices(writes, (add, 4, delete))
        await write(connection, random.choice(list(self._logins.values())))

    async def _add(self, connection: Connection, login: Login) -> None:
        text = self._ledger.new_text()
        with self._ledger.adding(text):
            answer = await login.ask(connection, "POST", "/post", [_JSON], _body_of(text))
            self._findings.note_good("write", answer)
            if not self._findings.expect("POST /post", answer, 201):
                return
            found = re.fullmatch(r"/post/([1-9][0-9]*)", answer.field("location"))
            if found is None or answer.body != b"Success a Post!\n":
                self._findings.broke("a new post has a Location", f"{answer.fields} {answer.body!r}")
                return
            problem = self._ledger.add(int(found[1]), text)
            if problem:
                self._findings.broke("no post id is assigned twice", problem)

    async def _replace(self, connection: Connection, login: Login) -> None:
        with self._ledger.changing() as post_id:
            fields = [_JSON, *await self._if_match(connection, post_id)]
            text = self._ledger.new_text()
            answer = await login.ask(connection, "PUT", f"/post/{post_id}", fields, _body_of(text))
            self._findings.note_good("write", answer)
            wanted = 412 if _STALE in fields else 200
            if self._findings.expect(f"PUT /post/{post_id}", answer, wanted) and wanted == 200:
                self._ledger.replace(post_id, text)

    async def _delete(self, connection: Connection, login: Login) -> None:
        with self._ledger.changing() as post_id:
            fields = await self._if_match(connection, post_id)
            answer = await login.ask(connection, "DELETE", f"/post/{post_id}", fields)
            self._findings.note_good("write", answer)
            wanted = 412 if _STALE in fields else 200
            if self._findings.expect(f"DELETE /post/{post_id}", answer, wanted) and wanted == 200:
                self._ledger.delete(post_id)

    async def _if_match(self, connection: Connection, post_id: int) -> list[str]:
        """Return no precondition, one that holds, or one that does not."""
        kind = random.randrange(4)
        if kind == 0:
            answer = await connection.ask("HEAD", f"/post/{post_id}")
            self._findings.note_good("one post", answer)
            if self._findings.expect(f"HEAD /post/{post_id}", answer, 200):
                return [f"If-Match: {answer.field('etag')}"]
        return [_STALE] if kind == 1 else []

    # --- Refused requests

    async def _ask_oddly(self, connection: Connection) -> None:
        kind = random.randrange(5)
        if kind == 0:
            body, fields, status = random.choice(_BAD_BODIES)
            answer = await self._logins["/basic"].ask(connection, "POST", "/post", fields, body)
            self._note_refused("POST /post with a bad body", answer, status)
        elif kind == 1:
            answer = await connection.ask("GET", "/post/0")
            self._note_refused("GET /post/0", answer, 404)
        elif kind == 2:
            answer = await connection.ask("POST", "/post", [_JSON], _body_of("never"))
            self._note_refused("POST /post without credentials", answer, 401)
        elif kind == 3:
            answer = await connection.ask("GET", "/post?limit=0")
            self._note_refused("GET /post?limit=0", answer, 400)
        else:
            answer = await connection.ask("OPTIONS", "/post")
            self._note_refused("OPTIONS /post", answer, 204)

    def _note_refused(self, what: str, answer: Response, status: int) -> None:
        self._findings.note_good("refused requests", answer)
        self._findings.expect(what, answer, status)


_STALE = 'If-Match: "an-older-one"'


def _body_of(text: str) -> bytes:
    return json.dumps({"post": text}).encode()

"""Posts of a server, for a program."""

import random
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self, TypeVar
from urllib.parse import urljoin

import msgspec
import treq
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.web.http_headers import Headers

from postd.client.answers import fields_of, no_answer, read_problem, say_late
from postd.client.auth import Auth, AuthClient, origin_of
from postd.client.errors import ClientError, NoAnswerError, SignInError, UnusableAnswerError
from postd.client.watching import Watch
from postd.errors import ConfigError, InvalidTextError
from postd.model import POST_ID_MAX, Post

T = TypeVar("T")

ANSWER_MAX_S = 30.0
"""How long a request may take, with its body and its answer's."""

ANSWER_MAX_BYTES = 8 * 1024 * 1024
"""The largest answer: a page of posts has a tenth of that at most."""

TRIES_MAX = 6
PATIENCE_S = 60.0
"""How late a request may be tried again, counted from its first try."""

_PASSING = frozenset({409, 429, 502, 503, 504})
"""Statuses of what may be otherwise in a while. 409: the same request is still under way (contract 2)."""

_FIRST_WAIT_S = 0.2
_LOCATION = re.compile(r"/post/([1-9][0-9]{0,15})")
_NEXT = re.compile(r'<([^<>]*)>[ \t]*;(?:[^<>]*;)?[ \t]*rel="?next"?(?=[ \t]*(?:[;,]|$))')


class SeenPost(Struct, frozen=True):
    """A post as it was when it was read; `etag` is what `if_match` takes."""

    id: int
    post: str
    etag: str


class Response(Struct, frozen=True):
    """What a server answered; names of fields are in lower case, lines of the same name are joined."""

    status: int
    fields: Mapping[str, str]
    content: bytes


class PostClient:
    """The posts of a server. Close it in the end, or use it by `async with`.

    What does no harm when it is done twice is sent again when the connection breaks, or when the server says that it
    cannot just now: `TRIES_MAX` times at most, none of them begun later than `PATIENCE_S` after the first. A server
    that is not there at the first try is not waited for. All methods raise:

    - `ProblemError`: the server says no.
    - `NoAnswerError`: there is no answer.
    - `UnusableAnswerError`: what answers is no postd.
    - `SignInError`: there is nothing to show.

    Args:
        reactor: connects, and has the clock.
        url: the server's, `https://posts.example`.
        auth: what to show; None for nothing.
        ca_file: as for `AuthClient`, as is `plaintext`.

    Raises:
        ConfigError: as `AuthClient`; or `url` has a path.
    """

    def __init__(
        self, reactor: Any, url: str, auth: Auth | None = None, *, ca_file: str = "", plaintext: bool = False
    ) -> None:
        self._reactor = reactor
        # A DELETE that Twisted repeats by itself would be told that there is nothing to delete.
        self.http = AuthClient(reactor, check_server(url), auth, ca_file=ca_file, plaintext=plaintext, repeats=False)
        self._list_url = f"{self.http.origin}/post"
        self._watches: set[Watch] = set()
        self._closed = False

    async def close(self) -> None:
        """End all that goes on: watches, the session of a sign-in, and the connections."""
        self._closed = True
        for watch in list(self._watches):
            watch.close()
        await self.http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def list(self, *, after: int = 0, page: int = 500) -> AsyncIterator[Post]:
        """Yield all posts in the order of their ids, reading so many at a time (at most 1,000).

        What changes meanwhile may be among them or not; none comes twice.

        Args:
            after: begin behind this id.
            page: how many are asked for together.
        """
        url: str | None = f"{self._list_url}?limit={page}" + (f"&after={after}" if after else "")
        while url is not None:
            answer = await self._ask("GET", url)
            posts = _decode(answer, list[Post])
            for post in posts:
                if post.id <= after:
                    raise UnusableAnswerError("the server sends posts out of order, or twice")
                after = post.id
                yield post
            found = _NEXT.search(answer.fields.get("link", "")) if posts else None
            url = urljoin(url, found[1]) if found else None
            if url is not None and origin_of(url) != self.http.origin:
                raise UnusableAnswerError("the next page is said to be on another server")

    async def get(self, post_id: int) -> SeenPost:
        """Return a post."""
        answer = await self._ask("GET", self._url(post_id))
        post = _decode(answer, Post)
        return SeenPost(post.id, post.post, answer.fields.get("etag", ""))

    async def add(self, text: str, *, key: str | None = None) -> int:
        """Add a post; return its id. It is stored once, however often it had to be sent.

        Args:
            text: what it says.
            key: 1 to 255 visible ASCII characters that name this addition for 24 hours: whoever is not sure whether
                they added it gives the same again. Made up if there is none.
        """
        key = key or secrets.token_urlsafe(24)
        answer = await self._ask("POST", self._list_url, _encode(text), {"Idempotency-Key": key})
        found = _LOCATION.fullmatch(answer.fields.get("location", "").removeprefix(self.http.origin))
        if answer.status != 201 or found is None:
            raise UnusableAnswerError("the server does not say which post it added")
        return int(found[1])

    async def update(self, post_id: int, text: str, *, if_match: str | None = None) -> None:
        """Give a post another text.

        Args:
            post_id: which one.
            text: what it is to say.
            if_match: the `etag` of it as it was seen: it must not have changed since. Such a request is not sent again
                when its connection broke: the second one would be told of the change that the first one made.
        """
        fields = {"If-Match": if_match} if if_match is not None else {}
        await self._ask("PUT", self._url(post_id), _encode(text), fields, repeats=if_match is None)

    async def delete(self, post_id: int, *, if_match: str | None = None) -> None:
        """Delete a post; `if_match` as for `update`."""
        fields = {"If-Match": if_match} if if_match is not None else {}
        await self._ask("DELETE", self._url(post_id), None, fields, gone_is_done=True)

    def watch(self, *, after: int | None = None, **options: Any) -> Watch:
        """Return the changes from now on, or from the one after a number: see `Watch`, which has the other options."""
        watch = Watch(
            self._reactor,
            self.http.agent,
            f"{self._list_url}/events",
            after=after,
            **options,
        )
        self._watches.add(watch)
        watch.on_close = self._watches.discard
        return watch

    def _url(self, post_id: int) -> str:
        if not 1 <= post_id <= POST_ID_MAX:
            raise ValueError(f"an id is a whole number from 1 to {POST_ID_MAX}")
        return f"{self._list_url}/{post_id}"

    async def _ask(  # noqa: PLR0913 - what a request is
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        *,
        repeats: bool = True,
        gone_is_done: bool = False,
    ) -> Response:
        """Return the answer to a request, which is one of success.

        Args:
            method: that of the request.
            url: likewise.
            body: likewise, JSON.
            fields: likewise, beside those that all have.
            repeats: whether it does no harm if the server does it twice.
            gone_is_done: whether 404 is what one wanted, if an earlier try may have done it.
        """
        ends = self._reactor.seconds() + PATIENCE_S
        was_there = may_be_done = False
        for tries in range(1, TRIES_MAX + 1):
            wait_s = _FIRST_WAIT_S * 2 ** (tries - 1) * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
            error: ClientError
            try:
                answer = await self._ask_once(method, url, body, fields or {})
                if 200 <= answer.status < 300 or (answer.status == 404 and gone_is_done and may_be_done):
                    return answer
                error = problem = read_problem(answer.status, answer.fields, answer.content)
                wait_s = max(problem.retry_after_s or 0.0, wait_s)
                # 429: nothing was done, whatever it was.
                worth_it = problem.status in _PASSING and (repeats or problem.status == 429)
                was_there, may_be_done = True, may_be_done or problem.status != 429
            except NoAnswerError as failed:
                was_there, may_be_done = was_there or failed.sent, may_be_done or failed.sent
                # Who was never there is not waited for.
                error, worth_it = failed, repeats and was_there
            except SignInError as failed:
                error, worth_it = failed, failed.passing
            if not worth_it or self._closed or tries == TRIES_MAX or self._reactor.seconds() + wait_s > ends:
                raise error
            await deferLater(self._reactor, wait_s)
        raise AssertionError("the last try returns or raises")

    async def _ask_once(self, method: str, url: str, body: bytes | None, fields: Mapping[str, str]) -> Response:
        given_up = False

        def take(piece: bytes) -> None:
            content.extend(piece)
            if given_up or len(content) > ANSWER_MAX_BYTES:
                raise UnusableAnswerError(f"the answer has more than {ANSWER_MAX_BYTES // 1024**2} MiB")

        async def exchange() -> Response:
            headers = Headers({name: [value] for name, value in {"User-Agent": "postd", **fields}.items()})
            if body is not None:
                headers.setRawHeaders("Content-Type", ["application/json"])
            response = await self.http.request(
                method, url, data=body, headers=headers, allow_redirects=False, unbuffered=True, reactor=self._reactor
            )
            await treq.collect(response, take)
            return Response(response.code, fields_of(response), bytes(content))

        content = bytearray()
        try:
            return await Deferred.fromCoroutine(exchange()).addTimeout(ANSWER_MAX_S, self._reactor, say_late)
        except (ClientError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - what a connection can fail with is not told in one place
            raise no_answer(error, self.http.origin) from None
        finally:
            given_up = True  # what still comes in ends the connection


def check_server(url: str) -> str:
    """Return the URL of a server if it is one.

    Raises:
        ConfigError: it is none, or has more in it than an origin.
    """
    origin = origin_of(url)
    if url.removesuffix("/").lower() != origin:
        raise ConfigError(repr(url), f"a server's URL has no path; {origin} has none")
    return origin


def _encode(text: str) -> bytes:
    try:
        return msgspec.json.encode({"post": text})
    except UnicodeEncodeError:
        raise InvalidTextError("The text of a post must be Unicode text, and this one is not.") from None


def _decode(answer: Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnusableAnswerError("the answer is not what a postd sends: is the URL right?") from None

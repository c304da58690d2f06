"""`PostClient`: the post API of a server, for programs that run Twisted."""

import random
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Self, TypeVar, Unpack
from urllib.parse import urljoin

import msgspec
import treq
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.client.arguments import check_kind, check_reactor, check_text
from postd.client.auth import Auth, AuthClient, origin_of
from postd.client.errors import ClientError, NoAnswerError, SignInError, UnusableAnswerError
from postd.client.responses import connection_error, decode_problem, header_fields, raise_timeout
from postd.client.watching import Timestamp, Watch, WatchOptions
from postd.errors import ConfigError, InvalidTextError
from postd.model import POST_ID_MAX
from postd.net.http_client import single_exchange
from postd.reactor import AnyReactor

T = TypeVar("T")

RESPONSE_MAX_S = 30.0
"""How long a request may take, with the body of its response."""

RESPONSE_MAX_BYTES = 8 * 1024 * 1024
"""The largest body of a response: a page of posts has at most a tenth of that."""

ATTEMPTS_MAX = 6
RETRY_WINDOW_S = 60.0
"""How long after its first attempt a request may be retried."""

_RETRYABLE = frozenset({409, 429, 502, 503, 504})
"""Statuses that a retry may change. 409: the same request is in progress (reference: Idempotency keys)."""

_FIRST_DELAY_S = 0.2
_LOCATION = re.compile(r"/post/([1-9][0-9]{0,15})")
_NEXT = re.compile(r'<([^<>]*)>[ \t]*;(?:[^<>]*;)?[ \t]*rel="?next"?(?=[ \t]*(?:[;,]|$))')


class Post(Struct, frozen=True):
    """A post.

    Args:
        id: the id.
        post: the text.
        created: when it was added. None without `meta`, and where it is unknown.
        updated: when its text last changed; likewise.
        author: the account that added it, `ISSUER#NAME` for a token; likewise.
    """

    id: int
    post: str
    created: Timestamp | None = None
    updated: Timestamp | None = None
    author: str | None = None


class SeenPost(Struct, frozen=True):
    """A post as it was read; `etag` is a value for `if_match`, and the rest is as in `Post`."""

    id: int
    post: str
    etag: str
    created: datetime | None = None
    updated: datetime | None = None
    author: str | None = None


class Response(Struct, frozen=True):
    """A response; the names of `fields` are in lower case, and field lines of the same name are joined."""

    status: int
    fields: Mapping[str, str]
    content: bytes


class PostClient:
    """The posts of a server. Use it by `async with`, or call `close`.

    Example::

        async with PostClient(reactor, "http://127.0.0.1:8080", Digest("alice", "wonderland")) as posts:
            post_id = await posts.add("Hello")
            post = await posts.get(post_id)
            await posts.update(post_id, "Hello again", if_match=post.etag)
            async for post in posts.list():
                print(post.id, post.post)  # 1 Hello again

    A request that is safe to repeat is retried when the connection breaks or the server is temporarily unavailable: at
    most `ATTEMPTS_MAX` attempts, each begun within `RETRY_WINDOW_S` of the first. A server that cannot be connected to
    at the first attempt is not retried. All methods raise:

    - `ProblemError`: the server answers with an error.
    - `NoAnswerError`: there is no response.
    - `UnusableAnswerError`: the response does not come from postd.
    - `SignInError`: no credentials are available.

    Args:
        reactor: the reactor.
        url: the URL of the server, such as `https://posts.example`.
        auth: the credentials; None for none.
        ca_file, plaintext, agent: as for `AuthClient`.

    Raises:
        ConfigError: as for `AuthClient`, or `url` has a path.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        reactor: AnyReactor,
        url: str,
        auth: Auth | None = None,
        *,
        ca_file: str = "",
        plaintext: bool = False,
        agent: IAgent | None = None,
    ) -> None:
        self._reactor = check_reactor(reactor)
        # Twisted's own retry of a DELETE would hide a 404 that the first attempt has caused.
        self.http = AuthClient(
            reactor, check_server_url(url), auth, ca_file=ca_file, plaintext=plaintext, repeats=False, agent=agent
        )
        self._list_url = f"{self.http.origin}/post"
        self._watches: set[Watch] = set()
        self._closed = False

    async def close(self) -> None:
        """Close all watches, the session of a form login, and the connections."""
        self._closed = True
        for watch in list(self._watches):
            watch.close()
        await self.http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def list(self, *, after: int = 0, page: int = 500, meta: bool = False) -> AsyncIterator[Post]:
        """Yield all posts in the order of their ids.

        Concurrent changes may or may not be included; no post is yielded twice.

        Args:
            after: yield only posts with larger ids.
            page: posts in a request, at most 1,000.
            meta: whether the posts have times and authors.
        """
        check_kind("after", after, int, "a whole number")
        check_kind("page", page, int, "a whole number")
        more = (f"&after={after}" if after else "") + ("&include=meta" if meta else "")
        url: str | None = f"{self._list_url}?limit={page}{more}"
        while url is not None:
            response = await self._request("GET", url)
            posts = _decode(response, list[Post])
            for post in posts:
                if post.id <= after:
                    raise UnusableAnswerError("the server sends posts out of order, or twice")
                after = post.id
                yield post
            found = _NEXT.search(response.fields.get("link", "")) if posts else None
            url = urljoin(url, found[1]) if found else None
            if url is not None and origin_of(url) != self.http.origin:
                raise UnusableAnswerError("the link to the next page leads to another server")

    async def get(self, post_id: int, *, meta: bool = False) -> SeenPost:
        """Return a post, with `meta` with its times and its author."""
        response = await self._request("GET", self._url(post_id) + ("?include=meta" if meta else ""))
        post = _decode(response, Post)
        etag = response.fields.get("etag", "")
        return SeenPost(post.id, post.post, etag, post.created, post.updated, post.author)

    async def add(self, text: str, *, key: str | None = None) -> int:
        """Add a post; return its id. It is stored once, however often the request is sent.

        Args:
            text: the text of the post.
            key: the idempotency key, 1 to 255 visible ASCII characters: a call with the same key within 24 hours adds
                nothing. Random if None.
        """
        if key is not None:
            check_text("key", key)
        key = key or secrets.token_urlsafe(24)
        response = await self._request("POST", self._list_url, _encode(text), {"Idempotency-Key": key})
        found = _LOCATION.fullmatch(response.fields.get("location", "").removeprefix(self.http.origin))
        if response.status != 201 or found is None:
            raise UnusableAnswerError("the response has no Location of the added post")
        return int(found[1])

    async def update(self, post_id: int, text: str, *, if_match: str | None = None) -> None:
        """Replace the text of a post.

        Args:
            post_id: the id of the post.
            text: the new text.
            if_match: an `etag`; the post must not have changed since. Such a request is not retried after a broken
                connection: the retry could fail because of the first attempt's own change.
        """
        fields = _if_match(if_match)
        await self._request("PUT", self._url(post_id), _encode(text), fields, repeats=if_match is None)

    async def delete(self, post_id: int, *, if_match: str | None = None) -> None:
        """Delete a post; `if_match` as for `update`."""
        fields = _if_match(if_match)
        await self._request("DELETE", self._url(post_id), None, fields, missing_is_success=True)

    def watch(self, *, after: int | None = None, **options: Unpack[WatchOptions]) -> Watch:
        """Return the changes from now on, or after a revision; `options` are passed to `Watch`."""
        watch = Watch(self._reactor, self.http.agent, f"{self._list_url}/events", after=after, **options)
        self._watches.add(watch)
        watch.on_close = self._watches.discard
        return watch

    def _url(self, post_id: int) -> str:
        check_kind("post_id", post_id, int, "a whole number")
        if not 1 <= post_id <= POST_ID_MAX:
            raise ValueError(f"an id is a whole number from 1 to {POST_ID_MAX}")
        return f"{self._list_url}/{post_id}"

    async def _request(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        fields: Mapping[str, str] | None = None,
        *,
        repeats: bool = True,
        missing_is_success: bool = False,
    ) -> Response:
        """Return the successful response to a request, after retries.

        Args:
            method: the HTTP method.
            url: the URL.
            body: the body, JSON.
            fields: additional header fields.
            repeats: whether the server may safely execute the request twice.
            missing_is_success: whether 404 is a success if an earlier attempt may have been executed.
        """
        ends = self._reactor.seconds() + RETRY_WINDOW_S
        was_reachable = may_have_run = False
        for attempt in range(1, ATTEMPTS_MAX + 1):
            wait_s = _FIRST_DELAY_S * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
            error: ClientError
            try:
                response = await self._send(method, url, body, fields or {})
                if 200 <= response.status < 300 or (response.status == 404 and missing_is_success and may_have_run):
                    return response
                error = problem = decode_problem(response.status, response.fields, response.content)
                wait_s = max(problem.retry_after_s or 0.0, wait_s)
                # 429: the request was not executed.
                is_retryable = problem.status in _RETRYABLE and (repeats or problem.status == 429)
                was_reachable, may_have_run = True, may_have_run or problem.status != 429
            except NoAnswerError as failed:
                was_reachable, may_have_run = was_reachable or failed.sent, may_have_run or failed.sent
                # A server that was never reachable is not retried.
                error, is_retryable = failed, repeats and was_reachable
            except SignInError as failed:
                error, is_retryable = failed, failed.temporary
            if not is_retryable or self._closed or attempt == ATTEMPTS_MAX or self._reactor.seconds() + wait_s > ends:
                raise error
            await deferLater(self._reactor, wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, method: str, url: str, body: bytes | None, fields: Mapping[str, str]) -> Response:
        given_up = False

        def collect(piece: bytes) -> None:
            content.extend(piece)
            if given_up or len(content) > RESPONSE_MAX_BYTES:
                raise UnusableAnswerError(f"the response has more than {RESPONSE_MAX_BYTES // 1024**2} MiB")

        async def exchange() -> Response:
            headers = Headers({name: [value] for name, value in {"User-Agent": "postd", **fields}.items()})
            if body is not None:
                headers.setRawHeaders("Content-Type", ["application/json"])
            response = await self.http.request(
                method, url, data=body, headers=headers, **single_exchange(self._reactor)
            )
            await treq.collect(response, collect)
            return Response(response.code, header_fields(response), bytes(content))

        content = bytearray()
        try:
            return await Deferred.fromCoroutine(exchange()).addTimeout(RESPONSE_MAX_S, self._reactor, raise_timeout)
        except (ClientError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - errors of connections have no common base
            raise connection_error(error, self.http.origin) from None
        finally:
            given_up = True  # further data aborts the connection


def check_server_url(url: str) -> str:
    """Return the origin of a server's URL.

    Raises:
        ConfigError: it is no URL of http or https, or has a path.
    """
    origin = origin_of(url)
    if url.removesuffix("/").lower() != origin:
        raise ConfigError(repr(url), f"a server's URL has no path, such as {origin}")
    return origin


def _if_match(etag: str | None) -> Mapping[str, str]:
    if etag is None:
        return {}
    check_text("if_match", etag)
    return {"If-Match": etag}


def _encode(text: str) -> bytes:
    check_kind("text", text, str, "text")
    try:
        return msgspec.json.encode({"post": text})
    except UnicodeEncodeError:
        raise InvalidTextError("The text of a post must be Unicode text, and this one is not.") from None


def _decode(response: Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnusableAnswerError("the response is not from a postd server; check the URL") from None

"""HTTP clients of Python's package index, each as its own users use it, under one form."""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPMessage, HTTPResponse
from typing import Any, Protocol

import aiohttp
import httpx
import requests
from msgspec import Struct
from requests.auth import HTTPDigestAuth

from tests.helpers import PATIENCE_S

TIMEOUT_S = PATIENCE_S


class Exchange(Struct):
    """A request that went out and what came back; the names of headers are in lower case."""

    authorization: str | None
    status: int
    headers: Mapping[str, str]


class DigestClient(Protocol):
    """A session of a client that is given a name and a password only."""

    def request(self, method: str, url: str, body: Any = None) -> list[Exchange]:
        """Make a request; return all the exchanges that it took. A body is sent as JSON."""


def _lower(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


class _Requests:
    def __init__(self, session: requests.Session) -> None:
        self._session = session

    def request(self, method: str, url: str, body: Any = None) -> list[Exchange]:
        last = self._session.request(method, url, json=body, timeout=TIMEOUT_S)
        return [
            Exchange(_lower(answer.request.headers).get("authorization"), answer.status_code, _lower(answer.headers))
            for answer in (*last.history, last)
        ]


@contextmanager
def requests_client(user: str, password: str) -> Iterator[DigestClient]:
    with requests.Session() as session:
        session.auth = HTTPDigestAuth(user, password)
        yield _Requests(session)


class _Httpx:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def request(self, method: str, url: str, body: Any = None) -> list[Exchange]:
        seen: list[Exchange] = []

        def note(answer: httpx.Response) -> None:
            seen.append(
                Exchange(answer.request.headers.get("Authorization"), answer.status_code, _lower(answer.headers))
            )

        self._client.event_hooks = {"response": [note]}
        self._client.request(method, url, json=body)
        return seen


@contextmanager
def httpx_client(user: str, password: str) -> Iterator[DigestClient]:
    with httpx.Client(auth=httpx.DigestAuth(user, password), timeout=TIMEOUT_S) as client:
        yield _Httpx(client)


class _Aiohttp:
    def __init__(self, runner: asyncio.Runner, session: aiohttp.ClientSession, seen: list[Exchange]) -> None:
        self._runner = runner
        self._session = session
        self._seen = seen

    def request(self, method: str, url: str, body: Any = None) -> list[Exchange]:
        self._seen.clear()
        self._runner.run(self._request(method, url, body))
        return list(self._seen)

    async def _request(self, method: str, url: str, body: Any) -> None:
        async with self._session.request(method, url, json=body) as answer:
            await answer.read()


@contextmanager
def aiohttp_client(user: str, password: str) -> Iterator[DigestClient]:
    seen: list[Exchange] = []

    async def note(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:  # the inner one of two: it sees each try
        answer = await handler(request)
        seen.append(Exchange(request.headers.get("Authorization"), answer.status, _lower(answer.headers)))
        return answer

    async def open_session() -> aiohttp.ClientSession:
        digest = aiohttp.DigestAuthMiddleware(user, password)
        return aiohttp.ClientSession(middlewares=[digest, note], timeout=aiohttp.ClientTimeout(TIMEOUT_S))

    with asyncio.Runner() as runner:
        session = runner.run(open_session())
        try:
            yield _Aiohttp(runner, session, seen)
        finally:
            runner.run(session.close())


class _Noting(urllib.request.BaseHandler):
    """Sees each answer before urllib looks at its status."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []

    def http_response(self, request: urllib.request.Request, answer: HTTPResponse) -> HTTPResponse:
        headers: HTTPMessage = answer.headers
        self.seen.append(Exchange(request.get_header("Authorization"), answer.status, _lower(headers)))
        return answer


class _Urllib:
    def __init__(self, user: str, password: str) -> None:
        self._passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        self._user_and_password = (user, password)
        self._noting = _Noting()
        digest = urllib.request.HTTPDigestAuthHandler(self._passwords)
        self._opener = urllib.request.build_opener(digest, self._noting)

    def request(self, method: str, url: str, body: Any = None) -> list[Exchange]:
        self._passwords.add_password(None, url, *self._user_and_password)
        self._noting.seen.clear()
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, sent, {"Content-Type": "application/json"} if sent else {}, method=method)
        with self._opener.open(request, timeout=TIMEOUT_S) as answer:
            answer.read()
        return list(self._noting.seen)


@contextmanager
def urllib_client(user: str, password: str) -> Iterator[DigestClient]:
    yield _Urllib(user, password)


DIGEST_CLIENTS: Mapping[str, Callable[[str, str], Any]] = {
    "requests": requests_client,
    "httpx": httpx_client,
    "aiohttp": aiohttp_client,
    "urllib": urllib_client,
}
"""Each is called with a name and a password, and gives a `DigestClient` for the length of a `with` block."""

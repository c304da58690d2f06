"""Lists with gzip, as other HTTP clients read them from a real server."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import aiohttp
import httpx
import pytest
import pytest_twisted
import requests
import treq
from twisted.web.http_headers import Headers

from postd.web.lists.encoded_posts import SNAPSHOT_POSTS
from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

TIMEOUT_S = PATIENCE_S
COMPRESSED_MAX_BYTES = 256 * 1024
Posts = list[dict[str, Any]]
Read = Callable[[str], tuple[Mapping[str, str], Posts]]
"""Returns the headers of a response, and its decoded body."""


def expected(count: int) -> Posts:
    return [{"id": n, "post": f"post {n}, mit Grüßen 🚀"} for n in range(1, count + 1)]


def fill(daemon: Daemon, count: int) -> None:
    """Store the given number of posts directly in the database of the running server."""
    with closing(sqlite3.connect(daemon.folder / "postd.db")) as connection, connection:
        (there,) = connection.execute("SELECT count(*) FROM post").fetchone()
        rows = [(post["post"],) for post in expected(count)[there:]]
        connection.executemany("INSERT INTO post (post) VALUES (?)", rows)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("gzip")) as daemon:
        yield daemon
    assert "Traceback" not in daemon.log


def read_with_requests(url: str) -> tuple[Mapping[str, str], Posts]:
    answer = requests.get(url, timeout=TIMEOUT_S)
    return answer.headers, answer.json()


def read_with_httpx(url: str) -> tuple[Mapping[str, str], Posts]:
    answer = httpx.get(url, timeout=TIMEOUT_S)
    return answer.headers, answer.json()


def read_with_aiohttp(url: str) -> tuple[Mapping[str, str], Posts]:
    async def read() -> tuple[Mapping[str, str], Posts]:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.headers, await answer.json()

    return asyncio.run(read())


READERS: dict[str, Read] = {"requests": read_with_requests, "httpx": read_with_httpx, "aiohttp": read_with_aiohttp}


@pytest.mark.parametrize("client", READERS)
@pytest.mark.parametrize("count", [40, SNAPSHOT_POSTS])
def test_accepted_gzip_is_sent(daemon: Daemon, client: str, count: int) -> None:
    fill(daemon, count)
    headers, posts = READERS[client](f"{daemon.url}/post")
    assert posts == expected(count)
    assert headers["Content-Encoding"] == "gzip"
    assert "-gzip" in headers["ETag"]
    assert int(headers["Content-Length"]) < COMPRESSED_MAX_BYTES
    page = requests.get(f"{daemon.url}/post?limit=20", timeout=TIMEOUT_S)
    assert (page.headers["Content-Encoding"], page.json()) == ("gzip", expected(20))
    plain = requests.get(f"{daemon.url}/post", headers={"Accept-Encoding": "identity"}, timeout=TIMEOUT_S)
    assert plain.headers.get("Content-Encoding") is None
    assert plain.json() == posts


@pytest.mark.parametrize("client", READERS)
def test_long_list_is_sent_with_gzip(daemon: Daemon, client: str) -> None:
    count = SNAPSHOT_POSTS + 1000 + list(READERS).index(client)  # not the last one's list
    fill(daemon, count)
    for _ in range(2):
        headers, posts = READERS[client](f"{daemon.url}/post")
        assert posts == expected(count)
        assert headers["Content-Encoding"] == "gzip"
    assert "-gzip" in headers["ETag"]
    assert int(headers["Content-Length"]) < COMPRESSED_MAX_BYTES
    plain = requests.get(f"{daemon.url}/post", headers={"Accept-Encoding": "identity"}, timeout=TIMEOUT_S)
    assert plain.headers.get("Content-Encoding") is None
    assert plain.json() == posts


@pytest_twisted.ensureDeferred
async def test_treq_decodes_gzip(daemon: Daemon) -> None:
    fill(daemon, 40)
    answer = await treq.get(f"{daemon.url}/post")
    etag = answer.headers.getRawHeaders("ETag", [""])[0]
    assert (await answer.json())[:40] == expected(40)
    assert "-gzip" in etag
    assert (await treq.get(f"{daemon.url}/post", headers=Headers({"If-None-Match": [etag]}))).code == 304

"""Workloads with pages of a list, and with whole lists whose posts are replaced meanwhile."""

import http.client
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from itertools import count
from pathlib import Path

from bench.loads import CONNECTIONS, Load, load, script
from bench.servers import REQUEST_S, ROOT, BenchError, Server, ask, running
from bench.workloads import JSON, LONG_LIST, Duration, check_stored, encode, fill, posts_up_to, text_of

PAGED, PAGE = 1_000, 20
"""The number of posts in the store, and in a page."""
FIRST_PAGE = f"/post?limit={PAGE}"

LENGTHS = (1_000, 10_000, LONG_LIST)
WRITES_PER_SECOND = (0, 1, 10, 100)
CONNECTIONS_FOR_LONG_LIST = 4
"""With 32 connections, and so some 250 MB of responses, most peers would not complete one in the time."""

TEXTS_FROM = 2 * LONG_LIST
"""The number in the first replacement text: no post has it yet, and it has as many digits as the others."""
SEED = 1


# --- Pages


def measure_page(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with running(server, folder) as address:
        check_pages(server, address.port)
        load(server, address.port, duration.warm_up_s, script("page"))
        return {"requests/s": load(server, address.port, duration.measured_s, script("page")).per_second}


def measure_pages_mixed(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with running(server, folder) as address:
        check_pages(server, address.port)
        warm_up = load(server, address.port, duration.warm_up_s, script("pages"))
        measured = load(server, address.port, duration.measured_s, script("pages"))
        check_pages(server, address.port)
    added = added_at_least(warm_up) + added_at_least(measured)
    check_stored(server, folder, PAGED + added, "SELECT count(*) FROM post")
    return {"requests/s": measured.per_second}


def added_at_least(measured: Load) -> int:
    """Return the least number of POST requests among those of `pages.lua`: each connection can lack one at the end."""
    return max(0, measured.requests // 10 - CONNECTIONS - 1)


def check_pages(server: Server, port: int) -> None:
    """Check the first two pages byte for byte."""
    for after in (0, PAGE):
        answer = ask(port, "GET", f"{FIRST_PAGE}&after={after}")
        expected = encode(posts_up_to(PAGED)[after : after + PAGE])
        if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != expected:
            raise BenchError(
                f"{server.name}: the page after {after} was answered with {answer.status} {answer.body[:200]!r}"
            )


# --- Whole lists


def fill_lists(folder: Path, *, tree: Path = ROOT) -> None:
    """Create a folder with stores for each length."""
    for length in LENGTHS:
        (folder / str(length)).mkdir()
        fill(length, folder / str(length), tree=tree)


def measure_lists(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Read the list of each length, with each rate of writes beside it."""
    figures: dict[str, float] = {}
    for length in LENGTHS:
        figures |= measure_list(server, folder / str(length), length, duration, WRITES_PER_SECOND)
    return figures


def measure_list(
    server: Server, folder: Path, length: int, duration: Duration, writes_per_second: Sequence[int]
) -> dict[str, float]:
    """Read a list with different rates of writes beside it, of which the first is 0."""
    figures: dict[str, float] = {}
    # wrk uses the last -c.
    options = [f"-c{CONNECTIONS_FOR_LONG_LIST}"] if length >= LONG_LIST else []
    with running(server, folder) as address, ThreadPoolExecutor(1) as beside:
        writer = Writer(server, address.port, length)
        size = len(ask(address.port, "GET", "/post").body)
        load(server, address.port, duration.warm_up_s, options)
        for number in writes_per_second:
            ask(address.port, "GET", "/post/1")  # answered after the requests that the previous load has left
            writing = beside.submit(writer.replace, number, duration.measured_s)
            per_second = load(server, address.port, duration.measured_s, options).bytes_per_second / size
            name = f"{length:,}, {number} due/s:"
            figures[f"{name} GET/s"] = per_second
            if number:
                figures[f"{name} PUT/s"] = writing.result() / duration.measured_s
                if alone := figures[f"{length:,}, 0 due/s: GET/s"]:  # a slow server may not complete any in the time
                    figures[f"{name} of 0 due/s"] = per_second / alone
        writer.check()
    return figures


class Writer:
    """Replaces random posts of a list, each with a text of the same length, over one connection.

    Args:
        server: the server, for errors.
        port: its port on loopback.
        length: number of posts in the list.
    """

    def __init__(self, server: Server, port: int, length: int) -> None:
        self._server = server
        self._port = port
        self._posts = posts_up_to(length)
        self._random = random.Random(SEED)
        self._numbers = count(TEXTS_FROM)

    def replace(self, per_second: int, seconds: int) -> int:
        """Send each PUT when it is due and the previous one is answered; return the number answered in the time.

        Raises:
            BenchError: a response is an error, or is absent.
        """
        in_time, start = 0, time.monotonic()
        end = start + seconds
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_S)) as connection:
            for number in range(per_second * seconds):
                time.sleep(max(0.0, start + (number + 0.5) / per_second - time.monotonic()))
                if time.monotonic() > end:
                    break
                self._replace_one(connection)
                in_time += time.monotonic() <= end
        return in_time

    def _replace_one(self, connection: http.client.HTTPConnection) -> None:
        post, text = self._random.choice(self._posts), text_of(next(self._numbers))
        name, _, value = JSON.partition(": ")
        connection.request("PUT", f"/post/{post['id']}", json.dumps({"post": text}), {name: value})
        response = connection.getresponse()
        body = response.read()
        if (response.status, body) != (HTTPStatus.OK, b"Update a Post!\n"):
            raise BenchError(f"{self._server.name}: PUT was answered with {response.status} {body[:200]!r}")
        post["post"] = text

    def check(self) -> None:
        """Check byte for byte that the list has all replacements, and is otherwise unchanged."""
        answer = ask(self._port, "GET", "/post")
        if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != encode(self._posts):
            raise BenchError(f"{self._server.name}: GET /post answered {answer.status} with another list")

"""Pages of a list, and whole lists while posts of them change."""

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
"""Posts in the store, and in a page."""
FIRST_PAGE = f"/post?limit={PAGE}"

LENGTHS = (1_000, 10_000, LONG_LIST)
WRITES_PER_SECOND = (0, 1, 10, 100)
CONNECTIONS_FOR_LONG_LIST = 4
"""With 32 of them, which is some 250 MB of answers, most peers would not complete one in the time."""

TEXTS_FROM = 2 * LONG_LIST
"""The number in the first text that replaces another: no post has it yet, and the length stays the same."""
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
    """Return how many of the answers of `pages.lua` are of a POST: each connection can lack one at the end."""
    return max(0, measured.requests // 10 - CONNECTIONS - 1)


def check_pages(server: Server, port: int) -> None:
    """Make sure that the first two pages are what they must be."""
    for after in (0, PAGE):
        answer = ask(port, "GET", f"{FIRST_PAGE}&after={after}")
        expected = encode(posts_up_to(PAGED)[after : after + PAGE])
        if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != expected:
            raise BenchError(
                f"{server.name}: the page after {after} was answered with {answer.status} {answer.body[:200]!r}"
            )


# --- Whole lists


def fill_lists(folder: Path, *, tree: Path = ROOT) -> None:
    """Make a folder of stores for each length."""
    for length in LENGTHS:
        (folder / str(length)).mkdir()
        fill(length, folder / str(length), tree=tree)


def measure_lists(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Read the list of each length, beside each number of writes a second."""
    figures: dict[str, float] = {}
    for length in LENGTHS:
        figures |= measure_list(server, folder / str(length), length, duration, WRITES_PER_SECOND)
    return figures


def measure_list(
    server: Server, folder: Path, length: int, duration: Duration, writes_per_second: Sequence[int]
) -> dict[str, float]:
    """Read one list beside different numbers of writes a second, the first of them 0."""
    figures: dict[str, float] = {}
    # wrk takes the last -c.
    options = [f"-c{CONNECTIONS_FOR_LONG_LIST}"] if length >= LONG_LIST else []
    with running(server, folder) as address, ThreadPoolExecutor(1) as beside:
        writer = Writer(server, address.port, length)
        size = len(ask(address.port, "GET", "/post").body)
        load(server, address.port, duration.warm_up_s, options)
        for number in writes_per_second:
            ask(address.port, "GET", "/post/1")  # answered when the requests that the load before has left are done
            writing = beside.submit(writer.replace, number, duration.measured_s)
            per_second = load(server, address.port, duration.measured_s, options).bytes_per_second / size
            name = f"{length:,}, {number} due/s:"
            figures[f"{name} GET/s"] = per_second
            if number:
                figures[f"{name} PUT/s"] = writing.result() / duration.measured_s
                if alone := figures[f"{length:,}, 0 due/s: GET/s"]:  # a slow server may have sent nothing in the time
                    figures[f"{name} of 0 due/s"] = per_second / alone
        writer.check()
    return figures


class Writer:
    """Replaces posts of a list at random, each with a text as long as the one before, over one connection.

    Args:
        server: whose list it is, for errors.
        port: where it listens on loopback.
        length: number of posts in the list.
    """

    def __init__(self, server: Server, port: int, length: int) -> None:
        self._server = server
        self._port = port
        self._posts = posts_up_to(length)
        self._random = random.Random(SEED)
        self._numbers = count(TEXTS_FROM)

    def replace(self, per_second: int, seconds: int) -> int:
        """Send a PUT when it is due and the one before is answered; return how many were answered in the time.

        Raises:
            BenchError: an answer is not a success, or does not come.
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
        """Make sure that the list has all that was written, and is otherwise as before, to the byte."""
        answer = ask(self._port, "GET", "/post")
        if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != encode(self._posts):
            raise BenchError(f"{self._server.name}: GET /post answered {answer.status} with another list")

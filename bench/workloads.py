"""Workloads without logins, and the checks that the servers completed them."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from statistics import median

from bench.contenders import POSTD, ask_redis, falcon, redis_beside
from bench.loads import Load, forget_peak, load, peak_mib, percentile, script, time_long_list
from bench.open_loop import OpenLoop
from bench.servers import ROOT, Address, BenchError, Server, ask, running

SHORT_LIST, LONG_LIST = 20, 100_000
ADDED = "Success a Post!\n"
SHARE_OF_PEAK = 0.5
JSON = "Content-Type: application/json"


@dataclass(frozen=True)
class Duration:
    """The length of a measurement, in whole seconds."""

    measured_s: int
    warm_up_s: int


Measure = Callable[[Server, Path, Duration], Mapping[str, float]]
"""Starts a server in a folder, measures it, stops it, and returns its figures by name."""


# --- Stored posts, and checks of them


def text_of(number: int) -> str:
    """Return the text of a post, about 60 characters, as in `mixed.lua`."""
    return f"Post {number:06} says little, but it is as long as most posts are."


def encode(value: object) -> bytes:
    return json.dumps(value, indent=2).encode()


def posts_up_to(length: int) -> list[dict[str, object]]:
    return [{"id": number, "post": text_of(number)} for number in range(1, length + 1)]


def add_post(server: Server, port: int, text: str) -> None:
    answer = ask(port, "POST", "/post", json.dumps({"post": text}), JSON, tls=server.tls)
    if (answer.status, answer.body) != (HTTPStatus.CREATED, ADDED.encode()):
        raise BenchError(f"{server.name}: POST /post answered {answer.status} {answer.body[:200]!r}")


@contextmanager
def serving_short_list(server: Server, folder: Path) -> Iterator[Address]:
    """Start a server, and add the posts of the short list."""
    if server.static:
        (folder / "post").mkdir()
        for post in posts_up_to(SHORT_LIST):
            (folder / "post" / str(post["id"])).write_bytes(encode(post))
        (folder / "list.json").write_bytes(encode(posts_up_to(SHORT_LIST)) + b"\n")
    with running(server, folder) as address:
        if not server.static:
            for number in range(1, SHORT_LIST + 1):
                add_post(server, address.port, text_of(number))
        yield address


def check_list(server: Server, port: int, length: int, *fields: str) -> bytes:
    """Check that the list is right byte for byte; return it."""
    answer = ask(port, "GET", "/post", None, *fields, tls=server.tls)
    if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != encode(posts_up_to(length)):
        raise BenchError(f"{server.name}: GET /post answered {answer.status} with another list: {answer.body[:200]!r}")
    return answer.body


def check_replaced(server: Server, port: int) -> None:
    """Check that each post has its initial text, or one of the two that `mixed.lua` gives it."""
    posts = json.loads(ask(port, "GET", "/post").body)
    texts_of = {
        number: {text_of(number), text_of(100 + number), text_of(100 + number + SHORT_LIST)}
        for number in range(1, SHORT_LIST + 1)
    }
    if [post["id"] for post in posts] != list(texts_of) or any(
        post["post"] not in texts_of[post["id"]] for post in posts
    ):
        raise BenchError(f"{server.name}: after the load GET /post is another list: {posts}")
    if posts == posts_up_to(SHORT_LIST):
        raise BenchError(f"{server.name}: no post was replaced")


def check_stored(server: Server, folder: Path, answered: int, query: str) -> None:
    """Check that the store has every write that was acknowledged."""
    with closing(sqlite3.connect(folder / server.file)) as connection:
        stored: int = connection.execute(query).fetchone()[0]
    if stored < answered:
        raise BenchError(f"{server.name} answered {answered} requests with a success; {query}: {stored}")


# --- Measurements


def measure_get20(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        load(server, address.port, duration.warm_up_s)
        return {"requests/s": load(server, address.port, duration.measured_s).per_second}


def measure_not_modified(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        etag = ask(address.port, "GET", "/post").headers.get("ETag", "")
        field = f"If-None-Match: {etag}"
        check_not_modified(server, address.port, field)
        load(server, address.port, duration.warm_up_s, ["-H", field])
        measured = load(server, address.port, duration.measured_s, ["-H", field])
        check_not_modified(server, address.port, field)
    return {"requests/s": measured.per_second}


def check_not_modified(server: Server, port: int, field: str) -> None:
    answer = ask(port, "GET", "/post", None, field)
    if answer.status != HTTPStatus.NOT_MODIFIED or answer.body:
        raise BenchError(f"{server.name}: GET /post with {field} answered {answer.status}")


def measure_get_one(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with serving_short_list(server, folder) as address:
        for post in posts_up_to(SHORT_LIST):
            answer = ask(address.port, "GET", f"/post/{post['id']}")
            if answer.status != HTTPStatus.OK or answer.body.rstrip(b"\n") != encode(post):
                raise BenchError(f"{server.name}: GET /post/{post['id']} answered {answer.status} {answer.body!r}")
        load(server, address.port, duration.warm_up_s, script("one"))
        return {"requests/s": load(server, address.port, duration.measured_s, script("one")).per_second}


def measure_post(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with running(server, folder) as address:
        add_post(server, address.port, text_of(1))
        measured, requests = load_with_posts(server, address.port, duration)
    check_stored(server, folder, 1 + requests, "SELECT count(*) FROM post")
    return {"requests/s": measured.per_second}


def load_with_posts(server: Server, port: int, duration: Duration) -> tuple[Load, int]:
    """Add posts; return the measured load, and the number of posts added, warm-up included."""
    warm_up = load(server, port, duration.warm_up_s, script("post"))
    measured = load(server, port, duration.measured_s, script("post"))
    return measured, warm_up.requests + measured.requests


def measure_mixed(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        load(server, address.port, duration.warm_up_s, script("mixed"))
        measured = load(server, address.port, duration.measured_s, script("mixed"))
        check_replaced(server, address.port)
    return {"requests/s": measured.per_second}


def measure_p99(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Find the peak rate with wrk; then send requests at half of it, at times that do not depend on the responses."""
    with serving_short_list(server, folder) as address:
        body = check_list(server, address.port, SHORT_LIST)
        load(server, address.port, duration.warm_up_s)
        per_second = SHARE_OF_PEAK * load(server, address.port, duration.measured_s).per_second
        measured = OpenLoop(server.name, address.port, "/post", body).ask(per_second, duration.measured_s)
    return {
        "ms": percentile(measured.latency_s, 99) * 1000,
        "ms, median": median(measured.latency_s) * 1000,
        "ms, client's own": percentile(measured.own_s, 99) * 1000,
        "at requests/s": per_second,
    }


def measure_tail(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Do what `measure_p99` does, with POST."""
    with running(server, folder) as address:
        add_post(server, address.port, text_of(1))
        peak, requests = load_with_posts(server, address.port, duration)
        per_second = SHARE_OF_PEAK * peak.per_second
        new = json.dumps({"post": text_of(2)}).encode()
        open_loop = OpenLoop(server.name, address.port, "/post", ADDED.encode(), new)
        measured = open_loop.ask(per_second, duration.measured_s)
    check_stored(server, folder, 1 + requests + len(measured.latency_s), "SELECT count(*) FROM post")
    return {
        "p50 ms": median(measured.latency_s) * 1000,
        "p99 ms": percentile(measured.latency_s, 99) * 1000,
        "p99.9 ms": percentile(measured.latency_s, 99.9) * 1000,
        "ms, client's own": percentile(measured.own_s, 99) * 1000,
        "at requests/s": per_second,
    }


def measure_both(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    """Measure reads, then writes."""
    with serving_short_list(server, folder) as address:
        check_list(server, address.port, SHORT_LIST)
        load(server, address.port, duration.warm_up_s)
        reading = load(server, address.port, duration.measured_s)
        writing, requests = load_with_posts(server, address.port, duration)
    if server.file:
        check_stored(server, folder, SHORT_LIST + requests, "SELECT count(*) FROM post")
    return {"GET/s": reading.per_second, "POST/s": writing.per_second}


def measure_on_redis(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with redis_beside(folder) as socket_file:
        figures = measure_both(server, folder, duration)
        stored = ask_redis(socket_file, "ZCARD postd:posts")
        if int(stored.removeprefix(":")) < SHORT_LIST + figures["POST/s"] * duration.measured_s:
            raise BenchError(f"{server.name}: Redis has {stored} posts, fewer than were acknowledged")
    return figures


def fill(length: int, folder: Path, *, tree: Path = ROOT) -> None:
    """Create the stores of postd and of the peers, and insert the posts directly, which is faster than by requests."""
    texts = [(text_of(number),) for number in range(1, length + 1)]
    for server in (replace(POSTD, tree=tree), falcon()):
        with running(server, folder):
            pass
        with closing(sqlite3.connect(folder / server.file)) as connection, connection:
            connection.executemany("INSERT INTO post (post) VALUES (?)", texts)


def measure_list100k(server: Server, folder: Path, duration: Duration) -> dict[str, float]:
    with running(server, folder) as address:
        forget_peak(address.pid)
        before = peak_mib(address.pid)
        size = len(check_list(server, address.port, LONG_LIST))
        added = peak_mib(address.pid) - before
        took: list[float] = []
        end = time.monotonic() + duration.measured_s
        while not took or time.monotonic() < end:
            took.append(time_long_list(server, address.port, size))
    return {"ms": median(took) * 1000, "MiB more": added}

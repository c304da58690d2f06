"""Measures postd beside FastAPI and Flask doing the same work, and its streamed list beside one big write.

The server has one core, the load generator another. Each figure is the median of interleaved rounds, each of
them with a freshly started server. README.md tells what the figures mean.
"""

import argparse
import http.client
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
SERVER_CORE, LOAD_CORE = 0, 1
CONNECTIONS = 32
SHORT_LIST, LONG_LIST = 20, 100_000
PIECE_BYTES = 64 * 1024

WARM_UP_S = 1
READY_S = 30
STOP_S = 5
REQUEST_S = 60
"""No single request, not even one for the long list, takes this long unless something is broken."""

LIBRARIES = (
    "postd",
    "Twisted",
    "klein",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "flask",
    "gunicorn",
)


class BenchError(Exception):
    """What ends the run without a result. `str()` of it is one line."""


@dataclass(frozen=True)
class Server:
    """How to start a server on a port, and the SQLite file it then keeps in its folder."""

    name: str
    command: Callable[[int], list[str]]
    file: str


@dataclass(frozen=True)
class Address:
    """A running server."""

    pid: int
    port: int


@dataclass(frozen=True)
class Load:
    """What wrk counted."""

    requests: int
    per_second: float


Measure = Callable[[Server, Path, int], Mapping[str, float]]
"""Starts a server in a folder, measures it for some seconds, ends it, and returns its figures by name."""


@dataclass(frozen=True)
class Row:
    """A workload, and who is put to it. postd comes first: the others are what it is divided by."""

    servers: Sequence[Server]
    measure: Measure
    prepare: Callable[[Path], None] | None = None
    """Fills the folder that all servers of the row then share; without it each starts in an empty one."""


# --- The servers


def command_of_this_python(name: str) -> str:
    """Return the command that is installed beside the running Python."""
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        raise BenchError(f"{name} is not installed beside {sys.executable}; README.md says how")
    return path


def postd_command(port: int) -> list[str]:
    listen = f"tcp:{port}:interface=127.0.0.1"
    return [command_of_this_python("twistd"), "-n", "--pidfile=", "postd", "-l", listen]


def fastapi_command(port: int) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port), "--app-dir", str(HERE / "peers")]
    return [command_of_this_python("uvicorn"), "--workers", "1", *where, "fastapi_posts:app"]


def flask_command(port: int) -> list[str]:
    where = ["--bind", f"127.0.0.1:{port}", "--pythonpath", str(HERE / "peers")]
    # Its control socket would stand in the home folder.
    how = ["-w", "1", "--threads", "4", "--access-logfile", "-", "--no-control-socket"]
    return [command_of_this_python("gunicorn"), *how, *where, "flask_posts:app"]


def baseline_command(port: int) -> list[str]:
    return [sys.executable, str(HERE / "peers" / "one_write.py"), str(port), POSTD.file]


POSTD = Server("postd", postd_command, "postd.db")
FASTAPI = Server("fastapi", fastapi_command, "posts.db")
FLASK = Server("flask", flask_command, "posts.db")
BASELINE = Server("baseline", baseline_command, POSTD.file)


@contextmanager
def running(server: Server, folder: Path) -> Iterator[Address]:
    """Start a server and wait until it answers; end it whatever happens."""
    port = free_port()
    log = folder / f"{server.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), *server.command(port)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us; we end the server
        )
    try:
        wait_until_ready(server, process, port, log)
        yield Address(process.pid, port)
    finally:
        stop(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{server.name} ended at start: {last_line(log)}")
        with suppress(OSError, http.client.HTTPException):
            # Not the list: the first of those is measured. A store that is not open yet is a 503.
            if ask(port, "GET", "/post/1")[0] in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
                return
        time.sleep(0.05)
    raise BenchError(f"{server.name} did not answer within {READY_S} s: {last_line(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        try:
            process.wait(STOP_S)
        finally:  # too slow, or a second Ctrl-C; nothing happens to a process that has ended
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    return (log.read_text(errors="replace").splitlines() or ["(it said nothing)"])[-1]


# --- Requests


def ask(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read()


def text_of(number: int) -> str:
    """Return the text of a post, about 60 characters."""
    return f"Post {number:06} says little, but it is as long as most posts are."


def add_post(server: Server, port: int, text: str) -> None:
    status, body = ask(port, "POST", "/post", json.dumps({"post": text}))
    if (status, body) != (HTTPStatus.CREATED, b"Success a Post!\n"):
        raise BenchError(f"{server.name}: POST /post answered {status} {body[:200]!r}")


def check_list(server: Server, port: int, length: int) -> int:
    """Make sure that the list is what it must be, to the byte; return its size."""
    status, body = ask(port, "GET", "/post")
    posts = [{"id": number, "post": text_of(number)} for number in range(1, length + 1)]
    if status != HTTPStatus.OK or body.rstrip(b"\n") != json.dumps(posts, indent=2).encode():
        raise BenchError(f"{server.name}: GET /post answered {status} with another list: {body[:200]!r}")
    return len(body)


def load(server: Server, port: int, seconds: int, script: Path | None = None) -> Load:
    """Keep the server busy with wrk.

    Raises:
        BenchError: an answer was an error, or did not come.
    """
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"]
    command += ["--timeout", "10s", *(["-s", str(script)] if script else [])]
    run = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/post"],
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    errors = re.search(r"(?:Non-2xx or 3xx responses|Socket errors): .*", run.stdout)
    if errors:
        raise BenchError(f"{server.name}: {errors[0]}")
    requests = re.search(r"(\d+) requests in ", run.stdout)
    per_second = re.search(r"Requests/sec: +([\d.]+)", run.stdout)
    if run.returncode or not requests or not per_second:
        raise BenchError(f"wrk failed on {server.name}: {' '.join((run.stderr or run.stdout).split())}")
    return Load(int(requests[1]), float(per_second[1]))


# --- The rows


def measure_get20(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with running(server, folder) as address:
        for number in range(1, SHORT_LIST + 1):
            add_post(server, address.port, text_of(number))
        check_list(server, address.port, SHORT_LIST)
        load(server, address.port, WARM_UP_S)
        return {"requests/s": load(server, address.port, seconds).per_second}


def measure_post(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with running(server, folder) as address:
        add_post(server, address.port, text_of(1))
        warm_up = load(server, address.port, WARM_UP_S, HERE / "post.lua")
        measured = load(server, address.port, seconds, HERE / "post.lua")
    answered = 1 + warm_up.requests + measured.requests
    stored = count_posts(folder / server.file)
    if stored < answered:
        raise BenchError(f"{server.name} answered {answered} posts with a success and has stored {stored}")
    return {"requests/s": measured.per_second}


def count_posts(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        count: int = connection.execute("SELECT count(*) FROM post").fetchone()[0]
        return count


def fill_long_list(folder: Path) -> None:
    """Let postd make its file, and put the posts into it without postd: that takes a second, not a minute."""
    with running(POSTD, folder):
        pass
    texts = ((text_of(number),) for number in range(1, LONG_LIST + 1))
    with closing(sqlite3.connect(folder / POSTD.file)) as connection, connection:
        connection.executemany("INSERT INTO post (post) VALUES (?)", texts)


def measure_list100k(server: Server, folder: Path, seconds: int) -> dict[str, float]:
    with running(server, folder) as address:
        forget_peak(address.pid)
        before = peak_mib(address.pid)
        size = check_list(server, address.port, LONG_LIST)
        added = peak_mib(address.pid) - before
        took: list[float] = []
        end = time.monotonic() + seconds
        while not took or time.monotonic() < end:
            took.append(time_long_list(server, address.port, size))
    return {"ms": median(took) * 1000, "MiB more": added}


def forget_peak(pid: int) -> None:
    """Let the kernel count a process's peak from what it has now: what the start took must not hide the list."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError as error:
        raise BenchError(f"the peak memory of a process cannot be reset: {error}") from None


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had at once (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise BenchError("the kernel tells no VmHWM of a process")
    return int(found[1]) / 1024


def time_long_list(server: Server, port: int, size: int) -> float:
    """Return the seconds from before the connection to after the last byte."""
    start = time.perf_counter()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)) as connection:
        connection.request("GET", "/post")
        response = connection.getresponse()
        received = 0
        while piece := response.read(PIECE_BYTES):
            received += len(piece)
    took = time.perf_counter() - start
    if (response.status, received) != (HTTPStatus.OK, size):
        raise BenchError(f"{server.name}: GET /post answered {response.status} with {received} bytes of {size}")
    return took


ROWS = {
    "get20": Row((POSTD, FASTAPI, FLASK), measure_get20),
    "post": Row((POSTD, FASTAPI, FLASK), measure_post),
    "list100k": Row((POSTD, BASELINE), measure_list100k, fill_long_list),
}


# --- The run

Figures = dict[str, dict[str, list[float]]]
"""Line of the table (`get20 requests/s`) → server → a figure a round."""


def measure_row(name: str, rounds: int, seconds: int) -> Figures:
    """Measure the servers of a row in turn, so that what slows the machine for a while slows all of them."""
    row = ROWS[name]
    figures: Figures = defaultdict(lambda: defaultdict(list))
    with temporary_folder() as shared:
        if row.prepare:
            row.prepare(shared)
        for number in range(1, rounds + 1):
            for server in row.servers:
                with temporary_folder() as own:
                    measured = row.measure(server, shared if row.prepare else own, seconds)
                for unit, figure in measured.items():
                    figures[f"{name} {unit}"][server.name].append(figure)
                    note = f"round {number} of {rounds}: {name} {server.name} {figure:.1f} {unit}"
                    print(note, file=sys.stderr, flush=True)
    return figures


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="postd-bench-") as folder:
        yield Path(folder)


def print_table(figures: Figures) -> None:
    """Print the medians of lines that have the same servers."""
    first, *others = next(iter(figures.values()))
    cells = [["", first, *others, *(f"{first}/{other}" for other in others)]]
    for line, by_server in figures.items():
        medians = [median(values) for values in by_server.values()]
        ratios = [ratio(medians[0], other) for other in medians[1:]]
        cells.append([line, *(f"{figure:,.1f}" for figure in medians), *ratios])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for label, *rest in cells:
        padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        print("  ".join([label.ljust(widths[0]), *padded]))
    print()


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "-"


def surroundings() -> str:
    """Return a line that tells on what the figures were measured."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    wrk = subprocess.run(["wrk", "-v"], capture_output=True, text=True, timeout=10, check=False).stdout.split()
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"{processor()}, {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        ", ".join(versions),
        " ".join(wrk[:2]),
    ]
    return "; ".join(parts)


def processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def check_tools() -> None:
    for tool in ("wrk", "taskset"):
        if shutil.which(tool) is None:
            raise BenchError(f"{tool} is not installed (Debian: packages wrk and util-linux)")
    for command in ("twistd", "uvicorn", "gunicorn"):
        command_of_this_python(command)
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise BenchError(f"cores {SERVER_CORE} (servers) and {LOAD_CORE} (load) are both needed")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure postd beside its peers.")
    parser.add_argument("--rounds", type=positive, default=5, help="measurements of each figure (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=3, help="length of a measurement (%(default)s)")
    parser.add_argument(
        "--rows", type=known_rows, default=list(ROWS), help=f"which to measure, of {','.join(ROWS)} (all)"
    )
    return parser.parse_args()


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def known_rows(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(ROWS)}")
    return names


def run(rows: Sequence[str], rounds: int, seconds: int) -> None:
    check_tools()
    about = surroundings()
    # wrk is told its core; this is for the long list, which we read ourselves.
    os.sched_setaffinity(0, {LOAD_CORE})
    tables: dict[tuple[str, ...], Figures] = defaultdict(dict)
    for name in rows:
        servers = tuple(server.name for server in ROWS[name].servers)
        tables[servers] |= measure_row(name, rounds, seconds)
    print(about, end="\n\n")
    for figures in tables.values():
        print_table(figures)


def main() -> None:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # An exception, so that every server is ended on the way out.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        run(arguments.rows, arguments.rounds, arguments.seconds)
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()

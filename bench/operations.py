"""Loads postd while it is reloaded, stopped and restarted, and while a worker is killed.

The exit status is 1 if a check failed, else 0. README.md explains the figures.
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.operating.ledger import Ledger
from bench.operating.listening import LISTENERS, Listener, wait_until_level
from bench.operating.load import Load
from bench.operating.report import Row, make_page
from bench.operating.scenarios import SCENARIOS, Scenario, Stage, counted_by
from bench.operating.server import OperatedServer
from bench.operating.tally import Outcome
from bench.report import processor
from bench.soak import OWN_REDIS, redis_beside
from bench.soaking.findings import Findings
from bench.soaking.logins import Tokens
from bench.soaking.server import SoakError

RESULTS = Path(__file__).resolve().parent / "OPERATIONS.md"
STORES = ("sqlite:postd.db", OWN_REDIS)
POSTS = 200
WARM_UP_S = 2.0
DURING_MIN_S = 2.0
LEVEL_MAX_S = 10.0


async def play(scenario: Scenario, server: OperatedServer, tokens: Tokens, *, rate: float, seconds: float) -> Row:
    """Run a scenario on a server that is not started yet, with an empty store."""
    loop = asyncio.get_running_loop()
    texts = {number: f"Post {number:06} says little, but as much as most posts do." for number in range(1, POSTS + 1)}
    server.fill("".join(json.dumps({"id": number, "post": text}) + "\n" for number, text in texts.items()))
    findings, ledger = Findings(), Ledger(texts)
    load = Load(server, ledger, tokens, findings, rate=rate)
    stage = Stage(server, load, findings)
    await asyncio.to_thread(server.start)
    listeners = [Listener(server.port, findings) for _ in range(LISTENERS)]
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        listening = [clients.create_task(listener.run()) for listener in listeners]
        await load.sign_in()
        asking = clients.create_task(load.run(ending))
        await asyncio.sleep(WARM_UP_S)
        begin_s = loop.time()
        await asyncio.sleep(seconds)
        event_s = loop.time()
        _check_outcomes(load, findings, frozenset())
        await scenario.act(stage)
        took_s = loop.time() - event_s
        await asyncio.sleep(max(0.0, event_s + DURING_MIN_S - loop.time()))
        after_s = loop.time()
        await asyncio.sleep(0.0 if scenario.ends else seconds)
        ending.set()
        await asking
        _check_outcomes(load, findings, scenario.allowed)
        if scenario.ends:
            await asyncio.to_thread(server.start)
        await _check_listeners(scenario, listeners, ledger, findings)
        for task in listening:
            task.cancel()
    if scenario.counted:
        await _check_counts(load, server, findings)
    await asyncio.to_thread(server.stop)
    for promise, example in ledger.problems(await asyncio.to_thread(server.read_posts)):
        findings.broke(promise, example)
    for line in server.log.splitlines():
        if "Traceback" in line or '" 500 ' in line:
            findings.broke("no traceback is logged", line)
    tally = load.tally
    doomed = tally.outcomes[Outcome.DOOMED]
    if doomed:
        stage.notes.append(f"{doomed} requests were in progress on the killed worker")
    if tally.closed_idle:
        stage.notes.append(f"{tally.closed_idle} kept connections were found closed before a request was sent")
    return Row(
        scenario.what,
        server.workers,
        server.store_name,
        tally,
        tally.waited(begin_s, event_s),
        tally.waited(event_s, after_s),
        tally.waited(after_s, loop.time()),
        took_s,
        stage.notes,
        findings.lines(),
    )


def _check_outcomes(load: Load, findings: Findings, allowed: frozenset[Outcome]) -> None:
    for outcome in Outcome:
        if outcome not in {Outcome.ANSWERED, Outcome.CROSSED, *allowed}:
            for example in load.tally.examples[outcome]:
                findings.broke(f"no request has the outcome: {outcome.value}", example)


async def _check_listeners(scenario: Scenario, listeners: list[Listener], ledger: Ledger, findings: Findings) -> None:
    if not await wait_until_level(listeners, LEVEL_MAX_S):
        last = sorted(listener.heard for listener in listeners)
        findings.broke("all event streams have the same events", f"ids of the last events: {last}")
    for listener in listeners:
        missed = set(ledger.added.values()) - listener.texts
        if missed:
            findings.broke("each change is in the event streams", f"{len(missed)} of {len(ledger.added)} posts missing")
        if listener.ends["cut"] and Outcome.DOOMED not in scenario.allowed:
            findings.broke("event streams end with their last chunk", f"{listener.ends['cut']} were cut")


async def _check_counts(load: Load, server: OperatedServer, findings: Findings) -> None:
    try:
        reported = counted_by(await asyncio.to_thread(server.read_metrics))
    except SoakError as error:
        findings.broke("/metrics has the counts of the clients", str(error))
        return
    counted = load.tally.answers
    for method, status in {*reported, *counted}:
        by_server, by_clients = reported.get((method, status), 0), counted[method, status]
        if by_server != by_clients:
            example = f"{method} {status}: {by_server} by the server, {by_clients} by its clients"
            findings.broke("/metrics has the counts of the clients", example)


async def play_all(names: list[str], options: argparse.Namespace) -> list[Row]:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    rows = []
    for name in names:
        scenario = SCENARIOS[name]
        for store in STORES if name == "restart" else STORES[:1]:
            for workers in scenario.workers:
                with _server(scenario, workers, store, cores) as (server, tokens):
                    row = await play(scenario, server, tokens, rate=options.rate, seconds=options.seconds)
                print(" | ".join(row.cells), *row.notes, *row.broken, sep="\n  ", file=sys.stderr, flush=True)
                rows.append(row)
    return rows


@contextmanager
def _server(scenario: Scenario, workers: int, store: str, cores: list[int]) -> Iterator[tuple[OperatedServer, Tokens]]:
    with (
        tempfile.TemporaryDirectory(prefix="postd-operations-") as name,
        Tokens.make_issuer() as issuer,
        redis_beside(Path(name), store) as url,
    ):
        # With one process the server has the first core, and the load the last; with several they share.
        own = set(cores[:1]) if workers == 1 else set(cores)
        server = OperatedServer(
            Path(name), store=url, issuer=issuer.issuer, workers=workers, cores=own, activated=scenario.activated
        )
        with closing(server):
            yield server, Tokens(issuer)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Load postd during reloads, stops, restarts and the end of a worker.")
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second (%(default)g)")
    parser.add_argument("--seconds", type=float, default=4.0, help="load before, and after, the event (%(default)g)")
    names = ",".join(SCENARIOS)
    parser.add_argument("--scenarios", default=names, help="scenarios to run, separated by commas (%(default)s)")
    parser.add_argument("--write", action="store_true", help="also write OPERATIONS.md")
    options = parser.parse_args()
    unknown = set(options.scenarios.split(",")) - set(SCENARIOS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {names}")
    return options


def main() -> None:
    options = parse_arguments()
    try:
        rows = asyncio.run(play_all(options.scenarios.split(","), options))
    except SoakError as error:
        sys.exit(f"operations: {error}")
    how = f"`python bench/{shlex.join(['operations.py', *sys.argv[1:]])}`, {datetime.now(UTC):%Y-%m-%d}"
    where = [
        f"{processor()}, {os.cpu_count()} cores; {platform.system()} {platform.release()}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        f"{options.rate:g} requests a second",
    ]
    page = make_page(rows, how, where)
    print(page)
    if options.write:
        RESULTS.write_text(page)
    sys.exit(1 if any(row.broken for row in rows) else 0)


if __name__ == "__main__":
    main()

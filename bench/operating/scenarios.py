"""Scenarios of operation under load: reloads, stops, restarts, and a killed worker."""

import asyncio
import re
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct, field

from bench.operating.load import Load, Request
from bench.operating.server import OperatedServer
from bench.operating.tally import Outcome
from bench.soaking.findings import Findings
from bench.soaking.logins import basic_field
from bench.soaking.server import GUEST
from tests.helpers import make_certificate

IN_A_ROW = 8
"""The number of new connections in a row that must see a change before it counts as in force. With two workers, the
kernel chooses one for each connection: 8 of them miss a worker once in some hundred times."""
TAKEN_UP_MAX_S = 10.0
ASK_EVERY_S = 0.02
SETTLED_S = 0.5
"""The time from the log line of a SIGHUP until all processes have reloaded, if that cannot be seen from outside."""
GRACE_S = 10.0
"""The default of `shutdown_grace`."""
TWO_AGAIN_MAX_S = 30.0
GONE_FOR_S = 0.5
"""The time that the load continues after the server has stopped."""


class Stage(Struct):
    """The server and the load of a scenario; `notes` are for the report."""

    server: OperatedServer
    load: Load
    findings: Findings
    notes: list[str] = field(default_factory=list)


class Scenario(Struct, frozen=True):
    """A scenario.

    Args:
        what: its name in the report.
        act: runs it; requests that are due before it returns count as during the scenario.
        workers: the numbers of processes to run it with.
        activated: whether the server is started by socket activation.
        ends: whether the server is stopped at its end.
        allowed: outcomes of requests that are allowed besides an expected response.
        counted: whether the metrics of the server must equal the client's counts, which needs the same processes
            throughout.
    """

    what: str
    act: Callable[[Stage], Awaitable[None]]
    workers: tuple[int, ...] = (1, 2)
    activated: bool = False
    ends: bool = False
    allowed: frozenset[Outcome] = frozenset()
    counted: bool = True


async def reload_nothing(stage: Stage) -> None:
    before = stage.server.worker_pids()
    await _hang_up(stage)
    await asyncio.sleep(SETTLED_S)
    if stage.server.worker_pids() != before:
        stage.findings.broke("a reload keeps all processes", f"{before} became {stage.server.worker_pids()}")


async def reload_rules(stage: Stage) -> None:
    added = '\n[[page]]\npath = "/added"\nschemes = ["basic"]\n[[bearer]]'
    stage.server.settings_file.write_text(stage.server.settings.replace("\n[[bearer]]", added))
    await _hang_up(stage)

    async def is_there() -> bool:
        answer = await stage.load.ask(Request("GET", "/added", (401, 404)), alone=True)
        return answer is not None and answer.status == 401

    await _wait_until(stage, "a new page", is_there)


async def reload_users(stage: Stage) -> None:
    password = secrets.token_urlsafe(12)
    await asyncio.to_thread(stage.server.replace_users, password)
    await _hang_up(stage)

    async def is_known() -> bool:
        fields = [basic_field(GUEST, password)]
        answer = await stage.load.ask(Request("GET", "/any", (200, 401), fields), alone=True)
        return answer is not None and answer.status == 200

    await _wait_until(stage, "a new password", is_known)


async def reload_certificate(stage: Stage) -> None:
    one = Request("GET", "/post/1", (200,))
    with await stage.load.open_tls() as old:
        await stage.load.ask_over(old, one)
        make_certificate(stage.server.folder)
        await _hang_up(stage)

        async def is_new() -> bool:
            with await stage.load.open_tls() as link:
                await stage.load.ask_over(link, one)
                return link.fingerprint != old.fingerprint

        await _wait_until(stage, "a new certificate", is_new)
        if await old.has_ended():
            stage.findings.broke("a reload keeps connections", "a TLS connection was closed")
        else:
            await stage.load.ask_over(old, one)


async def reload_broken(stage: Stage) -> None:
    before = stage.server.log.count("#error]")
    stage.server.settings_file.write_text(stage.server.settings.replace("workers =", "wrokers ="))
    await _hang_up(stage)
    await asyncio.sleep(SETTLED_S)
    lines = [line for line in stage.server.log.splitlines() if "#error]" in line][before:]
    if len(lines) != 1 or "wrokers" not in lines[0]:
        stage.findings.broke("a wrong setting is logged in one line", f"{len(lines)} lines: {lines[:3]}")
    stage.server.settings_file.write_text(stage.server.settings)


async def stop(stage: Stage) -> None:
    started = time.monotonic()
    status = await asyncio.to_thread(stage.server.stop)
    took_s = time.monotonic() - started
    stage.notes.append(f"ended after {took_s:.1f} s")
    _check_end(stage, status, took_s)
    await asyncio.sleep(GONE_FOR_S)


async def kill_a_worker(stage: Stage) -> None:
    before = stage.server.worker_pids()
    ready = stage.server.log.count("is ready, replacing")
    started = time.monotonic()
    stage.load.doomed_ports |= stage.server.kill_worker(before[0])
    while stage.server.log.count("is ready, replacing") == ready:
        if time.monotonic() > started + TWO_AGAIN_MAX_S:
            stage.findings.broke("a killed worker is replaced", f"not within {TWO_AGAIN_MAX_S:.0f} s")
            return
        await asyncio.sleep(ASK_EVERY_S)
    stage.notes.append(f"two workers again after {time.monotonic() - started:.1f} s")
    if len(stage.server.worker_pids()) != len(before):
        stage.findings.broke("the number of workers is the same", str(stage.server.worker_pids()))


async def restart(stage: Stage) -> None:
    started = time.monotonic()
    status = await asyncio.to_thread(stage.server.stop)
    took_s = time.monotonic() - started
    _check_end(stage, status, took_s)
    await asyncio.to_thread(stage.server.start)
    stage.notes.append(f"ended after {took_s:.1f} s, back after {time.monotonic() - started:.1f} s")


SCENARIOS: Mapping[str, Scenario] = {
    "reload": Scenario("SIGHUP, nothing has changed", reload_nothing),
    "rules": Scenario("SIGHUP, another page", reload_rules),
    "users": Scenario("SIGHUP, another password", reload_users),
    "certificate": Scenario("SIGHUP, another certificate", reload_certificate),
    "broken": Scenario("SIGHUP, a broken settings file", reload_broken),
    "stop": Scenario("SIGTERM", stop, ends=True, allowed=frozenset({Outcome.REFUSED}), counted=False),
    "kill": Scenario(
        "kill -9 of a worker", kill_a_worker, workers=(2,), allowed=frozenset({Outcome.DOOMED}), counted=False
    ),
    "restart": Scenario("restart, socket activation", restart, activated=True, counted=False),
}


def _check_end(stage: Stage, status: int | None, took_s: float) -> None:
    # twistd exits in either way.
    if status not in {0, -signal.SIGTERM}:
        ended = "it had to be killed" if status is None else f"exit status {status}"
        stage.findings.broke("the server stops on SIGTERM", ended)
    if took_s > GRACE_S:
        stage.findings.broke("the server stops within shutdown_grace", f"{took_s:.1f} s")


async def _hang_up(stage: Stage) -> None:
    """Send SIGHUP, and wait for its line in the log."""
    before = stage.server.log.count("SIGHUP: ")
    stage.server.hang_up()
    deadline = time.monotonic() + TAKEN_UP_MAX_S
    while stage.server.log.count("SIGHUP: ") == before:
        if time.monotonic() > deadline:
            stage.findings.broke("SIGHUP is heard", f"no log line within {TAKEN_UP_MAX_S:.0f} s")
            return
        await asyncio.sleep(ASK_EVERY_S)


async def _wait_until(stage: Stage, what: str, is_seen: Callable[[], Awaitable[bool]]) -> None:
    """Check until a change is in force for `IN_A_ROW` new connections in a row."""
    started = time.monotonic()
    in_a_row, first_s = 0, 0.0
    while in_a_row < IN_A_ROW:
        if await is_seen():
            in_a_row += 1
            first_s = first_s if in_a_row > 1 else time.monotonic() - started
        else:
            in_a_row = 0
        if time.monotonic() > started + TAKEN_UP_MAX_S:
            stage.findings.broke("a changed file is reloaded", f"{what}: not within {TAKEN_UP_MAX_S:.0f} s")
            return
        await asyncio.sleep(ASK_EVERY_S)
    stage.notes.append(f"{what} was in force {first_s * 1000:.0f} ms after the reload was logged")


_REQUESTS = re.compile(r"^postd_http_requests_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)


def counted_by(metrics: str) -> dict[tuple[str, str], int]:
    """Return the numbers of requests in a server's metrics, by method and status, without event streams."""
    counts: dict[tuple[str, str], int] = {}
    for labels, value in _REQUESTS.findall(metrics):
        named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if named["route"] != "/post/events":
            key = named["method"], named["status"]
            counts[key] = counts.get(key, 0) + round(float(value))
    return counts

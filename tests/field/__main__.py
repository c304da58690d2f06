"""Run the entries whose result is missing or old; write the results and docs/reference/compatibility.md.

Needs root on Debian: packages of apt are installed on this machine, those of pip and npm into a folder. Results are
written after each entry, so that an interrupted run can be continued. docs/development/tests.md has the command.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Self

import httpx

from tests.field.entries import (
    FAILED,
    MAX_DAYS,
    PAGE,
    ROOT,
    Client,
    Entry,
    Other,
    Result,
    make_page,
    read_clients,
    read_others,
    read_results,
    write_results,
)
from tests.field.recorder import Exchange, Recorder
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user

FOLDER = Path("/var/cache/postd-field")
"""For packages, by default."""

NAME, PASSWORD = "alice", "secret-of-alice"
COMMAND_MAX_S, EVENTS_MAX_S, INSTALL_MAX_S, TEST_MAX_S = 20, 8, 600, 300

SETTINGS = """
store = "memory:"
users = "users"
page = [
    {{path = "/basic", schemes = ["basic"]}},
    {{path = "/digest", schemes = ["digest"]}},
    {{path = "/mixed", schemes = ["digest", "basic"]}},
]
digest = {{algorithms = {algorithms}}}
throttle = {{failures = 1000000, address_failures = 1000000, account_failures = 1000000}}
"""

ALGORITHMS = {"MD5": ["MD5"], "SHA-256": ["SHA-256"], "both": ["SHA-256", "MD5"]}
WHERE = {
    "basic": ("both", "/basic"),
    "md5": ("MD5", "/digest"),
    "sha256": ("SHA-256", "/digest"),
    "both": ("both", "/digest"),
    "all": ("both", "/mixed"),
    "form": ("both", "/home"),
    "events": ("both", "/post/events"),
}
"""The daemon and the page of each probe."""


class FieldError(Exception):
    """An entry could not be run; `str()` is the reason."""


def shell(command: str, cwd: Path, environment: Mapping[str, str], seconds: float = INSTALL_MAX_S) -> str:
    """Run a shell command; return its output.

    Raises:
        FieldError: it failed.
    """
    process = start(command, cwd, environment)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        raise FieldError(f"{command}: not done after {seconds} s") from None
    if process.returncode:
        raise FieldError(f"{command}: {output[-1500:]}")
    return output


def start(command: str, cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-c", command],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def install(entry: Entry, folder: Path) -> dict[str, str]:
    """Install the packages of an entry; return the variables with which they are found.

    Raises:
        FieldError: a package cannot be installed.
    """
    here = folder / re.sub(r"\W+", "-", entry.name)
    python, node = here / "python", here / "node"
    environment = {
        "HERE": str(here),
        "ROOT": str(ROOT),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(python),
        "NODE_PATH": str(node / "node_modules"),
        "PATH": f"{python / 'bin'}:{node / 'node_modules/.bin'}:{os.environ['PATH']}:/usr/sbin",
        "LC_ALL": "C.UTF-8",
    }
    made = here / f"made-{entry.definition}"
    if made.exists():
        return environment
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    if entry.apt:
        packages = " ".join(entry.apt)
        install_apt = f"apt-get install -y -qq --no-install-recommends {packages}"
        shell(f"dpkg -s {packages} >/dev/null 2>&1 || {install_apt}", here, {"DEBIAN_FRONTEND": "noninteractive"})
    if entry.pip:
        shell(f"{sys.executable} -m pip install -q --target {python} {' '.join(entry.pip)}", here, {})
    if entry.npm:
        shell(f"npm install --silent --no-audit --no-fund --prefix {node} {' '.join(entry.npm)}", here, {})
    if isinstance(entry, Client):
        for name, text in entry.files.items():
            (here / name).write_text(text)
        if entry.build:
            shell(entry.build, here, environment)
    made.touch()
    return environment


def version_of(entry: Entry, environment: Mapping[str, str]) -> str:
    said = shell(entry.version, Path(environment["HERE"]), environment, COMMAND_MAX_S)
    found = re.search(r"\d+(?:\.\d+)+(?:(?:a|b|rc|dev|post)\d+)?", said)
    if found is None:
        raise FieldError(f"{entry.version}: no version in {said!r}")
    return found[0]


class Servers:
    """The daemons that clients are tried with, one for each choice of algorithms; they end with the `with` block."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self.daemons: dict[str, Daemon] = {}

    def __enter__(self) -> Self:
        folder = Path(self._running.enter_context(tempfile.TemporaryDirectory()))
        for number, (name, algorithms) in enumerate(ALGORITHMS.items()):
            here = folder / str(number)
            here.mkdir()
            run_postd_user(here / "users", "add", NAME, PASSWORD)
            (here / "postd.toml").write_text(SETTINGS.format(algorithms=algorithms))
            self.daemons[name] = self._running.enter_context(Daemon(here, "-c", "postd.toml"))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def probe(self, client: Client, probe: str, environment: Mapping[str, str]) -> tuple[str, str]:
        """Run the command of a probe; return the outcome, and what the client printed."""
        name, path = WHERE[probe]
        daemon = self.daemons[name]
        with Recorder(daemon.port) as recorder, tempfile.TemporaryDirectory() as home:
            base = f"http://127.0.0.1:{recorder.port}"
            variables = {"URL": base + path, "BASE": base, "HOST": f"127.0.0.1:{recorder.port}", "HOME": home}
            variables |= {"PORT": str(recorder.port), "NAME": NAME, "PASSWORD": PASSWORD, "PAGE": path}
            process = start(client.commands[probe], Path(environment["HERE"]), {**environment, **variables})
            try:
                if probe == "events":
                    return self._read_events(process, daemon, recorder)
                with suppress(subprocess.TimeoutExpired):
                    output, _ = process.communicate(timeout=COMMAND_MAX_S)
                    return outcome(probe, recorder.exchanges), output
                return outcome(probe, recorder.exchanges), "not done in time"
            finally:
                end(process)

    def _read_events(self, process: subprocess.Popen[str], daemon: Daemon, recorder: Recorder) -> tuple[str, str]:
        """Add a post when the client listens; it has to print its text."""
        assert process.stdout is not None
        text = f"event {time.monotonic_ns()}"
        deadline = time.monotonic() + COMMAND_MAX_S
        while not any(exchange.status == 200 for exchange in recorder.exchanges):
            if time.monotonic() > deadline or process.poll() is not None:
                break
            time.sleep(0.05)
        httpx.post(f"{daemon.url}/post", json={"post": text}).raise_for_status()
        os.set_blocking(process.stdout.fileno(), False)
        said, deadline = b"", time.monotonic() + EVENTS_MAX_S
        while time.monotonic() < deadline and text.encode() not in said:
            with suppress(BlockingIOError):
                said += os.read(process.stdout.fileno(), 65536)
            time.sleep(0.05)
        return "yes" if text.encode() in said else FAILED, said.decode(errors="replace")


def outcome(probe: str, exchanges: Sequence[Exchange]) -> str:
    """Return what a client has used, "yes" where there is no choice, or `FAILED`."""
    if probe == "form":
        seen = any(b"session=" in one.fields and one.status == 200 for one in exchanges if one.target == "/home")
        return "yes" if seen else FAILED
    # A page has no more methods than GET and HEAD, and nothing below it: 404 and 405 come after authentication.
    used = [one.credentials for one in exchanges if one.credentials and one.status in {200, 304, 404, 405}]
    if not used:
        return FAILED
    choice = probe in {"both", "all"} or used[-1] not in {"Basic", "MD5", "SHA-256"}
    return used[-1] if choice else "yes"


def run_client(client: Client, servers: Servers, environment: Mapping[str, str]) -> dict[str, str]:
    outcomes = {}
    for probe in client.commands:
        outcomes[probe], output = servers.probe(client, probe, environment)
        if outcomes[probe] != client.expected[probe]:
            say(f"{client.name}: {probe}: {outcomes[probe]}, expected {client.expected[probe]}: {output[-600:]}")
    return outcomes


def run_other(other: Other, environment: Mapping[str, str]) -> dict[str, str]:
    found = {name: value.replace("$HERE", environment["HERE"]) for name, value in other.environment.items()}
    if other.program:
        program = shutil.which(other.program.replace("$HERE", environment["HERE"]), path=environment["PATH"])
        if program is None:
            raise FieldError(f"no program {other.program}")
        found["POSTD_FIELD_PROGRAM"] = program
    tests = " ".join(f"'{test}'" for test in other.test)
    # The packages of the entry are for its program, not for pytest.
    plain = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    said = shell(f"{sys.executable} -m pytest -q -n 0 {tests}", ROOT, {**plain, **found}, TEST_MAX_S)
    passed = re.search(r"(\d+) passed", said)
    if passed is None or "skipped" in said:
        raise FieldError(said[-1500:])
    return {"tests": passed[0]}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def is_current(entry: Entry, result: Result | None, today: date) -> bool:
    """Return whether a result is of the entry as it is now, and not old."""
    if result is None or result.definition != entry.definition:
        return False
    return (today - date.fromisoformat(result.day)).days <= MAX_DAYS


def run_entry(entry: Entry, servers: Servers, folder: Path) -> Result:
    environment = install(entry, folder)
    version = version_of(entry, environment)
    if isinstance(entry, Client):
        outcomes = run_client(entry, servers, environment)
    else:
        assert isinstance(entry, Other)
        outcomes = run_other(entry, environment)
    return Result(f"{datetime.now(UTC):%Y-%m-%d}", entry.definition, version, outcomes)


def choose(entries: Iterable[Entry], options: argparse.Namespace, results: Mapping[str, Result]) -> list[Entry]:
    today = datetime.now(UTC).date()
    if options.only:
        return [entry for entry in entries if entry.name in options.only]
    return [entry for entry in entries if not is_current(entry, results.get(entry.name), today)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Run other programs with postd; write docs/reference/compatibility.md."
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="the entry of this name, also if it has a result"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="%(default)s")
    options = parser.parse_args()
    clients, others = read_clients(), read_others()
    entries: list[Entry] = [*clients, *others]
    if unknown := {*(options.only or ())} - {entry.name for entry in entries}:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(entry.name for entry in entries)}")
    names = {entry.name for entry in entries}
    results = {name: result for name, result in read_results().items() if name in names}
    unexpected = False
    with Servers() as servers:
        for entry in choose(entries, options, results):
            try:
                result = results[entry.name] = run_entry(entry, servers, options.folder)
            except FieldError as error:
                say(f"{entry.name}: not run: {error}")
                results.pop(entry.name, None)
                unexpected = True
                continue
            unexpected |= isinstance(entry, Client) and result.outcomes != entry.expected
            say(f"{entry.name} {result.version}: {', '.join(f'{k} {v}' for k, v in result.outcomes.items())}")
            write_results(results)
    write_results(results)
    PAGE.write_text(make_page(clients, others, results))
    sys.exit(unexpected)


if __name__ == "__main__":
    main()

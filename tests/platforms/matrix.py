"""Run README's two commands on fresh systems, and the tests of the stores with their Redis and Valkey.

Each system is a folder that debootstrap makes once; each cell of the table runs in an overlay over it, in namespaces
of its own, with the certificates of pip's settings. Results are stored by cell, with their commit, so that an
interrupted run can be continued; cells of an earlier commit are run again, unless `--earlier` keeps them. Needs root on
Linux, debootstrap, git, unshare, overlayfs, and port 8080 to be free. docs/development/tests.md has the command.
"""

import argparse
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.report import processor, table

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "PLATFORMS.md"

FOLDER = Path("/var/cache/postd-platforms")
"""For systems, overlays and logs, by default."""

STORE_TESTS = "tests/store tests/integration/test_redis.py tests/system/test_redis.py tests/system/test_redis_tls.py"

SERVE_MAX_S, COMMAND_MAX_S = 300, 3600

SYSTEM_MAX_DAYS = 30
"""The age at which an installed system is replaced by a new one."""


class User(Struct, frozen=True):
    """The user who runs the commands: name, umask, environment."""

    name: str
    umask: str = "022"
    environment: tuple[str, ...] = ("LANG=C.UTF-8",)

    @property
    def home(self) -> str:
        return f"/home/{self.name}"

    @property
    def temporary_folder(self) -> str:
        """The folder of `TMPDIR`, if it is set."""
        return next((line.partition("=")[2] for line in self.environment if line.startswith("TMPDIR=")), "")


USER = User("user")
_LONG_NAME = "a-user-with-a-name-of-32-letters"
UNUSUAL_USER = User(
    _LONG_NAME, "000", ("LANG=de_DE.UTF-8", "TZ=<+1245>-12:45", f"TMPDIR=/home/{_LONG_NAME}/{'t' * 80}")
)


class System(Struct, frozen=True):
    """A release of a distribution, as a minimal installation.

    `python` is the version of its `python3`, or of the package `package` if given.
    """

    name: str
    suite: str
    python: str
    package: str = ""
    user: User = USER
    servers: tuple[str, ...] = ("redis-server", "valkey-server")


SYSTEMS = (
    System("Debian 12", "bookworm", "3.11", servers=("redis-server",)),
    System("Debian 13", "trixie", "3.13"),
    System("Debian 13, unusual user", "trixie", "3.13", user=UNUSUAL_USER, servers=()),
    System("Debian 14 (testing)", "forky", "3.14"),
    System("Debian 14 (testing)", "forky", "3.15", package="python3.15"),
)

BARE = "bare"
"""The part of a row for README's commands; the other parts are names of servers."""


class Cell(Struct, frozen=True):
    system: System
    part: str

    @property
    def slug(self) -> str:
        user = "-unusual" if self.system.user is UNUSUAL_USER else ""
        return f"{self.system.suite}-{self.system.python}{user}-{self.part}"


class Counts(Struct, frozen=True):
    """The outcome of a test run: numbers of tests, seconds, a line for each failed test, and the last lines."""

    numbers: dict[str, int]
    seconds: float
    failed: list[str]
    end: str

    def __str__(self) -> str:
        numbers = ", ".join(f"{count:,} {word}" for word, count in self.numbers.items()) or "no result"
        return f"{numbers} in {self.seconds / 60:.1f} min"

    @property
    def is_green(self) -> bool:
        return bool(self.numbers) and not {"failed", "error", "errors"} & {*self.numbers}


class Result(Struct, frozen=True):
    """The result of a cell; `serving_s` is the time from command 1 to the first response, 0 where it was not run."""

    commit: str
    day: str
    version: str
    tests: Counts
    serving_s: float = 0.0


class MatrixError(Exception):
    """A cell could not be run; `str()` is the reason."""


# --- A fresh system


class Machine:
    """A system in an overlay, with an ordinary user who has a clone of the repository.

    Args:
        cell: the cell that it runs.
        folder: for systems, overlays and logs.
        binds: files and folders of this machine to mount, besides the certificates of pip's settings.
    """

    def __init__(self, cell: Cell, folder: Path, binds: Sequence[Path] = ()) -> None:
        self._base = folder / "systems" / cell.system.suite
        self._folder = folder / "machines" / cell.slug
        self._binds = [*binds, *certificates(run([sys.executable, "-m", "pip", "config", "list"]))]
        self._user = cell.system.user
        self.log = folder / "logs" / f"{cell.slug}.log"

    def make(self, system: System, commit: str) -> None:
        """Install the system, its user, this machine's settings of pip, and the clone.

        It waits while another process has a machine for the same cell.
        """
        self._lock = take_lock(self._folder)
        debootstrap(system, self._base)
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("upper", "work", "root"):
            (self._folder / name).mkdir(parents=True)
        self.log.parent.mkdir(exist_ok=True)
        self.log.write_text("")
        etc, home = self._folder / "upper" / "etc", self._folder / "upper" / self._user.home[1:]
        etc.mkdir()
        home.mkdir(parents=True)
        for path in (Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf")):
            with suppress(FileNotFoundError):
                shutil.copy(path, etc / path.name)
        settings = Path.home() / ".config" / "pip" / "pip.conf"
        if settings.exists():
            (home / ".config" / "pip").mkdir(parents=True)
            shutil.copy(settings, home / ".config" / "pip" / "pip.conf")
        run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(home / "postd")])
        run(["git", "-C", str(home / "postd"), "checkout", "--quiet", "--detach", commit])
        name = self._user.name
        self.run(f"useradd --shell /bin/bash {name} && chown -R {name}: {self._user.home}", as_root=True)
        if self._user.temporary_folder:
            self.run(f"mkdir {self._user.temporary_folder}")
        if self._user is UNUSUAL_USER:
            self.install("locales")
            self.run("echo de_DE.UTF-8 UTF-8 >/etc/locale.gen && locale-gen", as_root=True)
        if system.package:
            self.run(f"ln -s /usr/bin/{system.package} /usr/local/bin/python3", as_root=True)

    def install(self, *packages: str) -> None:
        # A mirror may lag behind for longer than the lists of testing are valid.
        update = "apt-get update -qq -o Acquire::Check-Valid-Until=false"
        install = f"apt-get install -y -qq --no-install-recommends {shlex.join(packages)}"
        self.run(f"{update} && DEBIAN_FRONTEND=noninteractive {install}", as_root=True)

    def run(self, command: str, *, as_root: bool = False, check: bool = True) -> str:
        """Run a shell command; return its output.

        Raises:
            MatrixError: it failed, unless `check` is false, or took longer than `COMMAND_MAX_S`.
        """
        with self.started(command, as_root=as_root) as process:
            try:
                output, _ = process.communicate(timeout=COMMAND_MAX_S)
            except subprocess.TimeoutExpired:
                raise MatrixError(f"{command}: not done after {COMMAND_MAX_S} s") from None
        with self.log.open("a") as log:
            log.write(f"$ {command}\n{output}\n")
        if check and process.returncode:
            raise MatrixError(f"{command}: {output[-500:]}")
        return output

    @contextmanager
    def started(self, command: str, *, as_root: bool = False) -> Iterator[subprocess.Popen[str]]:
        """Start a shell command; kill its remaining processes at the end."""
        root = self._folder / "root"
        overlay = f"lowerdir={self._base},upperdir={self._folder / 'upper'},workdir={self._folder / 'work'}"
        lines = [
            f"mount -t overlay overlay -o {shlex.quote(overlay)} {shlex.quote(str(root))}",
            *_mounts(root, self._binds),
        ]
        user = User("root") if as_root else self._user
        command = f"umask {user.umask}; {command}"
        inside = ["chroot", str(root), "/usr/bin/env", "-i", *_environment(user), "/bin/bash", "-c", command]
        if not as_root:
            inside[1:1] = [f"--userspec={user.name}:{user.name}"]
        # The shell stays as the first process of its namespace: unshare could not kill a process of another user.
        script = f"set -e; {'; '.join(lines)}; cd /; {shlex.join(inside)} || exit $?"
        name_spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script]
        process = subprocess.Popen(
            name_spaces, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def take_lock(folder: Path) -> int:
    """Wait until this process alone uses a folder; return a descriptor, until whose close it does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def debootstrap(system: System, base: Path) -> None:
    """Install a minimal system with git and all Pythons of its suite in a folder, unless that has a recent one."""
    lock = take_lock(base)
    try:
        _debootstrap(system, base)
    finally:
        os.close(lock)


def _debootstrap(system: System, base: Path) -> None:
    pythons = dict.fromkeys(one.package or "python3" for one in SYSTEMS if one.suite == system.suite)
    packages = ",".join(["git", "ca-certificates", *(f"{python},{python}-venv" for python in pythons)])
    installed = base.with_suffix(".packages")
    with suppress(FileNotFoundError):
        age_s = time.time() - installed.stat().st_mtime
        if installed.read_text() == packages and age_s < SYSTEM_MAX_DAYS * 86400:
            return
    shutil.rmtree(base, ignore_errors=True)
    making = base.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    scripts = Path("/usr/share/debootstrap/scripts")
    script = scripts / system.suite
    if not script.exists():  # a release newer than this debootstrap
        script = scripts / "sid"
    debians_mirror = ""
    options = ["--variant=minbase", f"--include={packages}"]
    run(["debootstrap", *options, system.suite, str(making), debians_mirror, str(script)])
    making.rename(base)
    installed.write_text(packages)


def _mounts(root: Path, binds: Iterable[Path]) -> Iterator[str]:
    yield f"mount -t proc proc {shlex.quote(f'{root}/proc')}"
    for path in (Path("/dev"), *binds):
        inside, folder = (shlex.quote(f"{root}{one}") for one in (path, path.parent))
        make = f"mkdir -p {inside}" if path.is_dir() else f"mkdir -p {folder}; touch {inside}"
        yield f"{make}; mount --rbind {shlex.quote(str(path))} {inside}"


def certificates(settings: str) -> list[Path]:
    """Return the files of certificates in the output of `pip config list`."""
    named = re.findall(r"cert='(/.+)'$", settings, re.MULTILINE)
    return [path for path in map(Path, dict.fromkeys(named)) if path.exists()]


def _environment(user: User) -> list[str]:
    home = "/root" if user.name == "root" else user.home
    given = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("PIP_")]
    return [f"HOME={home}", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *user.environment, *given]


def run(command: Sequence[str]) -> str:
    """Run a command on this machine; return its output.

    Raises:
        MatrixError: it failed.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MatrixError(f"{shlex.join(command)}: {done.stdout[-500:]}")
    return done.stdout


# --- A cell


def commands() -> tuple[str, str]:
    """Return README's two commands: the one that serves, and the one that tests."""
    serve, test = re.findall(r"^```sh\n(.*)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)[:2]
    return serve, test


def run_cell(cell: Cell, machine: Machine, commit: str) -> Result:
    """Run a cell on its new machine."""
    serve, test = commands()
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    if cell.part == BARE:
        version = machine.run("python3 -c 'import platform; print(platform.python_version())'").strip()
        serving_s = _measure_serving(machine, serve)
        return Result(commit, day, f"Python {version}", _count(machine, test), serving_s)
    server = cell.part
    machine.install(server, "openssl")
    version = _read_version(machine.run(f"{server} --version"))
    environment = f"POSTD_REDIS_SERVER=/usr/bin/{server}"
    return Result(commit, day, version, _count(machine, f"export {environment}; {test} {STORE_TESTS}"))


def _read_version(shown: str) -> str:
    name, version = re.findall(r"^(\w+) server v=(\S+)", shown)[0]
    return f"{name} {version}"


def _measure_serving(machine: Machine, command: str) -> float:
    start = time.monotonic()
    with machine.started(f"cd ~/postd && {command}") as process:
        while time.monotonic() < start + SERVE_MAX_S and process.poll() is None:
            with suppress(OSError), urllib.request.urlopen("http://127.0.0.1:8080/post", timeout=5) as answer:
                if answer.status == 200:
                    return time.monotonic() - start
            time.sleep(0.1)
        process.kill()
        raise MatrixError(f"{command}: nothing was served: {process.communicate()[0][-500:]}")


def _count(machine: Machine, command: str) -> Counts:
    start = time.monotonic()
    output = machine.run(f"cd ~/postd && {command}", check=False)
    return read_counts(output, time.monotonic() - start)


def read_counts(output: str, seconds: float) -> Counts:
    """Read the output of `pytest -q`: its last line of counts, and the lines of failed tests."""
    lines = output.splitlines()
    sums = [line.partition(" in ")[0] for line in lines if re.match(r"\d+ \w+.* in [\d.]+s", line)]
    numbers = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", sums[-1] if sums else "")}
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return Counts(numbers, seconds, failed, "\n".join(lines[-8:]))


# --- The table

INTRODUCTION = """\
`python -m tests.platforms.matrix --write` made this table. It ran README's two commands as an ordinary user, in a clone
on a bare system, and the tests of the stores and of both Redis samples in `etc/` against the servers of that system."""


def make_page(cells: Sequence[Cell], results: Mapping[str, Result]) -> str:
    """Return the table as Markdown; a cell without a result is "not run"."""
    rows = [("system", "Python", "serves after", "README's tests", "stores on Redis", "stores on Valkey")]
    for system in dict.fromkeys(cell.system for cell in cells):
        bare, redis, valkey = (results.get(Cell(system, part).slug) for part in (BARE, "redis-server", "valkey-server"))
        rows.append(
            (
                system.name,
                bare.version.removeprefix("Python ") if bare else system.python,
                f"{bare.serving_s:.0f} s" if bare else "not run",
                str(bare.tests) if bare else "not run",
                f"{redis.version}: {redis.tests}" if redis else _absent(system, "redis-server"),
                f"{valkey.version}: {valkey.tests}" if valkey else _absent(system, "valkey-server"),
            )
        )
    red = [(cell.slug, results[cell.slug]) for cell in cells if cell.slug in results]
    failed = [f"- {slug}: {line}" for slug, result in red for line in result.tests.failed or _unfinished(result)]
    user = UNUSUAL_USER
    days = " and ".join(sorted({result.day for result in results.values()}))
    commits = ", ".join(sorted({result.commit[:10] for result in results.values()}))
    parts = [
        "# Platforms",
        INTRODUCTION,
        "\n".join(
            [
                f"- {processor()}, {os.cpu_count()} cores; {days or 'not run'}; commit {commits}",
                "- systems are chroots of `debootstrap --variant=minbase` with git and the Python, with venv",
                f"- the unusual user: `umask {user.umask}; {' '.join(user.environment)}`, in {user.home}",
                f"- tests of the stores: `{STORE_TESTS}`",
            ]
        ),
        table(rows),
        "## What failed",
        "\n".join(failed) or "Nothing.",
    ]
    return "\n\n".join(parts) + "\n"


def _absent(system: System, server: str) -> str:
    return "not run" if server in system.servers else "not in it"


def _unfinished(result: Result) -> list[str]:
    return [] if result.tests.is_green else [result.tests.end]


def parse_arguments(cells: Sequence[Cell]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run README's commands and the tests of the stores on fresh systems.")
    slugs = [cell.slug for cell in cells]
    parser.add_argument("cells", nargs="*", default=slugs, metavar="CELL", help=f"of {', '.join(slugs)}; all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="%(default)s")
    parser.add_argument("--bind", type=Path, action="append", default=[], help="a folder that systems have, too")
    parser.add_argument("--again", action="store_true", help="run cells that have a result, too")
    parser.add_argument("--earlier", action="store_true", help="keep results of earlier commits")
    parser.add_argument("--write", action="store_true", help="write bench/PLATFORMS.md, too")
    options = parser.parse_args()
    unknown = {*options.cells} - {*slugs}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(slugs)}")
    return options


def main() -> None:
    cells = [Cell(system, part) for system in SYSTEMS for part in (BARE, *system.servers)]
    options = parse_arguments(cells)
    commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True).strip()
    kept = options.folder / "results"
    kept.mkdir(parents=True, exist_ok=True)
    files = {cell.slug: kept / f"{cell.slug}.json" for cell in cells}
    results = {
        slug: msgspec.json.decode(file.read_bytes(), type=Result) for slug, file in files.items() if file.exists()
    }
    if not options.earlier:
        results = {slug: result for slug, result in results.items() if result.commit == commit}
    for cell in cells:
        if cell.slug not in options.cells or (cell.slug in results and not options.again):
            continue
        machine = Machine(cell, options.folder, options.bind)
        try:
            machine.make(cell.system, commit)
            result = run_cell(cell, machine, commit)
        except MatrixError as error:
            result = Result(commit, f"{datetime.now(UTC):%Y-%m-%d}", "", Counts({}, 0.0, [], str(error)))
        results[cell.slug] = result
        files[cell.slug].write_bytes(msgspec.json.encode(result))
        machine.remove()
        print(f"{cell.slug}: {result.version}, {result.tests}; log: {machine.log}", file=sys.stderr, flush=True)
    page = make_page(cells, results)
    print(page)
    if options.write:
        RESULTS.write_text(page)
    sys.exit(0 if all(result.tests.is_green for result in results.values()) else 1)


if __name__ == "__main__":
    main()

import gc
import importlib.metadata
import os
import signal
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import IS_THOROUGH, NOT_ROOT, PATIENCE_S, InMemoryApi, make_certificate, make_socket_folder
from tests.redis_server import NO_SERVER, REMEDY, find_redis_server

# Hypothesis would limit the time of an example (by default, 200 ms). All examples of a test share its
# fixtures: an API that has answered one must answer the next.
settings.register_profile(
    "postd",
    deadline=None,
    max_examples=100 if IS_THOROUGH else 30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("postd")


def _reset_signals() -> None:
    """Keep processes that tests start from inheriting ignored or blocked signals (a script's `&`, nohup).

    For this process nothing changes: a handler that does nothing replaces SIG_IGN. Started processes have the default
    again, for exec resets handlers. Exceptions are signals that Python itself ignores, and restores in processes that
    it starts, and those that a terminal sends to a background process.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    left = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    for number in signal.valid_signals() - left:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


# Tests start hundreds of processes: where this is set each would compile all of postd.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Before each test pytest reads Twisted's version from the metadata of its package, which takes 1.5 ms (pytest 9.2).
importlib.metadata.version = cache(importlib.metadata.version)


SLOW = "they take seconds each"


def pytest_configure(config: pytest.Config) -> None:
    """With `POSTD_REQUIRE_ALL`, refuse to start without a Redis server or root, so that all tests run."""
    _reset_signals()
    is_worker = hasattr(config, "workerinput")  # of pytest-xdist, whose controller has checked
    if os.environ.get("POSTD_REQUIRE_ALL", "0") not in {"", "0"} and not is_worker:
        if find_redis_server() is None:
            raise pytest.UsageError(f"POSTD_REQUIRE_ALL is set, but there is {NO_SERVER}; {REMEDY}")
        if os.geteuid() != 0:
            raise pytest.UsageError(f"POSTD_REQUIRE_ALL is set, but it is {NOT_ROOT}")
    # Clients in tests and in started processes would use a proxy of the environment, which cannot reach the servers.
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    os.environ["no_proxy"] = ",".join(filter(None, [others, "localhost", "127.0.0.1", "::1"]))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exempt modules and collected tests from garbage collection: they stay, and each full collection would visit them.

    With them it takes a fifth of the CPU time of the whole run.
    """
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def _import_share(config: pytest.Config) -> None:
    """In a process of pytest-xdist, import a share of the test modules before all of them.

    So each new module is compiled once. Otherwise all processes would do so, and all in the same order: pytest takes
    four seconds to rewrite the asserts of all modules.
    """
    if not hasattr(config, "workerinput"):
        return
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    folders = [folder for name in config.args if (folder := config.invocation_params.dir / name).is_dir()]
    files = [
        file
        for folder in folders
        for file in sorted(folder.rglob("test_*.py"))
        if not {"system", ".venv"}.intersection(file.relative_to(folder).parts)
    ]
    for file in files[number::count]:
        with suppress(Exception):  # pytest reports it
            import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests, unless all are wanted or these were chosen (`-m slow`, or by the name of a test)."""
    chosen = config.option.markexpr or any("::" in name for name in config.args)
    if not IS_THOROUGH and not chosen:
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason=SLOW))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # its lines come after those of all other plugins
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Report at the end how many tests were skipped, why, and how to run them."""
    yield
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    remedies = {NOT_ROOT: "run pytest as root", NO_SERVER: REMEDY, SLOW: "set POSTD_THOROUGH=1"}
    for why, remedy in remedies.items():
        if left_out := sum(why in reason for reason in skipped):
            line = f"{left_out} tests were left out: {why}. To run them, {remedy}."
            terminalreporter.write_line(line, yellow=True)


@pytest.fixture
def api() -> Iterator[InMemoryApi]:
    api = InMemoryApi()
    yield api
    api.close()


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path: that of `tmp_path` may be longer than the 107 bytes of a UNIX socket's."""
    with make_socket_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a private key and of a certificate for localhost and 127.0.0.1."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


_open_databases: dict[sqlite3.Connection, str] = {}
"""Connections that are not closed yet, and the test that opened each."""


class _NotedConnection(sqlite3.Connection):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _open_databases[self] = os.environ["PYTEST_CURRENT_TEST"]

    def close(self) -> None:
        super().close()
        _open_databases.pop(self, None)


@pytest.fixture(scope="session", autouse=True)
def noted_databases() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=_NotedConnection))
        yield


@pytest.fixture(scope="module", autouse=True)
def closed_databases() -> Iterator[None]:
    """Fail a module that leaves databases open, on each Python; from 3.13 on, Python warns of them in a later test."""
    yield
    opened = [*_open_databases.values()]
    _open_databases.clear()
    assert not opened, "databases were not closed"


@pytest.fixture(scope="session", autouse=True)
def patient_httpx() -> Iterator[None]:
    """Give httpx clients without a timeout that of the tests, instead of 5 seconds."""
    with pytest.MonkeyPatch.context() as patching:
        for step in ("connect", "read", "write", "pool"):
            patching.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, step, PATIENCE_S)  # noqa: SLF001 - there is no public way
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_protection() -> Iterator[None]:
    """Let a `Protection` wait for its store: on a busy machine it may take longer than a second to open."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("postd.protect.protection.STORE_WAIT_MAX_S", PATIENCE_S)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """Share one TLS context among all httpx clients: to make one, with all trust roots, takes 30 ms."""
    with pytest.MonkeyPatch.context() as patching:
        where = httpx._transports.default  # noqa: SLF001 - it has imported the function by name
        patching.setattr(where, "create_ssl_context", cache(httpx.create_ssl_context))
        yield

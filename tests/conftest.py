import gc
import os
import signal
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import IS_THOROUGH, NOT_ROOT, PATIENCE_S, InMemoryApi, make_certificate, make_socket_folder
from tests.redis_server import NO_SERVER, REMEDY, find_redis_server

# No test is timed, nor is one of Hypothesis's examples (200 ms, as it comes). All examples of a test share its
# fixtures, which is meant: an API that has answered one must answer the next.
settings.register_profile(
    "postd",
    deadline=None,
    max_examples=500 if IS_THOROUGH else 30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("postd")


def _reset_signals() -> None:
    """Let no process that tests start inherit ignored or blocked signals (a script's `&`, nohup).

    For this process nothing changes: a handler that does nothing replaces SIG_IGN. Processes that it starts have the
    default again, for exec resets handlers. Left as they are: what Python itself ignores (and restores in what it
    starts), and what a terminal sends to a process in the background.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    left = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    for number in signal.valid_signals() - left:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


# Tests start hundreds of processes: where this is set each would compile all of postd.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to begin without a Redis server or root where `POSTD_REQUIRE_ALL` says that all tests have to run."""
    _reset_signals()
    is_worker = hasattr(config, "workerinput")  # of pytest-xdist: what its controller found holds for it
    if os.environ.get("POSTD_REQUIRE_ALL", "0") not in {"", "0"} and not is_worker:
        if find_redis_server() is None:
            raise pytest.UsageError(f"POSTD_REQUIRE_ALL is set, but there is {NO_SERVER}; {REMEDY}")
        if os.geteuid() != 0:
            raise pytest.UsageError(f"POSTD_REQUIRE_ALL is set, but it is {NOT_ROOT}")
    # Clients in tests, and in the processes that they start, heed a proxy of the environment; it leads elsewhere.
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    os.environ["no_proxy"] = ",".join(filter(None, [others, "localhost", "127.0.0.1", "::1"]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt modules and collected tests from garbage collection: they stay, and each full collection would visit them.

    With them it takes a fifth of the CPU time of the whole run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # what it adds comes after the sections of all others
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say at the end how many tests were left out, why, and how to run them."""
    yield
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for why, remedy in ((NOT_ROOT, "run pytest as root"), (NO_SERVER, REMEDY)):
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
    """A folder with a short path: a UNIX socket's has at most 107 bytes, and that of `tmp_path` may be longer."""
    with make_socket_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a private key and of a certificate for localhost and 127.0.0.1."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session", autouse=True)
def patient_httpx() -> Iterator[None]:
    """Have clients of httpx that are given no timeout wait for an answer as long as other tests: not 5 seconds."""
    with pytest.MonkeyPatch.context() as patching:
        for step in ("connect", "read", "write", "pool"):
            patching.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, step, PATIENCE_S)  # noqa: SLF001 - it has no other
        yield


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """Have all clients of httpx trust by the same context: to make one reads all authorities, which takes 30 ms."""
    with pytest.MonkeyPatch.context() as patching:
        where = httpx._transports.default  # noqa: SLF001 - which has a name of its own for it
        patching.setattr(where, "create_ssl_context", cache(httpx.create_ssl_context))
        yield

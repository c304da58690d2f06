"""Signals before the reactor runs, and those that the process which started the server has ignored or blocked."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.daemon import STOP_MAX_S, Daemon, wait_for_end

EARLY = """\
import os, sys
from twisted.internet.base import ReactorBase
from twisted.scripts.twistd import run

def start(reactor, **options):
    for number in {numbers}:
        os.kill(os.getpid(), number)
    start_running(reactor, **options)
    os.kill(os.getpid(), {numbers}[-1])

start_running, ReactorBase.startRunning = ReactorBase.startRunning, start
sys.argv = sys.argv[1:]
run()
"""
"""Runs twistd; sends signals once the application has started and the reactor has not, and the last one once more."""

IGNORED = (
    "import os, signal, sys;"
    "[signal.signal(number, signal.SIG_IGN) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}];"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
BLOCKED = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals());"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Execute another program, which inherits the dispositions of signals."""


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("more", [(), (signal.SIGINT,), (signal.SIGTERM,)], ids=["once", "and SIGINT", "and SIGTERM"])
def test_signals_before_the_reactor_runs_stop_the_server_in_order(
    tmp_path: Path, first: signal.Signals, more: tuple[signal.Signals, ...]
) -> None:
    through = (sys.executable, "-c", EARLY.format(numbers=[int(number) for number in (first, *more)]))
    with Daemon(tmp_path, wait=False, through=through) as daemon:
        assert daemon.process.wait(STOP_MAX_S) == -first
    assert "postd ready" in daemon.log
    assert "Traceback" not in daemon.log
    assert daemon.log.count(f"Received {first.name}") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"log", "postd.db"}  # the store is closed


@pytest.mark.slow
@pytest.mark.parametrize("script", [IGNORED, BLOCKED], ids=["ignored", "blocked"])
def test_inherited_signal_mask_does_not_block_reload_restart_and_stop(tmp_path: Path, script: str) -> None:
    with Daemon(tmp_path, "--workers", "2", through=(sys.executable, "-c", script)) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("SIGHUP: ")
        killed = daemon.workers[1]
        os.kill(killed, signal.SIGKILL)
        daemon.wait_for(f"worker 1 (process {killed}) ended: killed by SIGKILL")
        daemon.wait_for("is ready, replacing the one that ended")
        workers = daemon.workers
        assert daemon.stop() == -signal.SIGTERM
        wait_for_end(*workers.values())
    assert "Traceback" not in daemon.log


def test_ignored_sigint_stays_ignored(tmp_path: Path) -> None:
    """A shell script's `&` ignores it: Ctrl-C is for the script."""
    with Daemon(tmp_path, through=(sys.executable, "-c", IGNORED)) as daemon:
        daemon.interrupt()
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("SIGHUP: ")
        assert daemon.stop() == -signal.SIGTERM
    assert "SIGINT" not in daemon.log

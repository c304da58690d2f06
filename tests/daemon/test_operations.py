"""Operation of a server, on a reactor that does not run."""

import signal
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from twisted.internet.defer import succeed
from twisted.internet.testing import MemoryReactorClock

from postd.daemon.operations import STATUS_CHECK_EVERY_S, Operations
from postd.daemon.server import Server
from postd.daemon.systemd import SystemdNotifier
from postd.daemon.worker_pool import WorkerPool
from postd.monitoring.health import Health
from postd.monitoring.tally import Metrics
from postd.settings.loading import load_settings
from tests.cases import each
from tests.helpers import result_of


@each(
    "kind, has_systemd, checks",
    [(Server, False, 0), (Server, True, 4), (WorkerPool, False, 4)],
    ids=["no use of it", "status of systemd", "workers that may hang"],
)
def test_health_is_checked_at_intervals_where_that_is_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, *, has_systemd: bool, checks: int
) -> None:
    for name in ("signal", "pthread_sigmask"):
        monkeypatch.setattr(signal, name, lambda *_: None)
    monkeypatch.setattr(SystemdNotifier, "is_connected", has_systemd)
    reactor: Any = MemoryReactorClock()
    reactor.sigTerm = None
    operations = Operations(
        load_settings(None, {}, tmp_path),
        read_settings=lambda: load_settings(None, {}, tmp_path),
        reopen_log=lambda: None,
        listeners=[],
        store="memory:",
        reactor=reactor,
    )
    server = operations.server = create_autospec(kind, instance=True)
    server.health.return_value, server.stopService.return_value = Health({}, Metrics()), succeed(None)
    operations.startService()
    reactor.run()
    reactor.pump([STATUS_CHECK_EVERY_S] * 3)
    assert server.health.await_count == checks
    result_of(operations.stopService())
    assert reactor.getDelayedCalls() == []

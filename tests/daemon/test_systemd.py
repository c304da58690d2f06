"""Notifications to systemd, on a socket of its kind."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, eventAsText

from postd.daemon.systemd import STATUS_MAX_CHARS, SystemdNotifier
from postd.linux import SOCKET_PATH_MAX_BYTES
from tests.cases import each


class Systemd:
    """The receiving end of the socket."""

    def __init__(self, name: str) -> None:
        self.clock = Clock()
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)

    def start(self, **environment: str) -> SystemdNotifier:
        self.environment = {"NOTIFY_SOCKET": self.name, "OTHER": "stays", **environment}
        self.notifier = SystemdNotifier(self.environment, reactor=self.clock)
        return self.notifier

    def received(self) -> list[str]:
        received = []
        while True:
            try:
                received.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return received

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, socket_folder: Path) -> Iterator[Systemd]:
    reading = Systemd(str(socket_folder / "notify") if request.param == "path" else f"@postd-test-{os.getpid()}")
    yield reading
    reading.notifier.stop()
    reading.close()


def test_start_and_stop_are_notified(systemd: Systemd) -> None:
    notifier = systemd.start()
    notifier.start()
    notifier.status("waiting\nfor the store")
    notifier.ready()
    notifier.stopping(25)
    notifier.stop()
    assert systemd.received() == ["STATUS=waiting for the store", "READY=1", "STOPPING=1\nEXTEND_TIMEOUT_USEC=25000000"]
    assert systemd.environment == {"OTHER": "stays"}  # child processes must not notify systemd


def test_repeated_status_is_not_sent_and_a_long_one_is_cut(systemd: Systemd) -> None:
    notifier = systemd.start()
    for words in ("a", "a", "b", "c" * 10_000):
        notifier.status(words)
    assert systemd.received() == ["STATUS=a", "STATUS=b", "STATUS=" + "c" * STATUS_MAX_CHARS]


def test_reload_notification_has_its_time(systemd: Systemd) -> None:
    """Systemd ignores a time before that of its own request."""
    systemd.start().reloading()
    (received,) = systemd.received()
    first, second = received.split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 0


def test_watchdog_is_notified_twice_within_its_timeout(systemd: Systemd) -> None:
    notifier = systemd.start(WATCHDOG_USEC="20000000", WATCHDOG_PID=str(os.getpid()))
    notifier.start()
    systemd.clock.pump([5] * 6)
    assert systemd.received() == ["WATCHDOG=1"] * 4
    notifier.stop()
    assert systemd.clock.getDelayedCalls() == []


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}])
def test_watchdog_of_another_process_is_not_notified(systemd: Systemd, environment: dict[str, str]) -> None:
    systemd.start(**environment).start()
    systemd.clock.advance(60)
    assert systemd.received() == []


@each("name", ["", "vsock:2:1", "/nowhere/notify", "relative"])
def test_unusable_socket_name_sends_nothing(name: str) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name} if name else {}, reactor=Clock())
    notifier.start()
    notifier.ready()
    notifier.stop()


def test_closed_socket_is_no_error(systemd: Systemd) -> None:
    notifier = systemd.start()
    systemd.close()
    notifier.ready()


@each(
    "name, why",
    [
        ("/" + "x" * SOCKET_PATH_MAX_BYTES, "a path of 108 bytes, more than the 107 of a UNIX socket"),
        ("@" + "x" * 108, "AF_UNIX path too long"),
        ("/nowhere/notify", "No such file or directory"),
    ],
)
def test_socket_that_cannot_be_connected_to_is_logged_once(name: str, why: str) -> None:
    with capturedLogs() as events:
        notifier = SystemdNotifier({"NOTIFY_SOCKET": name}, reactor=Clock())
        notifier.ready()
        notifier.stop()
    assert [eventAsText(event, includeTimestamp=False, includeSystem=False) for event in events] == [
        f"NOTIFY_SOCKET: {why}: systemd is not notified"
    ]

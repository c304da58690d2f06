"""Notifications to systemd: sd_notify(3), sd_watchdog_enabled(3) (reference: Operations).

The protocol, datagrams of lines to a socket, is documented for programs to implement; the packages on PyPI bind a C
library, or are unmaintained.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from postd.linux import check_socket_path

STATUS_MAX_CHARS = 500
"""Longer status texts are cut."""

_log = Logger()


class SystemdNotifier:
    """Notifies systemd, if it has started the process and asks for it.

    Args:
        environment: of the process; the variables of the protocol are removed, as they are not for child processes.
        reactor: the watchdog is notified as long as it runs.
    """

    def __init__(self, environment: MutableMapping[str, str], *, reactor: IReactorTime) -> None:
        address, usec, pid = (environment.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        self._socket = _connect(address)
        self._watched_pid = pid
        self._watchdog_s = int(usec) / 1_000_000 if usec.isdecimal() else 0.0
        self._watchdog = LoopingCall(self._send, "WATCHDOG=1")
        self._watchdog.clock = reactor
        self._status = ""

    @property
    def is_connected(self) -> bool:
        """Whether notifications reach systemd."""
        return self._socket is not None

    def start(self) -> None:
        """Notify the watchdog from now on, twice within its timeout."""
        # The process id only now: twistd may have forked.
        if self._watchdog_s and self._watched_pid in {"", str(os.getpid())}:
            self._watchdog.start(self._watchdog_s / 2)

    def stop(self) -> None:
        """Stop all notifications."""
        if self._watchdog.running:
            self._watchdog.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(self) -> None:
        """Notify that all listeners accept connections, or that a reload has ended."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Notify that a reload begins; `ready` ends it."""
        # systemd ignores a time before that of its own request.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, within_s: float) -> None:
        """Notify that the service stops, and how long that may take."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={within_s * 1_000_000:.0f}")

    def status(self, text: str) -> None:
        """Set the status that `systemctl status` shows, one line."""
        text = " ".join(text.split())[:STATUS_MAX_CHARS]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def _send(self, lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # systemd does not listen, or its queue is full
                self._socket.send(lines.encode(errors="backslashreplace"))


def _connect(address: str) -> socket.socket | None:
    # The protocol also has vsock, for virtual machines as a whole.
    if not address.startswith(("/", "@")):
        return None
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if address.startswith("/"):
            check_socket_path(address)
        connected.connect("\0" + address[1:] if address.startswith("@") else address)
    except (OSError, ValueError) as error:
        connected.close()
        why = getattr(error, "strerror", None) or error
        _log.warn("NOTIFY_SOCKET: {why}: systemd is not notified", why=why)
        return None
    return connected

"""What systemd is told of the service, if it has started it: sd_notify(3), sd_watchdog_enabled(3) (contract 1 and 6).

The protocol is a datagram of lines to a socket, and documented as one that programs may speak themselves; the wheels
that do are bindings to a C library, or have not been cared for in years.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from postd.errors import check_socket_path

STATUS_MAX_CHARS = 500
"""Longer words for an operator are cut."""

_log = Logger()


class SystemdNotifier:
    """Tells systemd; nobody, where it does not ask.

    Args:
        environment: that of the process. What it says of this is taken out of it: it is not for processes of ours.
        reactor: the watchdog hears from us as long as it turns.
    """

    def __init__(self, environment: MutableMapping[str, str], *, reactor: IReactorTime) -> None:
        address, usec, pid = (environment.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        self._socket = _connect(address)
        self._watched_pid = pid
        self._watchdog_s = int(usec) / 1_000_000 if usec.isdecimal() else 0.0
        self._beating = LoopingCall(self._send, "WATCHDOG=1")
        self._beating.clock = reactor
        self._status = ""

    def start(self) -> None:
        """Show the watchdog from now on that we are alive, twice in the time that it gives us."""
        # Asked for only now: twistd may have forked since.
        if self._watchdog_s and self._watched_pid in {"", str(os.getpid())}:
            self._beating.start(self._watchdog_s / 2)

    def stop(self) -> None:
        """Say no more."""
        if self._beating.running:
            self._beating.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ready(self) -> None:
        """Tell that all listeners accept, or that what was to be loaded anew is."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Tell that settings are loaded anew; `ready` ends it."""
        # systemd compares it with when it has asked for it.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, within_s: float) -> None:
        """Tell that the service ends, and how long that may take."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={within_s * 1_000_000:.0f}")

    def status(self, words: str) -> None:
        """Tell an operator how it goes, in a line."""
        words = " ".join(words.split())[:STATUS_MAX_CHARS]
        if words != self._status:
            self._status = words
            self._send(f"STATUS={words}")

    def _send(self, lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it is gone, or has enough to read; nobody else can be told
                self._socket.send(lines.encode(errors="backslashreplace"))


def _connect(address: str) -> socket.socket | None:
    # Only of UNIX sockets: there is vsock, too, for virtual machines as a whole.
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

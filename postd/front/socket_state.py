"""State of a connection's socket, under its wrappers: unread, unsent and acknowledged bytes."""

import array
import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Any

import postd.linux  # noqa: F401 - refuses other systems
from postd.http.responses import NO_MEMORY, Memory
from postd.twisted_private import buffered_bytes, largest_viewed

_TCP_INFO_BYTES = 256
_SEGMENT_BYTES = struct.Struct("=I")
_SEGMENT_BYTES_OFFSET = 16  # tcpi_snd_mss
_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_OFFSET = 120  # struct tcp_info of linux/tcp.h, since 4.1; only fields behind it were added later


def bytes_acknowledged(transport: object) -> int:
    """Return how many bytes the client's end has acknowledged until now; 0 if the kernel does not report it.

    Of a UNIX socket, whose client acknowledges nothing, minus the bytes that it has yet to read: as long as nothing is
    written, the number grows as well.
    """
    handle = _socket_of(transport)
    if handle is None:
        return 0
    try:
        if handle.family == socket.AF_UNIX:
            return -buffered_bytes(_innermost(transport)) - _ask(handle, termios.TIOCOUTQ)
        return _ask_tcp(handle, _BYTES_ACKED, _BYTES_ACKED_OFFSET)
    except (OSError, struct.error):  # the socket is closed, or an old kernel
        return 0


def segment_bytes(transport: object) -> int:
    """Return how many bytes a segment has at most, and so a step of `bytes_acknowledged`; 0 where there are none."""
    handle = _socket_of(transport)
    try:
        if handle is None or handle.family == socket.AF_UNIX:
            return 0
        return _ask_tcp(handle, _SEGMENT_BYTES, _SEGMENT_BYTES_OFFSET)
    except (OSError, struct.error):  # the socket is closed
        return 0


def has_unread(transport: object) -> bool:
    """Return whether the kernel holds unread input of the client."""
    handle = _socket_of(transport)
    try:
        return handle is not None and _ask(handle, termios.FIONREAD) > 0
    except OSError:
        return False


def unsent_bytes(transport: object) -> int:
    """Return how much output the kernel has not accepted yet."""
    return buffered_bytes(_innermost(transport)) if _socket_of(transport) is not None else 0


def unacknowledged_bytes(transport: object) -> int:
    """Return how much output the client's end has not acknowledged yet: that is lost if the connection is aborted."""
    handle = _socket_of(transport)
    try:
        return 0 if handle is None else unsent_bytes(transport) + _ask(handle, termios.TIOCOUTQ)
    except OSError:  # the socket is closed
        return 0


def unsent_memory(transport: object) -> Memory:
    """Return the memory of the output that the kernel has not accepted yet: a view keeps the whole object behind it."""
    if _socket_of(transport) is None:
        return NO_MEMORY
    innermost = _innermost(transport)
    viewed = largest_viewed(innermost)
    return buffered_bytes(innermost), viewed, 0 if viewed is None else len(viewed)


def end_output(transport: object) -> None:
    """Close the sending direction at once."""
    handle = _socket_of(transport)
    if handle is not None:
        with suppress(OSError):  # the socket is closed
            handle.shutdown(socket.SHUT_WR)


def _ask_tcp(handle: socket.socket, field: struct.Struct, offset: int) -> int:
    """Return a field of the kernel's `tcp_info`."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    value: int = field.unpack_from(info, offset)[0]
    return value


def _ask(handle: socket.socket, request: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(handle.fileno(), request, count)
    return count[0]


def _socket_of(transport: object) -> socket.socket | None:
    """Return the socket under TLS and the PROXY protocol; None if there is none, as in memory."""
    handle: socket.socket | None = getattr(_innermost(transport), "socket", None)
    return handle


def _innermost(transport: Any) -> Any:
    while hasattr(transport, "transport"):
        transport = transport.transport
    return transport

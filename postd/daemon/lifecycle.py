"""What a server calls while it starts, in one process (`server`) or several (`worker_pool`), and a message of both."""

from collections.abc import Callable

from msgspec import Struct

RELOAD_FAILED = "reload failed, keeping the current settings: {error}"
"""The log message of a reload whose settings cannot be used."""


class StartCallbacks(Struct, frozen=True):
    """Called while a server starts: `accepting` when all listeners accept connections, `ready` when the store answers,
    too, `failed` with the reason if that can never happen.
    """

    accepting: Callable[[], None]
    ready: Callable[[], None]
    failed: Callable[[str], None]

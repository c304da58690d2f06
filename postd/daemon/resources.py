"""The descriptor limit and the memory of the process, with values suited to a server."""

import ctypes
import gc
import resource
from contextlib import suppress

from twisted.logger import Logger

RESERVED_DESCRIPTORS = 128
"""Descriptors reserved for listeners, the store, the log, requests to issuers, and workers; half of all descriptors if
there are very few."""

GC_THRESHOLD = 20_000
"""Objects allocated and not freed before a collection of the youngest generation: at most some 10 MiB."""

TRIM_EVERY_S = 60
"""How often free memory is returned to the system."""

_log = Logger()


def freeze_startup_objects() -> None:
    """Configure garbage collection for a server; to be called once all long-lived objects exist.

    The collector skips the objects that exist now, and runs more rarely than after each 700 new objects, which is every
    few requests. It cannot be turned off, because requests leave reference cycles. No collection runs first: it would
    take 40 ms to free half a mebibyte.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def collect_replaced() -> None:
    """Free the objects that a reload has replaced; to be called when only their own cycles refer to them.

    A resource tree and its checkers are in reference cycles. With the thresholds above, the oldest generation is
    collected so rarely that each reload would add a tree to the memory of the server. Objects frozen by
    `freeze_startup_objects` are skipped: the first tree stays, and this takes a few milliseconds.
    """
    gc.collect()


def trim_memory() -> None:
    """Return free memory between blocks in use to the system (malloc_trim(3)); it takes a few milliseconds.

    glibc returns only large blocks at once, and the first long list or password verification raises that threshold to
    its own size. A fixed lower threshold is no alternative: Argon2id takes 1.5 times as long if its 19 MiB come fresh
    from the system.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def raise_descriptor_limit(connections: int) -> int:
    """Raise the soft limit of file descriptors, usually 1,024, so that each connection has one.

    Returns:
        how many connections fit under the hard limit, at most `connections`. The log has a warning if that is fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    fitting = max(soft - RESERVED_DESCRIPTORS, soft // 2)
    _log.warn(
        "[limits] connections: {connections} need {wanted} descriptors, the hard limit is {hard}: accepting at most "
        "{fitting}",
        connections=connections,
        wanted=wanted,
        hard=hard,
        fitting=fitting,
    )
    return fitting

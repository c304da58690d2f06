"""Descriptor limit and memory of the process, whose defaults are not made for servers."""

import ctypes
import gc
import resource
from contextlib import suppress

from twisted.logger import Logger

RESERVED_DESCRIPTORS = 128
"""Descriptors that are not for client connections but for listeners, the store, the log, requests to issuers, workers;
half of all, if there are very few."""

GC_THRESHOLD = 20_000
"""Objects allocated and not freed before a collection of the youngest generation: at most some 10 MiB."""

TRIM_EVERY_S = 60
"""How often free memory is returned to the system."""

_log = Logger()


def freeze_startup_objects() -> None:
    """Configure garbage collection for a server; to be called once all long-lived objects exist.

    The collector skips the objects that exist now, and runs more rarely than after each 700 new objects, which is every
    few requests. Requests leave cycles behind, so that it cannot be turned off. There is no collection first: it takes
    40 ms, and what it would free is half a mebibyte.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def collect_replaced() -> None:
    """Free what a reload has replaced; to be called when nothing refers to it any more but itself.

    A resource tree and its checkers are in reference cycles. With the thresholds above, the collector comes to the
    oldest generation so rarely that a server which is reloaded often would grow by one tree at each reload. What
    `freeze_startup_objects` has set aside is not looked at: the first tree stays, and this takes a few milliseconds.
    """
    gc.collect()


def trim_memory() -> None:
    """Return free memory between blocks in use to the system (malloc_trim(3)); it takes a few milliseconds.

    glibc does so at once only for large blocks, until the first long list or password verification raises its threshold
    to that size. A lower threshold is no alternative: with 19 MiB that are new to the process, Argon2id takes 1.5 times
    as long.
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

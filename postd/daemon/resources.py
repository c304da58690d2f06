"""What a server asks of its kernel and of its C library, where their defaults are not made for servers."""

import ctypes
import gc
import resource
from contextlib import suppress

from twisted.logger import Logger

SPARE = 128
"""For all that is no client's connection: listeners, the store, the log, requests to issuers, workers. Where there are
very few descriptors, half of them."""

GC_THRESHOLD = 20_000
"""Objects made and not freed before the garbage collector looks at the youngest: some 10 MiB at the most."""

TRIM_EVERY_S = 60
"""How often memory that is free goes back to the system."""

_log = Logger()


def freeze_startup_objects() -> None:
    """Set up memory for a process that is to run for long; to be called when all is there that is there to stay.

    What is there now stays: the collector need not look at it again, nor after each 700 new objects, which is every few
    requests. They are in cycles, mostly, so that it must run at all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def collect_replaced() -> None:
    """Free what a reload has replaced; to be called when nothing refers to it any more but itself.

    A resource tree and its checkers are in reference cycles. With the thresholds above, the collector comes to the
    oldest generation so rarely that a server which is reloaded often would grow by one tree at each reload. What
    `settle_memory` has set aside is not looked at: the first tree stays, and this takes a few milliseconds.
    """
    gc.collect()


def trim_memory() -> None:
    """Give memory that is free between blocks in use back to the system (malloc_trim(3)); it takes a few milliseconds.

    glibc does so for large blocks, at first. The first long list or password that was verified makes it keep blocks as
    large as that for the next one. Passwords must have it so: with 19 MiB that are new to the process, Argon2id takes
    half as long again.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def fit_descriptors(connections: int) -> int:
    """Raise the soft limit of descriptors, which a process may do itself, so that connections fit in.

    Each takes one, and the usual limit of 1,024 is not for servers.

    Returns:
        how many can be had under the hard limit, at most `connections`. If that is fewer, the log says so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    fitting = max(soft - SPARE, soft // 2)
    _log.warn(
        "[limits] connections: {connections} need {wanted} descriptors, the hard limit is {hard}: at most {fitting} "
        "are let in",
        connections=connections,
        wanted=wanted,
        hard=hard,
        fitting=fitting,
    )
    return fitting

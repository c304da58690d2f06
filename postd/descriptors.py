"""File descriptors: each connection takes one, and the usual soft limit of 1,024 is not for servers."""

import resource

from twisted.logger import Logger

SPARE = 128
"""For all that is no client's connection: listeners, the store, the log, requests to issuers, workers."""

_log = Logger()


def fit(connections: int) -> int:
    """Raise the soft limit of descriptors, which a process may do itself, so that connections fit in.

    Returns:
        how many can be had under the hard limit: at least one, at most `connections`. Fewer are said in the log.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    fitting = max(1, soft - SPARE)
    _log.warn(
        "[limits] connections: {connections} need {wanted} descriptors, the hard limit is {hard}: at most {fitting} "
        "are let in",
        connections=connections,
        wanted=wanted,
        hard=hard,
        fitting=fitting,
    )
    return fitting

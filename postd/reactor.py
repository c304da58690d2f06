"""The reactor as our parts are handed it; only `postd.tap` and `postd.cli.running` import the global one."""

from twisted.internet.interfaces import (
    IReactorCore,
    IReactorFromThreads,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorTime,
)


class IReactor(
    IReactorCore, IReactorTime, IReactorFromThreads, IReactorTCP, IReactorPluggableNameResolver, IReactorProcess
):
    """A clock that other threads can call into, that connects, starts processes, and that can be stopped."""

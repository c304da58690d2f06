"""The reactor as our parts are handed it; only `postd.daemon.tap` and `postd.cli.run_async` import the global one."""

from types import FrameType

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

    def sigInt(number: int, frame: FrameType | None = None) -> None:  # noqa: N805 - an interface has no self
        """Stop the reactor, as soon as it runs; the process ends by this signal. A handler of it (`ReactorBase`)."""

    def sigTerm(number: int, frame: FrameType | None = None) -> None:  # noqa: N805 - likewise
        """As `sigInt`, for SIGTERM."""

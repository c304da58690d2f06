"""The type of the reactor, which is passed as an argument; only `tap` and `cli.run_async` import the global one."""

from types import FrameType

from twisted.internet.interfaces import (
    IReactorCore,
    IReactorFDSet,
    IReactorFromThreads,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorTime,
)


class IReactor(
    IReactorCore,
    IReactorFDSet,
    IReactorFromThreads,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorTime,
):
    """The interfaces of a reactor that `postd` uses."""

    def sigInt(number: int, frame: FrameType | None = None) -> None:  # noqa: N805 - an interface has no self
        """Handle SIGINT: stop the reactor once it runs, then end the process by this signal (`ReactorBase`)."""

    def sigTerm(number: int, frame: FrameType | None = None) -> None:  # noqa: N805 - likewise
        """As `sigInt`, for SIGTERM."""

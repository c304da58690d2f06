"""The reactor as our parts are handed it; only `postd.tap` imports the global one."""

from twisted.internet.interfaces import IReactorFromThreads, IReactorTime


class IReactor(IReactorTime, IReactorFromThreads):
    """A clock that other threads can call into."""

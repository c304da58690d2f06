"""The reactor as our parts are handed it; only `postd.tap` imports the global one."""

from twisted.internet.interfaces import IReactorCore, IReactorFromThreads, IReactorTime


class IReactor(IReactorCore, IReactorTime, IReactorFromThreads):
    """A clock that other threads can call into, and that can be stopped."""

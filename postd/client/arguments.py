"""Checks of arguments: each raises `ConfigError`, which names the argument and shows no value: it may be a secret."""

import os
from typing import cast

from twisted.internet.interfaces import IReactorTime
from zope.interface import Interface

from postd.errors import ConfigError
from postd.reactor import IReactor

PATH = (str, os.PathLike)
"""The types of a path."""


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Check the type of an argument; True and False are no numbers."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise _unexpected(name, wanted, value)


def check_text(name: str, value: object) -> None:
    """Check that an argument is a text that UTF-8 can encode."""
    check_kind(name, value, str, "text")
    try:
        cast(str, value).encode()
    except UnicodeEncodeError:
        raise ConfigError(name, "is not Unicode text: it has half of a surrogate pair") from None


def check_provides(name: str, value: object, interface: type[Interface], wanted: str) -> None:
    """Check that an argument provides an interface."""
    if not interface.providedBy(value):
        raise _unexpected(name, wanted, value)


def check_reactor(reactor: object) -> IReactor:
    """Return the reactor; if the caller left it out, another argument is in its place."""
    check_provides("reactor", reactor, IReactorTime, "a reactor")
    return cast(IReactor, reactor)


def _unexpected(name: str, wanted: str, value: object) -> ConfigError:
    return ConfigError(name, f"expected {wanted}, got {type(value).__name__}")

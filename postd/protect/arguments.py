"""Checks of arguments: each raises `ValueError`, whose text begins with the name of the argument."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar, cast

from twisted.internet.interfaces import IReactorTime

from postd.protocol.quantity import DURATION_MAX_S
from postd.reactor import IReactor

T = TypeVar("T")


def expected(name: str, wanted: str, value: object) -> ValueError:
    """Return the error of an argument of the wrong kind."""
    return ValueError(f"{name}: expected {wanted}, got {value!r}")


def check(name: str, decode: Callable[[str], T], value: object) -> T:
    """Return the result of a function that decodes a text."""
    if not isinstance(value, str):
        raise expected(name, "text", value)
    try:
        return decode(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_reactor(reactor: object) -> IReactor:
    """Return the reactor; if the caller left it out, another argument is in its place."""
    if not IReactorTime.providedBy(reactor):
        raise expected("reactor", "a reactor", reactor)
    return cast(IReactor, reactor)


def words(name: str, values: object, *, may_be_empty: bool = False) -> tuple[str, ...]:
    """Return several texts, none of them empty; one text is an error where several are meant."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise expected(name, "several texts, such as a list", values)
    texts = tuple(values)
    if not all(isinstance(text, str) and text for text in texts) or not (texts or may_be_empty):
        raise expected(name, "texts that are not empty", values)
    return texts


def among(name: str, values: object, known: Collection[str]) -> tuple[str, ...]:
    """Return several known texts, without repetitions."""
    texts = words(name, values)
    for text in texts:
        if text not in known:
            raise ValueError(f"{name}: {text!r} is none of {', '.join(known)}")
    return tuple(dict.fromkeys(texts))


def choice(name: str, value: object, known: Collection[str]) -> str:
    """Return a known text."""
    return among(name, (value,), known)[0]


def all_of(name: str, decode: Callable[[str], T], values: object) -> list[T]:
    """Return the results of a function that decodes texts, for several texts or none."""
    return [check(name, decode, text) for text in words(name, values, may_be_empty=True)]


def count(name: str, value: object) -> int:
    """Return a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise expected(name, "a whole number of at least 1", value)
    return value


def seconds(name: str, value: object) -> float:
    """Return a duration of a millisecond or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= DURATION_MAX_S:
        raise expected(name, f"seconds, from 0.001 to {DURATION_MAX_S}", value)
    return float(value)


def flag(name: str, value: object) -> bool:
    """Return True or False; another value is an error, as `"no"` would be true."""
    if not isinstance(value, bool):
        raise expected(name, "True or False", value)
    return value


_SEGMENT = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~!$&'()*+,;=:@-%")


def check_path(path: str) -> str:
    """Return the path of a page, which begins with one slash: with two it would name another host."""
    if not path.startswith("/") or path.startswith("//") or not set(path) <= _SEGMENT | {"/"}:
        raise ValueError(f"{path!r} is not a path such as /sign-in")
    return path

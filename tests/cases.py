"""Tests of many cases: one test each, which runs all of them and names those that fail."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import pytest
from msgspec import Struct

_SHOWN_MAX_CHARS = 200


class _Cases(Struct):
    """The cases of a test: what the report calls each, and its arguments."""

    test: Callable[..., object]
    rows: Sequence[tuple[str, Mapping[str, Any]]]


def each(names: str, cases: Iterable[Any], ids: Iterable[str] | None = None) -> Callable[[Any], Callable[..., None]]:
    """Run a test with each case, as `pytest.mark.parametrize` does with a test for each.

    For cases that need no fixture of their own: a thousand of them take less time than ten tests. The report has the
    traceback of each case that fails. Several decorators give the product of their cases.

    Args:
        names: the parameters of a case, separated by commas.
        cases: the values, or a tuple of values for several parameters.
        ids: what the report calls them, if their values do not say it.
    """
    parameters = [name.strip() for name in names.split(",")]
    values = [case if len(parameters) > 1 else (case,) for case in cases]
    titles = [*ids] if ids is not None else [", ".join(map(ascii, case)) for case in values]
    rows = [
        (f"{names} = {title[:_SHOWN_MAX_CHARS]}", dict(zip(parameters, case, strict=True)))
        for title, case in zip(titles, values, strict=True)
    ]
    assert rows, "a test without cases checks nothing"

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        inner: _Cases = getattr(test, "cases", _Cases(test, [("", {})]))
        product = [
            (f"{outer}; {more}" if more else outer, {**one, **two}) for outer, one in rows for more, two in inner.rows
        ]
        whole = _Cases(inner.test, product)

        @wraps(test)
        def run(*arguments: Any, **fixtures: Any) -> None:
            failures = [error for row in whole.rows if (error := _failure(whole.test, row, arguments, fixtures))]
            if failures:
                failed = "".join(f"\n  {title}" for error in failures for title in error.__notes__[-1:])
                raise ExceptionGroup(f"{len(failures)} of {len(whole.rows)} cases fail:{failed}", failures)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        run.cases = whole  # type: ignore[attr-defined]
        return run

    return decorate


def _failure(
    test: Callable[..., object],
    row: tuple[str, Mapping[str, Any]],
    arguments: tuple[Any, ...],
    fixtures: Mapping[str, Any],
) -> Exception | None:
    """Run a case; return its error, with its title as a note."""
    title, values = row
    try:
        test(*arguments, **fixtures, **values)
    except Exception as error:  # noqa: BLE001 - the report has them all
        failure = error
    except pytest.fail.Exception as error:  # which is no `Exception`
        failure = AssertionError(str(error)).with_traceback(error.__traceback__)
    else:
        return None
    failure.add_note(title)
    return failure

"""Tests of many cases: one test each, which runs all of them and names those that fail."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def each(names: str, cases: Iterable[Any], ids: Iterable[str] | None = None) -> Callable[[Any], Callable[..., None]]:
    """Run a test with each case, as `pytest.mark.parametrize` does with a test for each.

    For cases that need no fixture of their own: a thousand of them cost a run less than ten tests. All cases run; the
    report has the tracebacks of those that fail, each with its case.

    Args:
        names: the parameters of a case, separated by commas.
        cases: the values, or a tuple of values for several parameters.
        ids: what the report calls them, if their values do not say it.
    """
    parameters = [name.strip() for name in names.split(",")]
    values = [case if len(parameters) > 1 else (case,) for case in cases]
    titles = [*ids] if ids is not None else [", ".join(map(ascii, case)) for case in values]
    rows = [(title, dict(zip(parameters, case, strict=True))) for title, case in zip(titles, values, strict=True)]
    assert rows, "a test without cases checks nothing"

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        @wraps(test)
        def run(*arguments: Any, **fixtures: Any) -> None:
            failures = []
            for title, row in rows:
                try:
                    test(*arguments, **fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the report has them all
                    error.add_note(f"the case {names} = {title[:200]}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} cases fail", failures)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate

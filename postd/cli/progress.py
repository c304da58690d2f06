"""How far a command has come, for who sits at the terminal."""

import io
import sys
from typing import Any, Self, TextIO

import click


class Bar:
    """How far the work has come, on the standard error if that is a terminal.

    Args:
        what: is done.
        length: of it all.
        shown: False to be silent on a terminal, too.
    """

    def __init__(self, what: str, length: int, *, shown: bool = True) -> None:
        terminal = shown and sys.stderr is not None and sys.stderr.isatty()
        file: TextIO = sys.stderr if terminal else io.StringIO()
        self._bar: Any = click.progressbar(length=length, label=what, file=file)
        self._reached = 0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.__exit__(*raised)

    def reach(self, position: int) -> None:
        self._bar.update(position - self._reached)
        self._reached = position

"""Options of several commands, and the format of their output."""

import functools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from postd.settings.loading import load_settings

_OPTIONS = {
    "store": click.option(
        "-s",
        "--store",
        metavar="URL",
        help="The store of the posts. [default: sqlite:postd.db, beside the settings file]",
    ),
    "users": click.option("-u", "--users", metavar="FILE", help="The user file."),
}


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--config` and options for the settings `names` to a command, which gets the settings as `loaded`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option("-c", "--config", metavar="FILE", help="The settings file (TOML). Options override it.")
        @functools.wraps(command)
        def with_options(*, config: str | None, **arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in names}
            options = {name: value for name, value in given.items() if value is not None}
            command(loaded=load_settings(config, options, Path.cwd()), **arguments)

        for name in reversed(names):
            with_options = _OPTIONS[name](with_options)
        return with_options

    return decorate


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def format_time(seconds: float) -> str:
    """Return a time of the store in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def pluralize(number: int, what: str) -> str:
    """Return a number with its noun: `1 user`, `2 users`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

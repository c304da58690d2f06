"""The generated parts of pages: Markdown from the settings' types, the commands, the metrics, the log calls, and tests.

Each function of `PARTS` returns the text of a generated part of a page (`site_pages`).
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec
from msgspec import Struct

import postd
from postd.cli.main import main as postd_command
from postd.daemon.tap import Options as DaemonOptions
from postd.monitoring.exposition import FAMILIES
from postd.settings.loading import ALLOWED, is_reloadable
from postd.settings.schema import Settings

ROOT = Path(postd.__file__).parent.parent
SAMPLE = ROOT / "etc" / "postd.toml"

_LITERAL = re.compile(r"""\[".*?"\]|\{.*?\}|"[^"]*\"""")
"""A value in the words that say what is allowed."""

_WIDTH = 86
"""Columns of a block of text that fit into a page."""

_EXAMPLE_KEYS = {
    *("bearer.issuer", "bearer.audience", "page.path", "page.schemes"),
    *("sign_in.id", "sign_in.name", "sign_in.issuer", "sign_in.client_id"),
}
"""Keys that must be given in their table: what the sample has is an example."""


class Entry(Struct):
    """A key or a table of the sample file: its name, the comment before it, and the value it is given there."""

    name: str
    comment: str
    value: str = ""

    @property
    def is_table(self) -> bool:
        return not self.value


def settings() -> str:
    """Return a section for each table and a heading for each key of the settings file."""
    return "\n\n".join(_table(entry) if entry.is_table else _key(entry) for entry in read_sample(SAMPLE.read_text()))


def read_sample(text: str) -> Iterator[Entry]:
    """Yield the tables and keys of a commented settings file, each with the comment lines that stand before it."""
    table, comment, seen = "", list[str](), set[str]()
    for line in text.splitlines():
        if header := re.fullmatch(r"#?\[+([a-z_]+)\]+", line):
            table, name, value = f"{header[1]}.", header[1], ""
        elif setting := re.fullmatch(r"#([a-z_]+) = (.+)", line):
            name, value = table + setting[1], setting[2]
        else:
            comment = [*comment, line[2:]] if line.startswith("#") else []
            continue
        if name not in seen:
            yield Entry(name, "\n".join(comment).strip(), value)
        seen.add(name)
        comment = []


def _table(entry: Entry) -> str:
    kind = _type_of(entry.name)
    title = f"[[{entry.name}]]" if get_origin(kind) is tuple else f"[{entry.name}]"
    return f"## `{title}`\n\n{entry.comment}"


def _key(entry: Entry) -> str:
    table, _, key = entry.name.rpartition(".")
    many = table and get_origin(_type_of(table)) is tuple
    title = f"[[{table}]] {key}" if many else f"[{table}] {key}" if table else key
    default = "none: the key is required" if entry.name in _EXAMPLE_KEYS else f"`{entry.value}`"
    allowed = str(ALLOWED.get(entry.name) or getattr(_type_of(entry.name), "ALLOWED", "a string"))
    facts = [
        f"- Value: {_LITERAL.sub(lambda found: f'`{found[0]}`', allowed)}",
        f"- Default: {default}",
        f"- Reload: {'yes' if is_reloadable(entry.name) else 'no, restart the server'}",
    ]
    return f"### `{title}`\n\n{entry.comment}\n\n" + "\n".join(facts)


def _type_of(name: str) -> Any:
    """Return the type of a key or a table of the settings, such as `limits.body`."""
    kind: Any = Settings
    for part in name.split("."):
        table = next(iter(get_args(kind)), kind)  # that of one element, where there may be several tables
        kind = next(info.type for info in msgspec.structs.fields(table) if info.encode_name == part)
    return kind


def commands() -> str:
    """Return a section for each command of `postd` with what `--help` prints."""
    return "\n\n".join(
        f"### {context.command_path}\n\n```text\n{context.get_help()}\n```" for context in _contexts(postd_command)
    )


def _contexts(command: click.Command, parent: click.Context | None = None) -> Iterator[click.Context]:
    context = click.Context(command, parent, info_name=command.name, terminal_width=_WIDTH)
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _contexts(inner, context)


def daemon_options() -> str:
    """Return what `twistd postd --help` prints."""
    options = DaemonOptions()
    return f"```text\nUsage: twistd [options] postd {options.synopsis}\n{options.getUsage(width=_WIDTH)}\n```"


def metrics() -> str:
    """Return a table of the metrics."""
    rows = [
        f"| `{family.name}` | {_metric_type(family.name, bool(family.bounds))} | "
        f"{', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES.values()
    ]
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows])


def _metric_type(name: str, has_bounds: bool) -> str:  # noqa: FBT001 - of this module alone
    return "histogram" if has_bounds else "counter" if name.endswith("_total") else "gauge"


_LEVELS = {"failure": "critical", "emit": "varies"}
"""The level of an event by the method of `twisted.logger.Logger` that logs it, if it is not the name of the method."""


def log_events() -> str:
    """Return a table of the messages that postd logs, with their level and the module that is their logger."""
    package = Path(postd.__file__).parent
    modules = {
        ".".join(["postd", *file.relative_to(package).with_suffix("").parts]): ast.parse(file.read_text("utf-8"))
        for file in package.rglob("*.py")
        if "testing" not in file.parts
    }
    named = {name: text for tree in modules.values() for name, text in _named_texts(tree)}
    events = {
        (message, level, module) for module, tree in modules.items() for level, message in find_log_calls(tree, named)
    }
    rows = [f"| {level} | `{message}` | `{module}` |" for message, level, module in sorted(events)]
    return "\n".join(["| level | message | logger |", "|---|---|---|", *rows])


def _named_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() as text)):
                yield name, text


def find_log_calls(tree: ast.Module, named: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield level and message of each call of a logger in a module, but for messages that are a single value.

    Args:
        tree: the module.
        named: texts by the names of their constants.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="_log") | ast.Attribute(attr="_log"), attr=method),
                args=[*_, last],
            ):
                message = named[last.id] if isinstance(last, ast.Name) else str(ast.literal_eval(last))
                if not re.fullmatch(r"\{\w+\}", message):
                    yield _LEVELS.get(method, method), message


_WHY = re.compile(r"(.*?)(?: \(([^()]*)\))?")
"""What postd does instead of stock Twisted, with its source."""


_BY_STOCK = {"accepts": "refused", "refuses": "accepted", "reads": "read in another way"}
_BY_POSTD = {"accepts": "accepted", "refuses": "refused", "reads": "accepted"}


def departures() -> str:
    """Return a table of the differences between postd and stock Twisted in the requests that they accept."""
    test = ast.parse((ROOT / "tests" / "front" / "test_differential.py").read_text("utf-8"))
    rows = ["| rule of postd | source | requests that the rule is about: postd | stock Twisted |", "|---|---|---|---|"]
    for node in ast.walk(test):
        match node:
            case ast.Call(func=ast.Name(id="Departure"), args=[ast.Constant(str(does)), ast.Constant(str(why)), _]):
                found = _WHY.fullmatch(why)
                assert found
                rows.append(f"| {found[1]} | {found[2] or ''} | {_BY_POSTD[does]} | {_BY_STOCK[does]} |")
    return "\n".join(rows)


PARTS = {
    "settings": settings,
    "commands": commands,
    "daemon-options": daemon_options,
    "metrics": metrics,
    "log-events": log_events,
    "departures": departures,
}

"""The parts of the documentation site that are made from the code, and its check for resources of other hosts."""

import re
import shlex
from pathlib import Path

import click
import foreign_resources
import msgspec
import reference_parts
from msgspec import Struct

import postd.protect
from postd.cli.main import main
from postd.daemon.server import RELOAD_FAILED
from postd.daemon.tap import Options as DaemonOptions
from postd.settings.schema import Settings
from tests.cases import each
from tests.front.test_differential import DEPARTURES


def keys(kind: type[Struct], table: str = "") -> set[str]:
    """Return the keys of the settings, such as `limits.body`."""
    found = set[str]()
    for info in msgspec.structs.fields(kind):
        name = table + info.encode_name
        inner = next(iter(getattr(info.type, "__args__", ())), info.type)
        is_table = isinstance(inner, type) and issubclass(inner, Struct)
        found |= keys(inner, f"{name}.") if is_table else {name}
    return found


def test_settings_page_has_a_comment_for_each_key_and_table() -> None:
    entries = list(reference_parts.read_sample(reference_parts.SAMPLE.read_text()))
    assert {entry.name for entry in entries if not entry.is_table} == keys(Settings)
    assert [entry.name for entry in entries if not entry.comment.endswith((".", "`."))] == []


def test_setting_has_its_meaning_values_default_and_reload() -> None:
    text = reference_parts.settings()
    _, section = text.split("### `[log] format`\n")
    assert section.split("###")[0].strip().splitlines() == [
        'Format of the log. `"json"` writes one JSON object a line.',
        "",
        '- Value: `"text"` or `"json"`',
        '- Default: `"text"`',
        "- Reload: no, restart the server",
    ]
    assert "### `[[bearer]] issuer`" in text


def test_command_line_page_has_each_command() -> None:
    text = reference_parts.commands()
    for name in main.list_commands(None):  # type: ignore[arg-type] # it takes no account of the context
        assert f"### postd {name}\n" in text
    assert "### postd user add\n" in text
    assert "Usage: postd user add " in text
    assert "Usage: twistd [options] postd" in reference_parts.daemon_options()


def test_commands_of_the_reference_are_accepted() -> None:
    pages = Path(reference_parts.SAMPLE.parent.parent, "docs", "reference").glob("*.md")
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", "".join(page.read_text() for page in pages))
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert len(lines) > 2
    for program, *arguments in lines:
        if program == "twistd":
            DaemonOptions().parseOptions(arguments[arguments.index("postd") + 1 :])
            continue
        assert program == "postd"
        command: click.Command | None = main
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), arguments.pop(0))
        assert command is not None
        command.make_context(program, arguments)


def test_metrics_page_has_types_and_labels() -> None:
    lines = reference_parts.metrics().splitlines()
    assert "| `postd_reloads_total` | counter | `outcome` | Reloads (SIGHUP), by outcome. |" in lines
    assert any(line.startswith("| `postd_store_duration_seconds` | histogram |") for line in lines)


def test_log_page_has_messages_of_calls_and_of_constants() -> None:
    lines = reference_parts.log_events().splitlines()
    ready = "postd ready: {addresses}; store {store}; {rules}{workers}{admin}"
    assert f"| info | `{ready}` | `postd.daemon.service` |" in lines
    assert any(line.startswith(f"| error | `{RELOAD_FAILED}`") for line in lines)
    assert len(set(lines)) == len(lines) > 50


def test_python_page_has_all_public_names_of_protect() -> None:
    """Those of the other packages are found by Sphinx itself."""
    page = (reference_parts.SAMPLE.parent.parent / "docs/reference/python.md").read_text()
    assert set(re.findall(r":: postd\.protect\.(\w+)", page)) == set(postd.protect.__all__)


@each(
    "page, found",
    [
        ('<script src="https://cdn.example/a.js"></script>', ["https://cdn.example/a.js"]),
        ('<link rel="stylesheet" href="//cdn.example/a.css">', ["//cdn.example/a.css"]),
        ('<img srcset="a.png 1x, http://cdn.example/b.png 2x">', ["http://cdn.example/b.png 2x"]),
        ('<style>@import "https://fonts.example/f.css";</style>', ["https://fonts.example/f.css"]),
        ("<p style='background: url(https://cdn.example/b.png)'>", ["https://cdn.example/b.png"]),
        ('<a href="https://twisted.org"><link rel="canonical" href="https://docs.example/"><img src="a.png">', []),
    ],
)
def test_resources_of_other_hosts_are_found(page: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page)
    assert list(foreign_resources.find(tmp_path)) == [f"page.html: {url}" for url in found]


def test_front_page_has_the_departures_of_the_test() -> None:
    text = reference_parts.departures()
    rows = [
        line for line in text.splitlines()[2:] if re.fullmatch(r"\| .+ \| .* \| (?:accepted|refused) \| .+ \|", line)
    ]
    assert len(rows) == len(DEPARTURES) == len(text.splitlines()) - 2
    assert "| CONNECT is not implemented | RFC 9110 §15.6.2 | refused | accepted |" in rows

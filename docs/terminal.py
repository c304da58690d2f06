"""A terminal recording as SVG: commands that are run, and their output as text."""

import subprocess
from collections.abc import Sequence
from html import escape
from pathlib import Path

FONT_PX, LINE_PX, MARGIN_PX, BAR_PX = 14, 20, 16, 32
ADVANCE_PX = FONT_PX * 0.602
"""The width of a character of Menlo, Consolas and DejaVu Sans Mono, to a percent or two."""

FOLLOWED_S = 3.0
"""How long a command may run before it is ended, as by Ctrl-C."""

_STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.screen { fill: #f6f8fa; stroke: #d0d7de } .output { fill: #1f2328 } .comment { fill: #59636e }
.command { fill: #0550ae; font-weight: bold } .prompt { fill: #116329 } circle { fill: #d0d7de }
@media (prefers-color-scheme: dark) {
  .screen { fill: #0d1117; stroke: #3d444d } .output { fill: #e6edf3 } .comment { fill: #9198a1 }
  .command { fill: #79c0ff } .prompt { fill: #7ee787 } circle { fill: #3d444d }
}"""


def record(script: Sequence[str], folder: Path) -> list[str]:
    """Run commands in a folder, one after the other; return the lines of a terminal.

    Args:
        script: commands, and comments that begin with `#`, which are only shown.
        folder: the current folder of the commands.

    Raises:
        subprocess.CalledProcessError: a command has failed.
    """
    lines = list[str]()
    for one in script:
        if one.startswith("#"):
            lines += ["", one] if lines else [one]
        else:
            lines += [f"$ {one}", *_run(one, folder).rstrip("\n").split("\n")]
    return lines


def _run(command: str, folder: Path) -> str:
    words = ["bash", "-c", command]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, timeout=FOLLOWED_S, check=True)
    except subprocess.TimeoutExpired as ended:
        return (ended.stdout or b"").decode().rstrip("\n") + "\n^C"
    return done.stdout.decode()


def draw_terminal(lines: Sequence[str], title: str) -> str:
    """Return a terminal with these lines as SVG, light or dark as the reader prefers."""
    width = round(2 * MARGIN_PX + max(map(len, lines)) * ADVANCE_PX)
    height = BAR_PX + len(lines) * LINE_PX + MARGIN_PX
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}\n</style>",
        f'<rect class="screen" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(f'<circle cx="{MARGIN_PX + 4 + 18 * place}" cy="{BAR_PX // 2}" r="5"/>' for place in range(3)),
    ]
    for number, line in enumerate(lines):
        y = BAR_PX + number * LINE_PX + FONT_PX
        if line:
            drawn.append(f'<text x="{MARGIN_PX}" y="{y}">{_color(line)}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def _color(line: str) -> str:
    if line.startswith("$ "):
        return f'<tspan class="prompt">$ </tspan><tspan class="command">{escape(line[2:])}</tspan>'
    kind = "comment" if line.startswith("#") else "output"
    return f'<tspan class="{kind}">{escape(line)}</tspan>'

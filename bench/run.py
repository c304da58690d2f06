"""Measures postd beside its peers with the same workloads, beside itself without logins, and beside plain code.

The server has one core, the load generator another. Each figure is the median of interleaved rounds, each with a newly
started server. README.md explains the figures.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.plot import RESULTS, write_picture
from bench.report import Line, make_report
from bench.rows import ROWS, Row, beside_itself
from bench.servers import LOAD_CORE, SERVER_CORE, BenchError, command_of_this_python
from bench.workloads import Duration

HEADING = "# Benchmark results\n\n[README.md](README.md) explains the figures."


def run(rows: dict[str, Row], rounds: int, duration: Duration) -> list[Line]:
    # For this process, whose clients measure latencies; wrk gets its core on its command line.
    os.sched_setaffinity(0, {LOAD_CORE})
    return [line for name, row in rows.items() for line in measure_row(name, row, rounds, duration)]


def measure_row(name: str, row: Row, rounds: int, duration: Duration) -> list[Line]:
    """Measure the contenders of a row in turn, so that a disturbance of the machine affects all of them."""
    lines: dict[str, Line] = {}
    with temporary_folder() as prepared:
        if row.prepare:
            row.prepare(prepared)
        for number in range(1, rounds + 1):
            for contender in row.contenders:
                with temporary_folder() as own:
                    shutil.copytree(prepared, own, dirs_exist_ok=True)
                    measured = contender.measure(contender.server, own, duration)
                for figure, value in measured.items():
                    line = lines.setdefault(figure, Line(name, figure, row.ratios))
                    line.rounds.setdefault(contender.name, []).append(value)
                    say(f"round {number} of {rounds}: {name} {contender.name} {value:.2f} {figure}")
    return list(lines.values())


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="postd-bench-") as folder:
        yield Path(folder)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def choose(arguments: argparse.Namespace) -> tuple[dict[str, Row], dict[str, str]]:
    """Return the rows with the chosen contenders that can be started, and the missing programs of the others, by name.

    Raises:
        BenchError: a row is left without contenders, or `--before` is not a checkout.
    """
    if arguments.before:
        return put_beside(arguments.before, arguments.rows), {}
    return put_to_peers(arguments.rows, arguments.only)


def put_beside(before: Path, names: Sequence[str]) -> dict[str, Row]:
    """Return rows with postd beside the postd of another checkout."""
    if not (before / "postd").is_dir():
        raise BenchError(f"{before} is not a checkout of postd")
    return {name: beside_itself(ROWS[name], before.resolve()) for name in names}


def put_to_peers(names: Sequence[str], only: Sequence[str] | None) -> tuple[dict[str, Row], dict[str, str]]:
    """Return rows with postd beside its peers; rows with ratios of their own keep all contenders."""
    rows, left_out = {}, {}
    for name in names:
        kept = []
        for contender in ROWS[name].contenders:
            if only is not None and not ROWS[name].ratios and contender.name not in only:
                continue
            missing = contender.server.find_missing()
            if missing:
                left_out[contender.name] = missing
            else:
                kept.append(contender)
        if not kept:
            why = "; ".join(f"{lacking}, {missing}" for lacking, missing in left_out.items()) or "none of those chosen"
            raise BenchError(f"row {name} has no contenders left: {why}")
        rows[name] = replace(ROWS[name], contenders=kept)
    return rows, left_out


def check_tools() -> None:
    for tool in ("wrk", "taskset"):
        if shutil.which(tool) is None:
            raise BenchError(f"{tool} is not installed (Debian: packages wrk and util-linux)")
    for command in ("twistd", "granian", "uvicorn", "gunicorn"):
        command_of_this_python(command)
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        raise BenchError(f"cores {SERVER_CORE} (servers) and {LOAD_CORE} (load) must both be available")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure postd beside its peers.")
    parser.add_argument("--rounds", type=positive, default=5, help="measurements of each figure (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=3, help="length of a measurement (%(default)s)")
    parser.add_argument("--warm-up", type=whole, default=1, help="seconds of load before each one (%(default)s)")
    parser.add_argument(
        "--rows", type=known_rows, default=list(ROWS), help=f"rows to measure, of {','.join(ROWS)} (all)"
    )
    against = parser.add_mutually_exclusive_group()
    against.add_argument("--only", type=known_peers, help=f"servers to measure, of {','.join(postd_and_peers())} (all)")
    against.add_argument("--before", type=Path, metavar="FOLDER", help="compare with the postd of another checkout")
    parser.add_argument(
        "--write", type=Path, nargs="?", const=RESULTS, metavar="FILE", help="also write the tables (to RESULTS.md)"
    )
    parser.add_argument("--append", action="store_true", help="append the tables to those of earlier runs")
    return parser.parse_args()


def whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    if whole(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def known_rows(text: str) -> list[str]:
    return known(text, ROWS)


def known_peers(text: str) -> list[str]:
    return known(text, postd_and_peers())


def known(text: str, names: Sequence[str] | dict[str, Row]) -> list[str]:
    asked = text.split(",")
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(names)}")
    return asked


def postd_and_peers() -> list[str]:
    rows = [row for row in ROWS.values() if not row.ratios]
    return list(dict.fromkeys(contender.name for row in rows for contender in row.contenders))


def main() -> None:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # An exception, so that all servers are stopped.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        check_tools()
        rows, left_out = choose(arguments)
        for name, missing in left_out.items():
            say(f"left out: {name}, {missing}")
        duration = Duration(arguments.seconds, arguments.warm_up)
        minutes = arguments.rounds * sum(row.estimate_s(duration) for row in rows.values()) / 60
        say(f"this takes about {minutes:.0f} min")
        lines = run(rows, arguments.rounds, duration)
        report = make_report(lines, left_out, shlex.join(["python", "bench/run.py", *sys.argv[1:]]))
    except BenchError as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    print(report)
    if arguments.write:
        write(arguments.write, report, append=arguments.append)


def write(file: Path, report: str, *, append: bool) -> None:
    before = file.read_text().rstrip() if append and file.exists() else HEADING
    file.write_text(f"{before}\n\n{report}")
    if file.resolve() == RESULTS:
        try:
            write_picture()
        except BenchError as error:
            say(f"the picture is unchanged: {error}")


if __name__ == "__main__":
    main()

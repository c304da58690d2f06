"""The benchmark runs; its figures are not checked, for no test is timed."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench import plot
from bench.contenders import NODE_LIVE, POSTD, falcon, fastapi
from bench.lists import measure_list
from bench.live import POSTD_LIVE, measure_live
from bench.open_loop import OpenLoop
from bench.report import Line, make_report
from bench.servers import BenchError, Server
from bench.workloads import Duration, fill

RUN = Path(__file__).parent.parent.parent / "bench" / "run.py"

WRK_S = 0.5
"""How long wrk runs in most of these tests; it takes whole seconds only."""

BODY = b"[]\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + BODY


def run_bench(*options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), "--rounds", "1", "--seconds", "1", "--warm-up", "0", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PATH": path} if path else None,
    )


@pytest.fixture
def short_wrk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """End each wrk with SIGINT, at which it prints what it has counted so far."""
    wrk = shutil.which("wrk")
    assert wrk is not None
    script = tmp_path / "bin" / "wrk"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec timeout --preserve-status --signal INT {WRK_S} {wrk} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)


@pytest.mark.usefixtures("short_wrk")
@pytest.mark.parametrize(
    ("rows", "only"),
    [
        ("get20-nolog", "postd,nginx"),
        ("get-one,mixed", "fastify"),
        ("not-modified,signin", "falcon"),
        ("post", "blacksheep+group"),
        ("digest", "blacksheep,flask"),
        ("basic,bearer", "fastapi"),
        ("p99,list100k", "postd"),
        ("page,pages-mixed", "fastify,blacksheep+group"),
        ("tail,start,idle", "falcon"),
        ("tls,tls-connections,tls-handshakes", "postd,nginx"),
        ("start", "fastapi"),
    ],
)
def test_rows_are_measured(rows: str, only: str) -> None:
    result = run_bench("--rows", rows, "--only", only)
    assert result.returncode == 0, result.stderr
    assert "Left out" not in result.stdout
    for word in (*rows.split(","), *only.split(",")):
        assert word in result.stdout


@pytest.mark.usefixtures("short_wrk")
@pytest.mark.parametrize("server", [POSTD, falcon()], ids=lambda server: server.name)
def test_list_is_read_while_posts_change(server: Server, tmp_path: Path) -> None:
    fill(30, tmp_path)
    figures = measure_list(server, tmp_path, 30, Duration(1, 0), (0, 20))
    assert list(figures) == [
        "30, 0 due/s: GET/s",
        "30, 20 due/s: GET/s",
        "30, 20 due/s: PUT/s",
        "30, 20 due/s: of 0 due/s",
    ]
    assert all(figures.values())


@pytest.mark.parametrize("server", [POSTD_LIVE, fastapi("live:app"), NODE_LIVE], ids=lambda server: server.name)
def test_live_changes_are_measured(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.live.LISTENERS", 20)
    figures = measure_live(server, tmp_path, Duration(0, 0))
    assert list(figures) == ["first ms", "last ms", "CPU µs", "MiB"]
    assert 0 < figures["first ms"] <= figures["last ms"]


@pytest.mark.usefixtures("short_wrk")
def test_postd_is_measured_beside_another_checkout() -> None:
    result = run_bench("--rows", "page,signin-bounds,beside-handshakes", "--before", str(RUN.parent.parent))
    assert result.returncode == 0, result.stderr
    for word in (
        "postd / postd before",
        "signin / signin before",
        "no logins / no logins before",
        "none / none before",
    ):
        assert word in result.stdout


@pytest.mark.usefixtures("short_wrk")
def test_schemes_are_measured_through_a_proxy_that_asks() -> None:
    result = run_bench("--rows", "forward")
    assert result.returncode == 0, result.stderr
    for word in ("auth_basic / plain", "digest / auth_basic", "bearer / auth_basic"):
        assert word in result.stdout


def test_folder_without_postd_is_no_checkout(tmp_path: Path) -> None:
    result = run_bench("--before", str(tmp_path))
    assert (result.returncode, result.stderr) == (1, f"bench: {tmp_path} is not a checkout of postd\n")


def test_output_file_equals_standard_output(tmp_path: Path) -> None:
    written = tmp_path / "results.md"
    written.write_text("Earlier tables.\n")
    result = run_bench("--rows", "store,dpop", "--write", str(written), "--append")
    assert result.returncode == 0, result.stderr
    assert written.read_text().startswith("Earlier tables.\n\n`python bench/run.py")
    assert "redis / sqlite" in result.stdout
    assert "dpop / bearer" in result.stdout
    assert result.stdout.strip() in written.read_text()


def test_report_compares_medians_with_the_best_python_peer() -> None:
    speed = {"postd": [30.0, 20.0, 10.0], "falcon": [4.0, 40.0, 5.0], "fastapi": [10.0, 10.0, 10.0], "nginx": [50.0]}
    time_ms = {"postd": [1.0], "falcon": [4.0], "fastapi": [2.0], "nginx": [0.5]}
    lines = [Line("get20", "requests/s", (), speed), Line("p99", "ms", (), time_ms)]
    report = make_report(lines, {"fastify": "it is away"}, "how")
    assert "Left out: **fastify**, it is away." in report
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines()]
    assert ["get20 requests/s", "20.0", "5.00", "10.0", "50.0"] in shown
    assert ["postd /", "best Python peer", "falcon", "fastapi", "nginx"] in shown
    assert ["get20 requests/s", "2.00 fastapi", "4.00", "2.00", "0.40"] in shown
    assert ["p99 ms (less is better)", "0.50 fastapi", "0.25", "0.50", "2.00"] in shown


def test_plot_names_each_row() -> None:
    speed = {"postd": [30.0], "falcon": [20.0], "fastapi": [10.0], "fastify": [15.0], "nginx": [90.0]}
    lines = [Line(row, "requests/s", (), speed) for row in plot.ROWS]
    results = plot.read_results(make_report(lines, {}, "how"))
    assert results.rows == {row: {name: values[0] for name, values in speed.items()} for row in plot.ROWS}
    texts = [element.text for element in ET.fromstring(plot.draw(results)).iter("{http://www.w3.org/2000/svg}text")]
    for row in plot.ROWS.values():
        assert row in texts
    assert (texts.count("30 postd"), texts.count("20 Falcon"), texts.count("15 Fastify")) == (len(plot.ROWS),) * 3
    assert any(text and text.startswith(results.dates[0]) for text in texts)


def test_last_run_with_a_row_counts() -> None:
    runs = [
        make_report([Line(row, "requests/s", (), {"postd": [speed]})], {}, "how")
        for row, speed in (("get20", 1.0), ("post", 2.0), ("get20", 3.0))
    ]
    assert plot.read_results("\n".join(runs)).rows == {"get20": {"postd": 3.0}, "post": {"postd": 2.0}}


def test_plot_names_the_machines_of_its_rows_only() -> None:
    runs = [make_report([Line("get20", "requests/s", (), {"postd": [speed]})], {}, "how") for speed in (1.0, 2.0)]
    old = re.sub(r"- .+, \d+ cores;", "- An old one, 2 cores;", runs[0])
    assert "An old one" in plot.read_results(old).machine
    assert "An old one" not in plot.read_results("\n".join([old, runs[1]])).machine


def test_plot_is_of_the_results() -> None:
    assert plot.PICTURE.read_text() == plot.draw(plot.read_results(plot.RESULTS.read_text()))


def test_contender_that_cannot_start_is_named(tmp_path: Path) -> None:
    for tool in ("wrk", "taskset"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    result = run_bench("--rows", "get-one", "--only", "fastify", path=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == (
        "bench: row get-one has no contenders left: fastify, node is not installed (Debian: packages nodejs and npm)\n"
    )


def test_unknown_row_is_named() -> None:
    result = run_bench("--rows", "get20,get21")
    assert result.returncode == 2
    assert "'get21' is not one of get20, " in result.stderr


def test_requests_due_during_a_stall_are_counted() -> None:
    """A closed loop would count one slow request for each of its 32 connections."""
    stall_s, per_second = 0.5, 400
    with answering(ANSWER, stall_s=stall_s) as port:
        load = OpenLoop("it", port, "/", BODY).ask(per_second, 1)
    assert len([latency for latency in load.latency_s if latency > stall_s / 4]) > stall_s * per_second / 2
    assert max(load.latency_s) >= stall_s * 0.9


def test_wrong_response_ends_the_open_loop() -> None:
    wrong = ANSWER.replace(b"[]", b"{}")
    with answering(wrong, stall_s=0) as port, pytest.raises(BenchError, match="it: GET was answered with"):
        OpenLoop("it", port, "/", BODY).ask(100, 1)


@contextmanager
def answering(answer: bytes, *, stall_s: float) -> Iterator[int]:
    """Serve the same response to all requests, on a port; stall for some time after a hundred of them."""
    answered, turn = 0, threading.Lock()
    served: list[tuple[socket.socket, threading.Thread]] = []

    def serve(connection: socket.socket) -> None:
        nonlocal answered
        with connection, suppress(OSError):  # it was reset
            while connection.recv(4096):
                with turn:
                    answered += 1
                    if answered == 100:
                        time.sleep(stall_s)
                    connection.sendall(answer)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            serving = threading.Thread(target=serve, args=[connection])
            served.append((connection, serving))
            serving.start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection, serving in served:
                with suppress(OSError):  # the client has closed it
                    connection.shutdown(socket.SHUT_RDWR)
                serving.join()

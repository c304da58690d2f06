"""The formats of the log, and its file; tests/integration has the log of the daemon."""

import io
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.logger import Logger, LogLevel, LogPublisher, capturedLogs
from twisted.python import log as legacy
from twisted.python.failure import Failure

from postd.daemon.log import ACCESS_LOG, LINE_MAX_BYTES, AppendedFile, format_access, format_json, format_text
from tests.cases import each

FORMATS = [format_text, format_json]


def logged(what: str, namespace: str = "postd.somewhere", **fields: Any) -> dict[str, Any]:
    """Return an event."""
    with capturedLogs() as events:
        Logger(namespace).info(what, **fields)
    return events[0]


def failed(error: Exception) -> dict[str, Any]:
    """Return the event of a failure."""
    with capturedLogs() as events:
        try:
            raise error
        except type(error):
            Logger("postd.somewhere").failure("it failed")
    return events[0]


def as_json(event: dict[str, Any]) -> dict[str, Any]:
    line = format_json(event)
    assert line is not None
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    members: dict[str, Any] = json.loads(line)
    return members


@each("form", FORMATS)
def test_access_log_lines_are_unchanged(form: Any) -> None:
    assert form(logged("{lines}", ACCESS_LOG.namespace, lines='"a" {x}\n"b"')) == '"a" {x}\n"b"\n'


@each("form", FORMATS)
def test_event_without_text_has_no_line(form: Any) -> None:
    assert form({"log_level": LogLevel.info}) is None


def test_text_line_has_the_format_of_twistd() -> None:
    line = format_text(logged("{name} came in", name="Jürgen"))
    assert line is not None
    at, _, rest = line.partition(" ")
    assert at.startswith("20")
    assert rest == "[postd.somewhere#info] Jürgen came in\n"


def test_control_characters_and_line_feeds_are_escaped() -> None:
    name = 'x\n127.0.0.1 - - "GET /"\r2026 [a] b\x1b[2J\x85\u2028\x00\x9b\udcff'
    line = format_text(logged("refused: {name}", name=name))
    assert line is not None
    escaped = line.partition("refused: ")[2]
    assert escaped == 'x\n\t127.0.0.1 - - "GET /"\\r2026 [a] b\\x1b[2J\\x85\\u2028\\x00\\x9b\\udcff\n'


def test_traceback_is_indented() -> None:
    line = format_text(failed(ValueError("one\n[two#info] three")))
    assert line is not None
    first, *more = line.splitlines()
    assert first.endswith("[postd.somewhere#critical] it failed")
    assert more[0] == "\tTraceback (most recent call last):"
    assert all(one.startswith("\t") for one in more)


def test_json_line_has_time_level_logger_and_text() -> None:
    event = logged("{name}: {count}", name="Jürgen 🚀", count=3) | {"log_time": 1_800_000_000.0625}
    assert as_json(event) == {
        "time": "2027-01-15T08:00:00.062+00:00",
        "level": "info",
        "logger": "postd.somewhere",
        "text": "Jürgen 🚀: 3",
    }
    assert "Jürgen 🚀" in str(format_json(event))


def test_json_text_is_unchanged_except_for_surrogates() -> None:
    name = 'a\n"b"\t\\\r\x1b\x7f\x85\u2028'
    assert as_json(logged("{name}", name=name))["text"] == name
    assert as_json(logged("{name}", name="a\udcff"))["text"] == "a\\udcff"


def test_json_text_of_a_failure_ends_with_the_traceback() -> None:
    members = as_json(failed(ValueError("one\ntwo")))
    assert members["level"] == "critical"
    assert members["text"].startswith("it failed\nTraceback (most recent call last):\n")
    assert members["text"].rstrip().endswith("ValueError: one\ntwo")


def test_json_line_of_a_worker_has_its_number() -> None:
    event = logged("worker {worker}: {relayed}", worker=2, relayed="{it} failed\nTraceback")
    members = as_json(event)
    assert (members["worker"], members["text"]) == (2, "{it} failed\nTraceback")
    assert str(format_text(event)).endswith("worker 2: {it} failed\n\tTraceback\n")


def test_json_line_of_a_legacy_event_has_its_system() -> None:
    with capturedLogs() as events:
        legacy.msg("(TCP Port 80 Closed)")
        legacy.msg("text", system="HTTP")
    first, second = (as_json(event) for event in events)
    assert (first["logger"], first["level"], first["text"]) == ("log_legacy", "info", "(TCP Port 80 Closed)")
    assert second["logger"] == "HTTP"


def test_unformattable_event_is_a_json_line() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no")

        __repr__ = __str__

    assert "no" in as_json(logged("{odd}", odd=Odd()))["text"]
    assert as_json({"log_format": "x", "log_system": Odd()})["text"] == "x"


LONG = ["x", "ü", "🙂", '"', "\\", "\x1b", "\x85", "\u2028", "\udcff", "\U000e0001", "a\n", "\n", "%F0"]


@each("form", FORMATS)
@each("unit", LONG)
@each("before", ["", "a", "ab", "abc"])
def test_long_line_is_cut(form: Any, unit: str, before: str) -> None:
    events = (
        logged("{a} {b}", a=before, b=unit * LINE_MAX_BYTES),
        failed(ValueError(before + unit * LINE_MAX_BYTES)),
        logged("worker {worker}: {relayed}", worker=1, relayed=before + unit * LINE_MAX_BYTES),
        logged(f"a{before}", namespace=before + unit * LINE_MAX_BYTES),
    )
    for event in events:
        for line in str(form(event)).splitlines():
            check_cut(line)
            assert form is format_text or json.loads(line)


@each("unit", ["x", "ü", "\\x1b", '\\"', "%F0"])
@each("before", ["", "a", "ab", "abc"])
def test_long_access_line_is_cut(unit: str, before: str) -> None:
    text = before + unit * LINE_MAX_BYTES
    short, long, last = str(format_text(logged("", ACCESS_LOG.namespace, lines=f"a\n{text}\nb"))).splitlines()
    assert (short, last) == ("a", "b")
    check_cut(long)
    assert text.startswith(long.removesuffix(" ..."))
    lines = f'{{"a":"b"}}\n{json.dumps({"user": before, "target": text, "ms": 0.5})}\n{{"c":"d"}}'
    short, long, last = str(format_json(logged("", ACCESS_LOG.namespace, lines=lines))).splitlines()
    assert (short, last) == ('{"a":"b"}', '{"c":"d"}')
    check_cut(long)
    members = json.loads(long)
    assert (members["user"], members["ms"]) == (before, 0.5)


def check_cut(line: str) -> None:
    """Check that a line is within the bound, and cut neither in an escape nor more than half away."""
    assert len(f"{line}\n".encode()) <= LINE_MAX_BYTES
    if line.endswith(" ..."):
        assert len(line.encode()) > LINE_MAX_BYTES - 20
        assert not re.search(r"\\(?:x.?|u.{0,3}|U.{0,7}) \.\.\.$|%.? \.\.\.$", line)


def test_line_within_the_bound_is_whole() -> None:
    for unit in ("x", "🙂"):
        size = LINE_MAX_BYTES - 1
        lines = unit * (size // len(unit.encode())) + "x" * (size % len(unit.encode()))
        assert format_text(logged("", ACCESS_LOG.namespace, lines=lines)) == f"{lines}\n"
        assert format_text(logged("", ACCESS_LOG.namespace, lines=f"x{lines}")) != f"x{lines}\n"


def test_cut_json_line_keeps_the_end_of_the_traceback() -> None:
    members = as_json(failed(ValueError("x" * LINE_MAX_BYTES + "the cause")))
    assert members["text"].startswith("it failed\nTraceback")
    assert " ... " in members["text"]
    assert members["text"].rstrip().endswith("the cause")


def test_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "posts.log"
    path.write_text("from before\n")
    file = AppendedFile(str(path), format_text)
    file(logged("a\udcff", ACCESS_LOG.namespace, lines="one\ntwo\udcff"))
    assert path.read_text() == "from before\none\ntwo\\udcff\n"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o640), (0o077, 0o600)])
def test_new_file_is_readable_for_owner_and_group_only(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "posts.log"
    before = os.umask(umask)
    try:
        file = AppendedFile(str(path), format_text)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        os.umask(0o777)
        path.rename(tmp_path / "old")
        file.reopen()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_reopen_after_a_rename_continues_in_the_new_file(tmp_path: Path) -> None:
    path, old = tmp_path / "posts.log", tmp_path / "old"
    file = AppendedFile(str(path), format_text)
    access(file, "one")
    path.rename(old)
    access(file, "two")
    file.reopen()
    access(file, "three")
    path.rename(tmp_path / "older")
    path.write_text("made by logrotate\n")
    file.reopen()
    access(file, "four")
    assert old.read_text() == "one\ntwo\n"
    assert (tmp_path / "older").read_text() == "three\n"
    assert path.read_text() == "made by logrotate\nfour\n"


def test_failed_reopen_continues_in_the_old_file(tmp_path: Path) -> None:
    path, old = tmp_path / "posts.log", tmp_path / "old"
    file = AppendedFile(str(path), format_text)
    path.rename(old)
    path.mkdir()
    with capturedLogs() as events:
        file.reopen()
    file(events[0])
    why = "could not be reopened: Is a directory; logging continues in the old one"
    assert old.read_text().endswith(f"#error] log file {path} {why}\n")


def test_reopen_leaks_no_descriptor(tmp_path: Path) -> None:
    file = AppendedFile(str(tmp_path / "posts.log"), format_text)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        file.reopen()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["no/such/folder", ".", "pipe", "a\0b"])
def test_unwritable_path_raises(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((OSError, ValueError)):
        AppendedFile(str(tmp_path / name), format_text)


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """Let no file of this process grow over a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("form", FORMATS)
def test_full_disk_is_reported_once_and_the_gap_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    # Not the real one: it goes to a file, too, as long as pytest runs.
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", stderr)
    path = tmp_path / "posts.log"
    file = AppendedFile(str(path), form)
    access(file, "one")
    with full_after(path.stat().st_size + 3):
        access(file, "two is cut")
        for _ in range(5):
            access(file, "a\nb")
    warning = stderr.getvalue()
    assert warning == f"postd: log file {path} cannot be written: File too large; log lines are lost\n"
    access(file, "three")
    access(file, "four")
    one, two, gap, three, four = path.read_text().splitlines()
    assert (one, two, three, four) == ("one", "two", "three", "four")
    assert "11 log lines were lost or cut here: File too large" in gap
    assert stderr.getvalue() == warning


def test_full_disk_causes_no_log_event(capfd: pytest.CaptureFixture[str]) -> None:
    events: list[Any] = []
    publisher = LogPublisher(AppendedFile("/dev/full", format_text), cast(Any, events.append))
    for _ in range(3):
        Logger("a", observer=publisher).failure("it failed", Failure(ValueError("why")))
    assert [event["log_namespace"] for event in events] == ["a"] * 3
    why = "No space left on device"
    assert capfd.readouterr().err == f"postd: log file /dev/full cannot be written: {why}; log lines are lost\n"


def test_access_file_has_access_lines_alone_and_its_gap_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    file = AppendedFile(str(path), format_access)
    file(logged("no access line"))
    access(file, "one\ntwo")
    with full_after(path.stat().st_size), capturedLogs() as events:
        access(file, "three\nfour")
        access(file, "five")
    assert all("lines" in event for event in events)
    with capturedLogs() as events:
        access(file, "six")
    assert path.read_text() == "one\ntwo\nsix\n"
    assert f"{path}: 3 log lines were lost or cut: File too large" in str(format_text(events[1]))


@each("umask", [0o022, 0o077])
def test_file_that_ignores_the_umask_is_readable_for_its_group(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "access.log"
    before = os.umask(umask)
    try:
        file = AppendedFile(str(path), format_access, ignore_umask=True)
        path.rename(tmp_path / "old")
        file.reopen()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(one.stat().st_mode) for one in (path, tmp_path / "old")} == {0o640}


def test_file_of_no_event_is_not_created(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder/access.log"
    file = AppendedFile(str(path), format_access, at_first_event=True)
    file.reopen()
    access(file, "one")
    path.parent.mkdir()
    assert list(path.parent.iterdir()) == []
    access(file, "two")
    assert path.read_text() == "two\n"
    access(AppendedFile("a\0b", format_access, at_first_event=True), "one")
    assert "embedded null" in capfd.readouterr().err


def access(file: AppendedFile, lines: str) -> None:
    file(logged("{lines}", ACCESS_LOG.namespace, lines=lines))

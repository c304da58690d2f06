"""The log of a real daemon: its file, its formats, its reopening."""

import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers import wait_until
from tests.integration.daemon import FREE_PORT, START_MAX_S, STOP_MAX_S, TWISTD, Daemon, run_postd, wait_for_end

TARGET = re.compile(r"/post\?after=[0-9]+")


def configure(folder: Path, log: str, *, more: str = "") -> tuple[str, str]:
    """Write settings with a free port; return the options for them."""
    (folder / "postd.toml").write_text(f"listen = ['{FREE_PORT}']\nstore = 'sqlite:postd.db'\n{more}\n[log]\n{log}\n")
    return ("-c", "postd.toml")


def wait_for(path: Path, words: str) -> str:
    """Wait until a file contains a text; return its content."""
    deadline = time.monotonic() + START_MAX_S
    while True:
        text = path.read_text() if path.exists() else ""
        if words in text:
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


def parsed(text: str) -> list[dict[str, Any]]:
    """Return the objects of a JSON log."""
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


class Asking:
    """Clients that make one request after another until they are stopped."""

    def __init__(self, url: str, clients: int = 2) -> None:
        self._url = url
        self._enough = threading.Event()
        self.asked: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=START_MAX_S) as client:
            for n in range(100_000):
                target = f"/post?after={number + 1}{n:06}"
                client.get(target)
                self.asked.append(target)
                if self._enough.is_set():
                    return

    def wait_for_more(self) -> None:
        """Wait for several responses to requests made after this call."""
        so_far, deadline = len(self.asked), time.monotonic() + START_MAX_S
        while len(self.asked) < so_far + 100:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()


def rotate(path: Path, pid: int, old: Path, said_in: Path) -> None:
    """Rotate the log as logrotate does, once it has lines."""
    wait_for(path, "/post?after=")
    path.rename(old)
    reloads = said_in.read_text().count("SIGHUP") if said_in.exists() else 0
    os.kill(pid, signal.SIGHUP)
    wait_until(lambda: os.access(said_in, os.R_OK) and said_in.read_text().count("SIGHUP") > reloads)


def check_rotation(
    folder: Path, url: str, pid: int, end: Callable[[], object], said_in: Path | None = None
) -> list[str]:
    """Rotate the log under load, twice, and end the server; return the lines of all files, in their order."""
    path = folder / "posts.log"
    asking = Asking(url)
    try:
        for old in (folder / "first.log", folder / "second.log"):
            asking.wait_for_more()
            rotate(path, pid, old, said_in or path)
        asking.wait_for_more()
        wait_for(path, "/post?after=")
    finally:
        asking.stop()
    end()
    files = [folder / "first.log", folder / "second.log", path]
    assert all(TARGET.search(file.read_text()) for file in files)
    text = "".join(file.read_text() for file in files)
    assert sorted(TARGET.findall(text)) == sorted(asking.asked)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o640}
    return text.splitlines()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_log_file_is_reopened_on_sighup_without_loss(tmp_path: Path, workers: str) -> None:
    (tmp_path / "posts.log").write_text("from before\n")
    (tmp_path / "posts.log").chmod(0o640)
    with Daemon(tmp_path, *configure(tmp_path, 'file = "posts.log"'), "-w", workers, listen=None, wait=False) as daemon:
        ready = wait_for(tmp_path / "posts.log", "postd ready")
        url = str(re.findall(r"ready: (\S+?)/;", ready)[0])
        first, *lines = check_rotation(tmp_path, url, daemon.process.pid, daemon.stop)
        assert daemon.log == ""
    assert first == "from before"
    assert lines[-1].endswith("Server Shut Down.")
    for line in lines:
        assert re.match(r"[0-9T:+-]{24} \[\S+\] ", line) or re.match(r'"?127\.0\.0\.1"? - - \[.*\] "GET /post', line)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_twistd_log_file_is_reopened_on_sighup(tmp_path: Path, workers: str) -> None:
    (tmp_path / "posts.log").touch()
    (tmp_path / "posts.log").chmod(0o640)
    options = configure(tmp_path, "")
    # In the background, where twistd sets a stricter umask.
    before = ("--logfile=posts.log",)
    assert run_postd(tmp_path, *options, "-w", workers, before=before).returncode == 0
    pid = int((tmp_path / "twistd.pid").read_text())

    def end() -> None:
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid)

    try:
        ready = wait_for(tmp_path / "posts.log", "postd ready")
        url = str(re.findall(r"ready: (\S+?)/;", ready)[0])
        lines = check_rotation(tmp_path, url, pid, end)
    finally:
        if Path(f"/proc/{pid}").exists():
            end()
    assert lines[-1].endswith("Server Shut Down.")


def test_twistd_log_file_that_cannot_be_reopened_stays_open(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    command = [TWISTD, "--nodaemon", "--pidfile=", "--logfile=logs/posts.log", "postd", "--store=memory:"]
    process = subprocess.Popen([*command, f"--listen={FREE_PORT}"], cwd=tmp_path)
    try:
        wait_for(folder / "posts.log", "postd ready")
        folder.rename(tmp_path / "away")
        process.send_signal(signal.SIGHUP)
        text = wait_for(tmp_path / "away/posts.log", "SIGHUP: ")
    finally:
        process.terminate()
        process.wait(STOP_MAX_S)
    assert f"log file {folder}/posts.log could not be reopened: No such file or directory; logging continues" in text
    assert (tmp_path / "away/posts.log").read_text().endswith("Server Shut Down.\n")
    assert "Traceback" not in text


def start_in_background(folder: Path, *options: str) -> tuple[int, Callable[[], None]]:
    """Start a daemon that leaves the terminal; return its process, and a function that ends it."""
    before = os.umask(0o022)
    try:
        assert run_postd(folder, *options, before=()).returncode == 0
    finally:
        os.umask(before)
    pid = int((folder / "twistd.pid").read_text())

    def end() -> None:
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid)

    return pid, end


def test_json_log_file_in_the_background_has_an_object_a_line(tmp_path: Path) -> None:
    options = configure(tmp_path, 'file = "posts.log"\nformat = "json"', more="workers = 2")
    pid, end = start_in_background(tmp_path, *options)
    try:
        ready = wait_for(tmp_path / "posts.log", "postd ready")
        url = str(re.findall(r"ready: (\S+?)/;", ready)[0])
        events = [json.loads(line) for line in check_rotation(tmp_path, url, pid, end)]
    finally:
        if Path(f"/proc/{pid}").exists():
            end()
    assert not (tmp_path / "twistd.log").exists()
    said = [event for event in events if "logger" in event]
    assert {event["level"] for event in said} == {"info"}
    assert {event.get("worker") for event in said} >= {None, 1, 2}
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", event["time"]) for event in events)


FAILING = """
import sys
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.scripts.twistd import run
Logger("odd").failure("{what}", Failure(ValueError("one\\ntwo")), what="a\\n{}\\x1b")
run()
"""


def test_json_log_on_standard_output_has_an_object_a_line(tmp_path: Path) -> None:
    options = configure(tmp_path, 'format = "json"')
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", FAILING, "--nodaemon", "--pidfile=", "postd", *options],
            cwd=tmp_path,
            stdout=file,
            stderr=subprocess.DEVNULL,
        )
    try:
        (url,) = re.findall(r"ready: (\S+?)/;", wait_for(out, "postd ready"))
        assert httpx.get(f"{url}/post", headers={"User-Agent": 'a"\\'}).status_code == 200
    finally:
        process.terminate()
        process.wait(STOP_MAX_S)
    events = parsed(out.read_text())
    (failure,) = [event for event in events if event.get("logger") == "odd"]
    assert failure["level"] == "critical"
    assert failure["text"].startswith("a\n{}\x1b\n")
    assert failure["text"].rstrip().endswith("ValueError: one\ntwo")
    (access,) = [event for event in events if "logger" not in event]
    assert (access["target"], access["status"]) == ("/post", 200)


def test_access_log_can_be_turned_off(tmp_path: Path) -> None:
    """So has twistd's own log file."""
    options = configure(tmp_path, 'access = false\nformat = "json"')
    before = ("--nodaemon", "--pidfile=", "--logfile=twistds.log")
    process = subprocess.Popen([TWISTD, *before, "postd", *options], cwd=tmp_path)
    try:
        (url,) = re.findall(r"ready: (\S+?)/;", wait_for(tmp_path / "twistds.log", "postd ready"))
        assert httpx.get(f"{url}/post").status_code == 200
    finally:
        process.terminate()
        process.wait(STOP_MAX_S)
    text = (tmp_path / "twistds.log").read_text()
    assert "GET" not in text
    assert parsed(text)[-1]["text"] == "Server Shut Down."


COMBINED = re.compile(r'127\.0\.0\.1 - (-|alice) \[[^]]+ \+0000\] "[A-Z]+ \S+ HTTP/1\.1" \d{3} [\d-]+ "[^"]*" "[^"]*"')


@pytest.mark.parametrize("workers", ["1", "2"])
def test_access_file_has_the_access_lines_alone(tmp_path: Path, workers: str) -> None:
    """In the background, with the other lines in twistd's own log, as JSON."""
    (tmp_path / "settings").mkdir()
    log = 'access_file = "posts.log"\nformat = "json"'
    configure(tmp_path / "settings", log)
    options = ("-c", "settings/postd.toml", "-w", workers)
    pid, end = start_in_background(tmp_path, *options)
    try:
        ready = wait_for(tmp_path / "twistd.log", "postd ready")
        url = str(re.findall(r"ready: (\S+?)/;", ready)[0])
        lines = check_rotation(tmp_path / "settings", url, pid, end, said_in=tmp_path / "twistd.log")
    finally:
        if Path(f"/proc/{pid}").exists():
            end()
    assert all(COMBINED.fullmatch(line) for line in lines)
    assert all("logger" in event for event in parsed((tmp_path / "twistd.log").read_text()))


def test_access_file_is_made_when_a_reload_turns_access_lines_on(tmp_path: Path) -> None:
    options = configure(tmp_path, 'access_file = "logs/access.log"\naccess = false')
    with Daemon(tmp_path, *options, listen=None, wait=False) as daemon:
        daemon.wait_for("postd ready")
        url = str(re.findall(r"ready: (\S+?)/;", daemon.log)[0])
        httpx.get(f"{url}/post")
        configure(tmp_path, 'access_file = "logs/access.log"')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("postd.toml: log.access_file: ")
        assert f"{tmp_path}/logs/access.log: its folder does not exist" in daemon.log
        (tmp_path / "logs").mkdir()
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: daemon.log.count("SIGHUP: reload") == 2)
        wait_until(lambda: (httpx.get(f"{url}/post"), [*(tmp_path / "logs").iterdir()])[1])
        daemon.stop()
        assert '"GET' not in daemon.log
    assert COMBINED.match((tmp_path / "logs/access.log").read_text())


def test_access_file_cannot_be_the_log_file(tmp_path: Path) -> None:
    result = run_postd(tmp_path, *configure(tmp_path, 'file = "a.log"\naccess_file = "./a.log"'))
    why = "postd.toml: log.access_file: is the file of log.file already; allowed: another path"
    assert (result.returncode, result.stderr) == (1, f"postd: {why}\n")


@pytest.mark.parametrize("key", ["file", "access_file"])
@pytest.mark.parametrize(
    ("name", "why", "mode"),
    [
        ("no/such/x.log", "no/such/x.log: its folder does not exist", ("--nodaemon", "--pidfile=")),
        (".", "Is a directory", ("--pidfile=",)),
        ("a\\u0000b", "embedded null", ("--pidfile=",)),
    ],
    ids=["foreground", "folder", "no name"],
)
def test_unwritable_log_file_fails_the_start(
    tmp_path: Path, key: str, name: str, why: str, mode: tuple[str, ...]
) -> None:
    result = run_postd(tmp_path, *configure(tmp_path, f'{key} = "{name}"'), before=mode)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"postd: postd.toml: log.{key}: ")
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["postd.toml"]


def test_full_log_disk_does_not_stop_the_service(socket_folder: Path) -> None:
    with Daemon(
        socket_folder, *configure(socket_folder, 'file = "/dev/full"'), listen="unix:p.sock", wait=False
    ) as daemon:
        daemon.wait_for("No space left on device")
        wait_until((socket_folder / "p.sock").exists)
        transport = httpx.HTTPTransport(uds=str(socket_folder / "p.sock"))
        with httpx.Client(transport=transport, timeout=START_MAX_S) as client:
            assert client.post("http://x/post", json={"post": "x"}).status_code == 201
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.stop() == -signal.SIGTERM
        why = "No space left on device"
        assert daemon.log == f"postd: log file /dev/full cannot be written: {why}; log lines are lost\n"


def test_log_device_is_written_and_not_renamed(tmp_path: Path) -> None:
    """Stock twistd renames it after a megabyte and creates a file: as root even /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDWR), "rb") as reader:
        command = [TWISTD, "--nodaemon", "--pidfile=", f"--logfile={pipe}", "postd", "--store=memory:"]
        process = subprocess.Popen([*command, f"--listen={FREE_PORT}"], cwd=tmp_path)
        try:
            assert any(b"postd ready: " in line for line in reader)
            pipe.rename(tmp_path / "old")
            os.mkfifo(pipe)
            with os.fdopen(os.open(pipe, os.O_RDWR), "rb", 0) as new:
                process.send_signal(signal.SIGHUP)
                assert select.select([new], [], [], START_MAX_S)[0]
                assert b"SIGHUP: " in new.read(10_000)
        finally:
            process.terminate()
            process.wait(STOP_MAX_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "pipe"]

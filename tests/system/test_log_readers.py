"""The programs that read `[log] access_file` as it is, and the filter and the jail of fail2ban in etc/."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.helpers import PATIENCE_S, wait_until
from tests.integration.daemon import START_MAX_S, Daemon
from tests.integration.wire import talk

FAIL2BAN = Path(__file__).parent.parent.parent / "etc" / "fail2ban"
FILTER = FAIL2BAN / "filter.d" / "postd.conf"
JAIL = FAIL2BAN / "jail.d" / "postd.conf"

SETTINGS = """\
store = "memory:"
users = "users"
trusted_proxies = ["127.0.0.1"]
[throttle]
failures = 3
[log]
format = "{form}"
access_file = "access.log"
"""
ATTACKER = {"X-Forwarded-For": "192.0.2.7"}
BY_IPV6 = {"X-Forwarded-For": "2001:db8::1"}
CHROMIUM = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
AGENTS = ("curl/7.88.1", CHROMIUM, '" [x] \\', "")
TARGETS = (
    *("/wp-login.php", '/a"b\\c[d]|', "/a%20b", "/" + "abcdefg/" * 30, "//x", "/alice@example.org"),
    *("/eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "/post?limit=1&token=[x]", '/post?x="', "/basic"),
)
WITHOUT_METHOD = (b"\x16\x03\x01\r\n\r\n", b"hunter2 / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
"""Requests whose method is no word: some readers count only requests that have one that they know."""

FAILED_LOGINS = 3 + 1 + 1
"""Failures up to the limit, the line that the limit is reached, and the failure by form."""

LINES = len(AGENTS) + 1 + 1 + len(TARGETS) + FAILED_LOGINS + 1 + len(WITHOUT_METHOD)


class Logs(NamedTuple):
    """The two files of a server."""

    access: Path
    events: Path


def make_logs(folder: Path, form: str = "text") -> Logs:
    """Return the logs of a server that got requests of all kinds."""
    (folder / "postd.toml").write_text(SETTINGS.format(form=form))
    (folder / "users").write_text("")
    with Daemon(folder, "-c", "postd.toml") as daemon:
        with httpx.Client(base_url=daemon.url) as client:
            for agent in AGENTS:
                client.get("/post", headers={"User-Agent": agent, "Referer": "https://www.example/search?q=x"})
            client.head("/post", headers=BY_IPV6)
            client.post("/post", json={"post": "x"})
            for _ in range(FAILED_LOGINS - 1):
                client.get("/basic", headers=ATTACKER, auth=("alice", "wrong"))
            client.post("/login", headers=BY_IPV6, data={"username": "bob", "password": "wrong"})
            client.get("/post", headers=ATTACKER | {"Authorization": "Bearer wrong"})
        for target in TARGETS:
            talk(daemon, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        for request in WITHOUT_METHOD:
            talk(daemon, request)
    return Logs(folder / "access.log", daemon.log_file)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    made = make_logs(tmp_path_factory.mktemp("logs"))
    assert len(made.access.read_text().splitlines()) == LINES
    return made


def run(*command: str | Path, folder: Path) -> str:
    """Run a program; return what it prints."""
    result = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_goaccess_reads_every_line(logs: Logs, tmp_path: Path) -> None:
    command = ("goaccess", "--no-global-config", "--log-format=COMBINED", "-o", "report.json", logs.access)
    run(*command, folder=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["general"]["valid_requests"], report["general"]["failed_requests"]) == (LINES, 0)
    missing = {request["data"] for request in report["not_found"]["data"]}
    assert {"/wp-login.php", "/~17", "/~29"} <= missing


def test_lnav_finds_the_format_and_every_request(logs: Logs, tmp_path: Path) -> None:
    query = "select cs_uri_stem, sc_status, cs_user_agent from access_log where cs_method is not null"
    output = run("lnav", "-n", "-c", f";{query}", "-c", ":write-json-to -", logs.access, folder=tmp_path)
    found = [(row["cs_uri_stem"], row["sc_status"]) for row in json.loads(output)]
    assert len(found) == LINES - len(WITHOUT_METHOD)
    assert ("/wp-login.php", 404) in found


def test_awstats_qualifies_every_request(logs: Logs, tmp_path: Path) -> None:
    settings = (f'LogFile="{logs.access}"', "LogFormat=1", 'SiteDomain="posts"', "DNSLookup=0", f'DirData="{tmp_path}"')
    (tmp_path / "awstats.posts.conf").write_text("\n".join(settings))
    output = run("/usr/lib/cgi-bin/awstats.pl", "-config=posts", f"-configdir={tmp_path}", "-update", folder=tmp_path)
    assert re.findall(r"Found (\d+) (dropped|corrupted|new qualified)", output) == [
        (str(len(WITHOUT_METHOD)), "dropped"),
        ("0", "corrupted"),
        (str(LINES - len(WITHOUT_METHOD)), "new qualified"),
    ]


def test_syslog_ng_parses_every_line(logs: Logs, tmp_path: Path) -> None:
    found = tmp_path / "found"
    (version,) = re.findall(r"^Config version: (.+)$", run("syslog-ng", "--version", folder=tmp_path), re.MULTILINE)
    (tmp_path / "syslog-ng.conf").write_text(f"""\
@version: {version}
@include "scl.conf"
log {{
    source {{ file("{logs.access}" read-old-records(yes) flags(no-parse)); }};
    parser {{ apache-accesslog-parser(prefix("found.")); }};
    destination {{ file("{found}" template("$(format-json --key found.*)\\n") flush-lines(1)); }};
}};
""")
    names = [f"--{name}={tmp_path}/{name}" for name in ("persist-file", "pidfile", "control")]
    command = ["syslog-ng", "-F", "-f", "syslog-ng.conf", "--no-caps", *names]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or (found.exists() and found.read_text().count("\n") == LINES))
    finally:
        process.terminate()
        process.wait(START_MAX_S)
    parsed = [json.loads(line)["found"] for line in found.read_text().splitlines()]
    asked = [(request["verb"], request["request"], request["response"]) for request in parsed]
    assert ("GET", "/wp-login.php", "404") in asked
    assert ("-", "-", "400") in asked


def matches(log: Path, name: str | Path, folder: Path) -> list[str]:
    """Return the addresses that a filter of fail2ban finds in a log."""
    return run("fail2ban-regex", "--out=ip", log, name, folder=folder).split()


def test_fail2ban_finds_scans_with_its_own_filter(logs: Logs, tmp_path: Path) -> None:
    assert matches(logs.access, "nginx-botsearch", tmp_path) == ["127.0.0.1"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_fail2ban_finds_failed_logins(tmp_path: Path, form: str) -> None:
    logs = make_logs(tmp_path, form)
    expected = ["192.0.2.7"] * (FAILED_LOGINS - 1) + ["2001:db8::1"]
    assert matches(logs.events, FILTER, tmp_path) == expected
    # Basic asks for credentials by a 401, so that one is no failure.
    assert matches(logs.access, FILTER, tmp_path) == ["192.0.2.7", "2001:db8::1"]


def test_fail2ban_finds_failed_logins_in_the_journal(tmp_path: Path) -> None:
    """As the backend `systemd` passes them: the time is apart."""
    event = "[postd.auth.credentials#info] login refused: form 'alice' from 192.0.2.7: wrong password"
    at = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime())
    line = f"{time.strftime('%b %d %H:%M:%S')} host postd[7]: {at} {event}"
    (tmp_path / "log").write_text(f"{line}\n")
    assert matches(tmp_path / "log", FILTER, tmp_path) == ["192.0.2.7"]
    assert "\njournalmatch = _SYSTEMD_UNIT=postd.service\n" in FILTER.read_text()


def test_fail2ban_starts_the_jail(logs: Logs, tmp_path: Path) -> None:
    settings = tmp_path / "fail2ban"
    shutil.copytree("/etc/fail2ban", settings)
    (settings / "jail.d" / "defaults-debian.conf").unlink()  # its jail needs a log of sshd
    shutil.copy(FILTER, settings / "filter.d")
    text = JAIL.read_text()
    assert "\nlogpath = /var/log/postd/postd.log\n" in text
    (settings / "jail.d" / "postd.conf").write_text(text.replace("/var/log/postd/postd.log", str(logs.events)))
    assert "configuration test is successful" in run("fail2ban-client", "-c", settings, "-t", folder=tmp_path)
    commands = run("fail2ban-client", "-c", settings, "-d", folder=tmp_path)
    assert f"['set', 'postd', 'addlogpath', '{logs.events}', 'head']" in commands
    assert "['start', 'postd']" in commands

"""Allowed hosts of the real daemon, on each kind of listener (reference: Hosts)."""

import json
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration import forking
from tests.integration.daemon import FREE_PORT, Daemon, run_postd
from tests.integration.logins import POSTD
from tests.integration.test_daemon import check_refused

EVIL = "evil.example"
WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


def ask(address: tuple[str, int] | str, host: str, request: str = "GET /post", *, before: bytes = b"") -> int:
    """Return the status of a request on a connection of its own; the address may be the path of a UNIX socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(PATIENCE_S)
        client.connect(address)
        client.sendall(before + f"{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while piece := client.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status == 421:
        assert b"\r\nContent-Type: application/problem+json\r\n" in head
        assert request.startswith("HEAD") or json.loads(body)["status"] == 421
        assert EVIL.encode() not in received
    return status


def start(folder: Path, settings: str) -> Daemon:
    (folder / "postd.toml").write_text(settings)
    return Daemon(folder, "-c", "postd.toml", listen=None)


def ports_of(daemon: Daemon) -> list[int]:
    (line,) = [line for line in daemon.log.splitlines() if "postd ready: " in line]
    return [int(port) for port in re.findall(r"https?://[0-9.]+:([0-9]+)/", line)]


@WORKERS
def test_page_of_another_host_reads_and_writes_nothing_on_loopback(tmp_path: Path, workers: str) -> None:
    with start(tmp_path, f'listen = ["{FREE_PORT}"]\nworkers = {workers}\n') as daemon:
        address = ("127.0.0.1", daemon.port)
        for _ in range(6):  # each worker most probably gets some
            assert ask(address, f"127.0.0.1:{daemon.port}") == ask(address, "posts.localhost") == 200
            for request in ("GET /post", "HEAD /post", "GET /", "GET /digest", "PATCH /post", "OPTIONS *", "GET /none"):
                assert ask(address, f"{EVIL}:{daemon.port}", request) == 421
        url = f"{daemon.url}/post"
        answer = httpx.post(url, json={"post": "x"}, headers={"Host": EVIL})
        assert (answer.status_code, answer.headers["Connection"]) == (421, "close")
        assert httpx.get(url).json() == []
        assert f"{daemon.url}/ answers requests for localhost, *.localhost, loopback addresses\n" in daemon.log
    assert 1 <= daemon.log.count("421, its host (") <= int(workers)
    assert EVIL not in daemon.log


def test_each_kind_of_listener_checks_hosts(socket_folder: Path, certificate: tuple[Path, Path]) -> None:
    """Only listeners on loopback have the automatic rule, the admin listener among them."""
    key, cert = certificate
    listen = [
        FREE_PORT,
        "tcp:0:interface=0.0.0.0",
        f"haproxy:{FREE_PORT}",
        f"ssl:0:privateKey={key}:certKey={cert}:interface=127.0.0.1",
        "unix:p.sock",
        "tcp6:0:interface=\\:\\:1",
    ]
    more = f'insecure = ["open-writes"]\n[admin]\nlisten = ["{FREE_PORT}", "tcp:0:interface=0.0.0.0"]\n'
    with start(socket_folder, f"listen = {json.dumps(listen)}\n{more}") as daemon:
        loopback, on_all, haproxy, tls, admin, admin_on_all = (("127.0.0.1", port) for port in ports_of(daemon))
        assert [ask(loopback, host) for host in (EVIL, "localhost")] == [421, 200]
        assert ask(on_all, EVIL) == 200
        for header in (b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 80\r\n", b"PROXY TCP4 127.0.0.1 127.0.0.1 5000 80\r\n"):
            assert ask(haproxy, EVIL, before=header) == 200
        assert ask(str(socket_folder / "p.sock"), EVIL) == 200
        (ipv6,) = re.findall(r"http://\[::1\]:[0-9]+/", daemon.log.partition("postd ready: ")[2].partition(";")[0])
        for host, status in ((EVIL, 421), ("[::1]", 200)):
            assert httpx.get(f"{ipv6}post", headers={"Host": host}).status_code == status
        url = f"https://127.0.0.1:{tls[1]}/post"
        assert httpx.get(url, verify=False, headers={"Host": EVIL}).status_code == 421
        assert httpx.get(url, verify=False).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics", "/none"):
            assert ask(admin, EVIL, f"GET {path}") == 421
            assert ask(admin, "localhost:9180", f"GET {path}") == ask(admin_on_all, EVIL, f"GET {path}") != 421
        metrics = httpx.get(f"http://127.0.0.1:{admin[1]}/metrics").text
        counted = re.findall(r"^postd_http_requests_total\{(.*)\} ([0-9.]+)$", metrics, re.MULTILINE)
        assert sum(float(count) for labels, count in counted if 'status="421"' in labels) == 3


def test_trusted_proxy_may_use_any_host(tmp_path: Path) -> None:
    settings = f'listen = ["{FREE_PORT}"]\ntrusted_proxies = ["127.0.0.9"]\n'
    with start(tmp_path, settings) as daemon:
        for source, status in (("127.0.0.9", 200), ("127.0.0.1", 421)):
            with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
                answer = client.get(f"{daemon.url}/post", headers={"Host": EVIL, "X-Forwarded-For": "127.0.0.9"})
                assert answer.status_code == status
        assert "; for any host from trusted proxies\n" in daemon.log


def test_gateway_before_dpop_needs_hosts(tmp_path: Path) -> None:
    settings = (
        f'listen = ["{FREE_PORT}"]\ntrusted_proxies = ["127.0.0.1"]\n[[page]]\npath = "/gate"\nschemes = ["bearer"]\n'
        'forward = true\n[[bearer]]\nissuer = "http://127.0.0.1:1"\naudience = "a"\ndpop = "accept"\n'
    )
    (tmp_path / "postd.toml").write_text(settings)
    check_refused(run_postd(tmp_path, "-c", "postd.toml"), "postd.toml: page[0].forward: ", "hosts", "public_url")
    checked = forking.run([POSTD, "check", "-c", "postd.toml"], tmp_path)
    assert checked.returncode == 1
    assert "postd.toml: page[0].forward: " in (checked.stdout + checked.stderr).decode()
    described = {"X-Original-Method": "GET", "X-Original-URI": "/", "Host": "app.example"}
    with start(tmp_path, f'hosts = ["app.example"]\n{settings}') as daemon:
        for host, status in (("app.example", 401), ("evil.example", 421)):
            answer = httpx.get(f"{daemon.url}/gate", headers={**described, "X-Forwarded-Host": host})
            assert answer.status_code == status
            assert status == 401 or answer.headers["Content-Type"] == "application/problem+json"
    assert EVIL not in daemon.log


@WORKERS
def test_reload_changes_hosts_of_open_connections(socket_folder: Path, workers: str) -> None:
    listen = f'listen = ["{FREE_PORT}", "unix:p.sock"]\nworkers = {workers}\n[admin]\nlisten = ["{FREE_PORT}"]\n'
    with start(socket_folder, listen) as daemon, httpx.Client(headers={"Host": "posts.example"}) as client:
        port, admin = ports_of(daemon)
        socket_path = str(socket_folder / "p.sock")

        def reload(settings: str) -> None:
            (socket_folder / "postd.toml").write_text(settings + listen)
            before = daemon.log.count(" answers requests for ")
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for(" answers requests for ", before + 3)
            httpx.get(f"http://127.0.0.1:{admin}/readyz")  # workers answer after they have reloaded

        reload('hosts = ["*"]\n')
        assert client.get(f"{daemon.url}/post").status_code == 200
        assert ask(("127.0.0.1", admin), EVIL, "GET /healthz") == 200
        reload('hosts = ["posts.example"]\n')
        assert client.get(f"{daemon.url}/post").status_code == 200
        assert httpx.get(f"{daemon.url}/post").status_code == 421
        assert ask(socket_path, "localhost") == 421
        assert ask(socket_path, "Posts.Example.:81") == 200
        assert ask(("127.0.0.1", admin), "127.0.0.1", "GET /healthz") == 200
        reload('public_url = "https://posts.example"\n')
        assert client.get(f"{daemon.url}/post").status_code == httpx.get(f"{daemon.url}/post").status_code == 200
        reload('public_url = "https://other.example"\n')
        assert client.get(f"{daemon.url}/post").status_code == 421
        assert ask(("127.0.0.1", port), "other.example") == 200
        assert client.get(f"http://127.0.0.1:{admin}/healthz").status_code == 421


def test_command_reports_a_refused_host_in_one_line(tmp_path: Path) -> None:
    with start(tmp_path, f'listen = ["{FREE_PORT}"]\nhosts = ["posts.example"]\n') as daemon:
        ended = forking.run([POSTD, "list", "--url", daemon.url])
    assert ended.returncode != 0
    (line,) = ended.stderr.decode().splitlines()
    assert "421 Misdirected Request: " in line
    assert "hosts" in line

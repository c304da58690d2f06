"""Five thousand listeners of one process (reference: Event stream)."""

import resource
import selectors
import socket
import time
from pathlib import Path

import httpx

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon

LISTENERS = 5000
MOST_KIB_EACH = 16
WAIT_MAX_S = PATIENCE_S
REQUEST = b"GET /post/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


def resident_kib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def test_thousands_of_listeners_use_little_memory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(LISTENERS + 1000, hard), hard))
    open_ = selectors.DefaultSelector()

    def read_until(words: bytes) -> None:
        """Read until each listener has received a text."""
        waiting = {key.fd for key in open_.get_map().values()}
        deadline = time.monotonic() + WAIT_MAX_S
        while waiting:
            assert time.monotonic() < deadline, f"{len(waiting)} listeners have not received it"
            for key, _ in open_.select(1):
                assert isinstance(key.fileobj, socket.socket)
                sent = key.fileobj.recv(65536)
                assert sent
                if words in sent:
                    waiting.discard(key.fd)

    try:
        # One address may have half of the connections, a trusted proxy all.
        (tmp_path / "postd.toml").write_text('trusted_proxies = ["127.0.0.1"]\n')
        with Daemon(tmp_path, "-c", "postd.toml") as daemon, httpx.Client(base_url=daemon.url) as client:
            before = resident_kib(daemon.process.pid)
            for _ in range(LISTENERS):
                listener = daemon.connect()
                open_.register(listener, selectors.EVENT_READ)
                listener.sendall(REQUEST)
            read_until(b"retry: ")
            for n in range(3):
                assert client.post("/post", json={"post": f"number {n}"}).status_code == 201
                read_until(b"number %d" % n)
            assert client.get("/post/1").status_code == 200
            more = resident_kib(daemon.process.pid) - before
            assert more < MOST_KIB_EACH * LISTENERS, f"{more / LISTENERS:.1f} KiB each"
            assert "Traceback" not in daemon.log
    finally:
        for key in list(open_.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        open_.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

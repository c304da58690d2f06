"""Tokens bound to a client certificate, over real TLS: curl, httpx and requests, to postd and through HAProxy."""

import base64
import hashlib
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest
import requests
from msgspec import Struct

from tests.helpers import PATIENCE_S, make_certificate
from tests.integration.daemon import FREE_PORT, Daemon
from tests.integration.test_bearer import bearer_table
from tests.integration.test_logins import serve
from tests.issuer import Issuer, Key, b64
from tests.redis_server import free_port
from tests.system.test_balancers import wait_until
from tests.system.test_redis import substitute

AUDIENCE = "https://posts.example"
PROXY = "127.0.0.2"
"""Where HAProxy comes from; other clients come from 127.0.0.1."""


class Certificate(Struct, frozen=True):
    """The files of a key and a certificate, with what a token and a proxy say of it."""

    key: Path
    file: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Self:
        return cls(*make_certificate(folder / name, subject=name))

    @property
    def der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.file.read_text())

    @property
    def confirmation(self) -> dict[str, str]:
        return {"x5t#S256": b64(hashlib.sha256(self.der).digest())}

    @property
    def field(self) -> dict[str, str]:
        return {"Client-Cert": f":{base64.b64encode(self.der).decode()}:"}


class Served(Struct):
    """A server with a TLS listener and a plain one, HAProxy in front of the latter, and who may enter."""

    daemon: Daemon
    direct: str
    plain: str
    proxied: str
    authority: Path
    token: str
    owner: Certificate
    other: Certificate


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("bound")
    key, authority = certificate
    owner, other = (Certificate.make(folder, name) for name in ("owner", "other"))
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key}:certKey={authority}"
    with Issuer(AUDIENCE, Key.make("ES256")) as issuer:
        settings = (
            f'listen = ["{FREE_PORT}", "{tls}"]\ntrusted_proxies = ["{PROXY}"]\n'
            'page = [{path = "/bearer", schemes = ["bearer"]}]\n[tls]\nclient_certificates = "ask"\n'
        )
        with serve(folder, settings + bearer_table(issuer, mtls="accept"), listen=None) as daemon:
            direct = re.findall(r"https://[\d.]+:\d+", daemon.log)[0]
            process, proxied = start_haproxy(folder, daemon.port, certificate)
            try:
                served = Served(
                    daemon=daemon,
                    direct=f"{direct}/bearer",
                    plain=f"{daemon.url}/bearer",
                    proxied=f"{proxied}/bearer",
                    authority=authority,
                    token=issuer.token(cnf=owner.confirmation),
                    owner=owner,
                    other=other,
                )
                wait_until(lambda: process.poll() is None and is_served(served))
                yield served
            finally:
                process.terminate()
                process.wait(PATIENCE_S)
    assert "Traceback" not in daemon.log


def start_haproxy(folder: Path, port: int, certificate: tuple[Path, Path]) -> tuple[subprocess.Popen[bytes], str]:
    """Start HAProxy with the settings that etc/ has for client certificates; return it and its URL."""
    key, file = certificate
    both, proxy_port = folder / "both.pem", free_port()
    both.write_bytes(file.read_bytes() + key.read_bytes())
    settings = substitute(
        "haproxy.cfg.example",
        {
            "    bind :443": "    # bind :443",
            "    #bind :443": f"    bind 127.0.0.1:{proxy_port}",
            "/etc/haproxy/posts.example.pem": str(both),
            "#http-request set-header Client-Cert": "http-request set-header Client-Cert",
            "    server node1 192.0.2.21:8080\n": f"    server node1 127.0.0.1:{port} source {PROXY}\n",
            "    server node2 192.0.2.22:8080\n": "",
            "Host posts.example": f"Host 127.0.0.1:{port}",
        },
    )
    (folder / "haproxy.cfg").write_text(settings)
    process = subprocess.Popen(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")], cwd=folder)
    return process, f"https://127.0.0.1:{proxy_port}"


def is_served(served: Served) -> bool:
    context = ssl.create_default_context(cafile=str(served.authority))
    try:
        return httpx.get(served.proxied, verify=context).status_code == 401
    except httpx.TransportError:
        return False


# Clients: each returns the status of a request with a client certificate, or without one.

Get = Callable[..., int]


def get_by_curl(url: str, served: Served, shown: Certificate | None, fields: dict[str, str], *options: str) -> int:
    sent = {"Authorization": f"Bearer {served.token}", **fields}
    shows = ["--cert", str(shown.file), "--key", str(shown.key)] if shown else []
    headers = [word for name, value in sent.items() for word in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "--cacert", str(served.authority), "-o", "/dev/null", "-w", "%{http_code}"]
    ended = subprocess.run(
        [*command, *shows, *headers, *options, url], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def get_by_old_tls(url: str, served: Served, shown: Certificate | None, fields: dict[str, str]) -> int:
    return get_by_curl(url, served, shown, fields, "--tls-max", "1.2")


def get_by_http_1(url: str, served: Served, shown: Certificate | None, fields: dict[str, str]) -> int:
    return get_by_curl(url, served, shown, fields, "--http1.1")


def get_by_httpx(url: str, served: Served, shown: Certificate | None, fields: dict[str, str]) -> int:
    context = ssl.create_default_context(cafile=str(served.authority))
    if shown:
        context.load_cert_chain(shown.file, shown.key)
    with httpx.Client(verify=context, headers={"Authorization": f"Bearer {served.token}", **fields}) as client:
        first, second = (client.get(url) for _ in range(2))
    assert first.status_code == second.status_code
    return first.status_code


def get_by_requests(url: str, served: Served, shown: Certificate | None, fields: dict[str, str]) -> int:
    answer = requests.get(
        url,
        headers={"Authorization": f"Bearer {served.token}", **fields},
        verify=str(served.authority),
        cert=(str(shown.file), str(shown.key)) if shown else None,
        timeout=PATIENCE_S,
    )
    assert (answer.text == "Success: alice\n") == (answer.status_code == 200)
    return answer.status_code


@pytest.mark.parametrize(
    "get",
    [get_by_curl, get_by_old_tls, get_by_http_1, get_by_httpx, get_by_requests],
    ids=["curl", "curl, TLS 1.2", "curl, HTTP/1.1", "httpx", "requests"],
)
@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_bound_token_needs_the_certificate_of_the_connection(served: Served, get: Get, way: str) -> None:
    url = getattr(served, way)
    assert [get(url, served, shown, {}) for shown in (served.owner, served.other, None)] == [200, 401, 401]
    # The certificate is public: any client may write it into the field.
    assert [get(url, served, shown, served.owner.field) for shown in (served.other, None)] == [401, 401]
    assert get(url, served, served.owner, served.other.field) == 200


def test_field_of_a_client_that_is_no_trusted_proxy_is_ignored(served: Served) -> None:
    assert get_by_curl(served.plain, served, None, served.owner.field) == 401
    from_the_proxy = get_by_curl(served.plain, served, None, served.owner.field, "--interface", PROXY)
    assert from_the_proxy == 200

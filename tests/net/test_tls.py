"""Versions, cipher suites and certificates that TLS clients get from a listener."""

import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import SSL

from postd.errors import ConfigError
from postd.net.endpoints import EXPIRY_WARNING_S, check_endpoint, read_certificate
from postd.net.listening import Listener, certificate_warnings
from postd.net.tls import Certificate
from tests.helpers import make_certificate

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")


def load(files: tuple[Path, Path]) -> Certificate:
    key, cert = files
    return read_certificate(f"ssl:0:privateKey={key}:certKey={cert}", "listen")


def shake_hands(certificate: Certificate, context: ssl.SSLContext) -> ssl.SSLObject:
    """Connect a client of Python's ssl in memory; raise the error of either side."""
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    server = certificate.serverConnectionForTLS(None)
    server.set_accept_state()
    for _ in range(10):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            return client
        if sent := outgoing.read():
            server.bio_write(sent)
        with suppress(SSL.WantReadError):
            server.do_handshake()
        while True:
            try:
                incoming.write(server.bio_read(65536))
            except SSL.WantReadError:
                break
    raise AssertionError("the handshake does not end")


def client(*, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, ciphers: str = "DEFAULT") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    return context


def make_rsa_certificate(folder: Path, *, bits: int) -> tuple[Path, Path]:
    return make_certificate(folder, rsa.generate_private_key(65537, bits))


@pytest.fixture(scope="module")
def current(certificate: tuple[Path, Path]) -> Certificate:
    return load(certificate)


def test_current_client_gets_tls_1_3(current: Certificate) -> None:
    assert shake_hands(current, client()).version() == "TLSv1.3"


@pytest.mark.parametrize("ciphers", ["ECDHE+AESGCM", "ECDHE+CHACHA20"])
def test_tls_1_2_with_forward_secrecy_and_aead_is_accepted(current: Certificate, ciphers: str) -> None:
    connected = shake_hands(current, client(newest=ssl.TLSVersion.TLSv1_2, ciphers=ciphers))
    assert connected.version() == "TLSv1.2"


@pytest.mark.parametrize("ciphers", ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA"])
def test_tls_1_2_without_aead_is_refused(current: Certificate, ciphers: str) -> None:
    with pytest.raises((ssl.SSLError, SSL.Error)):
        shake_hands(current, client(newest=ssl.TLSVersion.TLSv1_2, ciphers=ciphers))


def test_tls_1_2_without_forward_secrecy_is_refused(tmp_path: Path) -> None:
    """These cipher suites need a certificate with an RSA key."""
    current = load(make_rsa_certificate(tmp_path, bits=2048))
    tls_1_2 = ssl.TLSVersion.TLSv1_2
    assert shake_hands(current, client(newest=tls_1_2, ciphers="ECDHE-RSA-AES128-GCM-SHA256")).version() == "TLSv1.2"
    for ciphers in ("AES128-GCM-SHA256", "AES256-SHA", "ECDHE-RSA-AES128-SHA"):
        with pytest.raises((ssl.SSLError, SSL.Error)):
            shake_hands(current, client(newest=tls_1_2, ciphers=ciphers))


def test_weak_key_is_refused_with_the_reason(tmp_path: Path) -> None:
    key, cert = make_rsa_certificate(tmp_path, bits=1024)
    with pytest.raises(ConfigError, match=r"OpenSSL refuses its key or its certificate: .*too small"):
        check_endpoint(f"ssl:0:privateKey={key}:certKey={cert}", where="listen", now=time.time())


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1])
def test_tls_1_1_and_older_is_refused(current: Certificate, newest: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, SSL.Error, ValueError)):
        shake_hands(current, client(newest=newest))


def test_new_connection_uses_the_replaced_certificate(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    current, other = load(certificate), load(make_certificate(tmp_path))
    before = shake_hands(current, client()).getpeercert(binary_form=True)
    current.replace(other)
    after = shake_hands(current, client()).getpeercert(binary_form=True)
    assert before != after
    assert after == ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text())
    assert current.not_after == other.not_after


def test_key_of_another_certificate_is_refused(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    key, _ = make_certificate(tmp_path)
    with pytest.raises(ConfigError, match="its key is not that of its certificate"):
        check_endpoint(f"ssl:0:privateKey={key}:certKey={certificate[1]}", where="listen", now=time.time())


def test_expiring_certificate_is_warned_of_and_expired_one_refused(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    description, current = f"ssl:0:privateKey={key}:certKey={cert}", load(certificate)
    listeners = [Listener(description, cast("Any", None), current)]
    assert list(certificate_warnings(listeners, current.not_after - EXPIRY_WARNING_S - 1)) == []
    (soon,) = certificate_warnings(listeners, current.not_after - 1)
    assert "the certificate expires soon: 2" in soon
    assert check_endpoint(description, where="listen", now=current.not_after - 1) is False
    with pytest.raises(ConfigError, match="the certificate has expired: 2"):
        check_endpoint(description, where="listen", now=current.not_after)

"""TLS as clients of many kinds meet it: what they can agree on with a listener, and what they are shown."""

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
    """Have a client of Python's ssl connect; raises what either of them does."""
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
    raise AssertionError("they go on for ever")


def client(*, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, ciphers: str = "DEFAULT") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    return context


def make_rsa_certificate(folder: Path, *, bits: int) -> tuple[Path, Path]:
    return make_certificate(folder, rsa.generate_private_key(65537, bits))


@pytest.fixture(scope="module")
def shown(certificate: tuple[Path, Path]) -> Certificate:
    return load(certificate)


def test_clients_of_today_agree_on_the_newest(shown: Certificate) -> None:
    assert shake_hands(shown, client()).version() == "TLSv1.3"


@pytest.mark.parametrize("ciphers", ["ECDHE+AESGCM", "ECDHE+CHACHA20"])
def test_tls_1_2_with_forward_secrecy_and_aead(shown: Certificate, ciphers: str) -> None:
    connected = shake_hands(shown, client(newest=ssl.TLSVersion.TLSv1_2, ciphers=ciphers))
    assert connected.version() == "TLSv1.2"


@pytest.mark.parametrize("ciphers", ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA"])
def test_other_ciphers_of_tls_1_2_are_not_spoken(shown: Certificate, ciphers: str) -> None:
    with pytest.raises((ssl.SSLError, SSL.Error)):
        shake_hands(shown, client(newest=ssl.TLSVersion.TLSv1_2, ciphers=ciphers))


def test_nor_are_those_without_forward_secrecy(tmp_path: Path) -> None:
    """Which take a certificate of RSA."""
    shown = load(make_rsa_certificate(tmp_path, bits=2048))
    tls_1_2 = ssl.TLSVersion.TLSv1_2
    assert shake_hands(shown, client(newest=tls_1_2, ciphers="ECDHE-RSA-AES128-GCM-SHA256")).version() == "TLSv1.2"
    for ciphers in ("AES128-GCM-SHA256", "AES256-SHA", "ECDHE-RSA-AES128-SHA"):
        with pytest.raises((ssl.SSLError, SSL.Error)):
            shake_hands(shown, client(newest=tls_1_2, ciphers=ciphers))


def test_a_key_that_is_too_weak_is_told_by_that(tmp_path: Path) -> None:
    key, cert = make_rsa_certificate(tmp_path, bits=1024)
    with pytest.raises(ConfigError, match=r"OpenSSL refuses its key or its certificate: .*too small"):
        check_endpoint(f"ssl:0:privateKey={key}:certKey={cert}", where="listen", now=time.time())


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1])
def test_older_versions_are_not_spoken(shown: Certificate, newest: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, SSL.Error, ValueError)):
        shake_hands(shown, client(newest=newest))


def test_who_connects_later_is_shown_the_new_one(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    shown, other = load(certificate), load(make_certificate(tmp_path))
    before = shake_hands(shown, client()).getpeercert(binary_form=True)
    shown.become(other)
    after = shake_hands(shown, client()).getpeercert(binary_form=True)
    assert before != after
    assert after == ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text())
    assert shown.not_after == other.not_after


def test_a_key_of_another_certificate_is_told(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    key, _ = make_certificate(tmp_path)
    with pytest.raises(ConfigError, match="its key is not that of its certificate"):
        check_endpoint(f"ssl:0:privateKey={key}:certKey={certificate[1]}", where="listen", now=time.time())


def test_one_that_ends_is_told(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    description, shown = f"ssl:0:privateKey={key}:certKey={cert}", load(certificate)
    listeners = [Listener(description, cast("Any", None), shown)]
    assert list(certificate_warnings(listeners, shown.not_after - EXPIRY_WARNING_S - 1)) == []
    (soon,) = certificate_warnings(listeners, shown.not_after - 1)
    assert "the certificate ends soon: 2" in soon
    assert check_endpoint(description, where="listen", now=shown.not_after - 1) is False
    with pytest.raises(ConfigError, match="the certificate has ended: 2"):
        check_endpoint(description, where="listen", now=shown.not_after)

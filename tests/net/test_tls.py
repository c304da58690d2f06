"""Versions, cipher suites and certificates that TLS clients get from a listener, and the certificates they show."""

import ssl
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from OpenSSL import SSL, crypto

from postd.errors import ConfigError
from postd.net.endpoints import check_endpoint, expiry_problem, read_certificate
from postd.net.listening import Listener, ask_for_client_certificates, certificate_warnings
from postd.net.tls import CHAIN_MAX_BYTES, Certificate
from tests.helpers import make_certificate

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")


def load(files: tuple[Path, Path]) -> Certificate:
    key, cert = files
    return read_certificate(f"ssl:0:privateKey={key}:certKey={cert}", "listen")


def shake_hands(certificate: Certificate, context: ssl.SSLContext) -> ssl.SSLObject:
    """Connect a client of Python's ssl in memory; raise the error of either side."""
    return connect(certificate, context)[0]


def connect(
    certificate: Certificate, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, SSL.Connection]:
    """As `shake_hands`; return both sides, with the tickets read that follow the handshake."""
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost", session=session)
    server = certificate.accept()
    ended = False
    for _ in range(10):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            if ended:
                client.read()
        if ended:
            return client, server
        while sent := outgoing.read(16384):
            server.bio_write(sent)
            with suppress(SSL.WantReadError):
                server.do_handshake()
                ended = True
        with suppress(SSL.WantReadError):
            while True:
                incoming.write(server.bio_read(65536))
    raise AssertionError("the handshake does not end")


def client(
    *,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ciphers: str = "DEFAULT",
    shows: tuple[Path, Path] | None = None,
) -> ssl.SSLContext:
    """Return the settings of a client; `shows` are the files of the key and the certificate that it shows if asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if shows is not None:
        context.load_cert_chain(shows[1], shows[0])
    context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    return context


def make_rsa_certificate(folder: Path, *, bits: int) -> tuple[Path, Path]:
    return make_certificate(folder, rsa.generate_private_key(65537, bits))


@pytest.fixture(scope="module")
def current(certificate: tuple[Path, Path]) -> Certificate:
    return load(certificate)


def test_handshake_hashes_with_sha_256(current: Certificate) -> None:
    """SHA-384, of OpenSSL's first suite, takes longer."""
    cipher = shake_hands(current, client()).cipher()
    assert cipher is not None
    assert cipher[0] == "TLS_AES_128_GCM_SHA256"


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
    for key, _ in (make_certificate(tmp_path / "ec"), make_rsa_certificate(tmp_path / "rsa", bits=2048)):
        with pytest.raises(ConfigError, match=r"its key is not that of its certificate$"):
            check_endpoint(f"ssl:0:privateKey={key}:certKey={certificate[1]}", where="listen", now=time.time())


def sent_certificates(certificate: Certificate) -> list[bytes]:
    """Return the certificates that a client gets, in DER."""
    server, peer = certificate.accept(), SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    peer.set_connect_state()
    for sender, receiver in ((peer, server), (server, peer)):
        with suppress(SSL.WantReadError):
            sender.do_handshake()
        receiver.bio_write(sender.bio_read(65536))
    with suppress(SSL.WantReadError):
        peer.do_handshake()
    return [crypto.dump_certificate(crypto.FILETYPE_ASN1, each) for each in peer.get_peer_cert_chain() or ()]


def test_certificates_of_issuers_are_sent_once_whichever_file_has_them(tmp_path: Path) -> None:
    """Both files that ACME clients write are accepted: `fullchain.pem`, and `cert.pem` with `chain.pem`."""
    issuers = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    key, own = make_certificate(tmp_path, subject="own", signed_by=("a", issuers[0]))
    _, a = make_certificate(tmp_path / "a", issuers[0], subject="a", signed_by=("b", issuers[1]))
    _, b = make_certificate(tmp_path / "b", issuers[1], subject="b")
    full, chain = tmp_path / "fullchain.pem", tmp_path / "chain.pem"
    full.write_text(own.read_text() + a.read_text() + b.read_text())
    chain.write_text("Bag Attributes: \xfc\n" + a.read_text().replace("\n", "\r\n") + b.read_text())
    wanted = [ssl.PEM_cert_to_DER_cert(each.read_text()) for each in (own, a, b)]
    for files in (
        f"certKey={full}",
        f"certKey={own}:extraCertChain={chain}",
        f"certKey={full}:extraCertChain={chain}",
        f"certKey={own}:extraCertChain={full}",
    ):
        assert sent_certificates(read_certificate(f"ssl:0:privateKey={key}:{files}", "listen")) == wanted, files


def test_one_file_may_have_the_key_and_the_certificate(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(certificate[1].read_text() + certificate[0].read_text())
    assert sent_certificates(read_certificate(f"ssl:0:{both}", "listen")) == [der(certificate)]


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_key_with_a_password_is_refused_without_a_question(tmp_path: Path, form: PrivateFormat) -> None:
    """OpenSSL by itself asks for the password on the terminal, and would stop a running server at a reload."""
    key, cert = make_certificate(tmp_path)
    loaded = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(loaded.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret")))
    with pytest.raises(ConfigError, match=rf"{key}: is protected by a password, which is not supported$"):
        check_endpoint(f"ssl:0:privateKey={key}:certKey={cert}", where="listen")


@pytest.mark.parametrize(
    "option, kind",
    [
        ("privateKey", "private key"),
        ("certKey", "certificate"),
        ("extraCertChain", "certificate"),
        ("dhParameters", "DH parameters"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"text", b"-----BEGIN CERTIFICATE-----\nMIIB\n", b"\xff"])
def test_file_without_what_it_should_have_is_named(
    certificate: tuple[Path, Path], tmp_path: Path, option: str, kind: str, content: bytes
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_bytes(content)
    files = {"privateKey": certificate[0], "certKey": certificate[1], option: wrong}
    description = "ssl:0:" + ":".join(f"{name}={path}" for name, path in files.items())
    with pytest.raises(ConfigError, match=rf"{wrong}: has no {kind} in PEM form$"):
        check_endpoint(description, where="listen")
    wrong.unlink()
    with pytest.raises(ConfigError, match=rf"{wrong}: No such file or directory$"):
        check_endpoint(description, where="listen")


@pytest.mark.parametrize("more", ["bogus=1", "privateKey=other.pem"])
def test_unknown_and_repeated_options_are_refused(certificate: tuple[Path, Path], more: str) -> None:
    key, cert = certificate
    with pytest.raises(ConfigError, match="is not an endpoint such as"):
        check_endpoint(f"ssl:0:privateKey={key}:certKey={cert}:{more}", where="listen")


def test_early_and_expiring_certificate_is_warned_of_and_expired_one_refused(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    description, current = f"ssl:0:privateKey={key}:certKey={cert}", load(certificate)
    listeners = [Listener(description, cast("Any", None), current)]
    assert list(certificate_warnings(listeners, current.not_before)) == []
    (early,) = certificate_warnings(listeners, current.not_before - 1)
    assert "the certificate is not valid before 2" in early
    (soon,) = certificate_warnings(listeners, current.not_after - 1)
    assert "the certificate expires soon: 2" in soon
    assert check_endpoint(description, where="listen", now=current.not_after - 1) is False
    with pytest.raises(ConfigError, match="the certificate has expired: 2"):
        check_endpoint(description, where="listen", now=current.not_after)


@pytest.mark.parametrize(
    "lifetime", [timedelta(hours=24), timedelta(hours=160), timedelta(days=90), timedelta(days=397)]
)
def test_warnings_follow_the_lifetime_of_a_certificate(tmp_path: Path, lifetime: timedelta) -> None:
    current = load(make_certificate(tmp_path, ends_in=lifetime - timedelta(days=1)))
    lifetime_s = current.not_after - current.not_before
    assert lifetime_s == lifetime.total_seconds()
    for left, is_urgent, words in (
        (1, False, ""),
        (0.34, False, ""),
        (0.33, False, "is due for renewal: less than a third"),
        (0.11, False, "is due for renewal: less than a third"),
        (0.09, True, "expires soon: 2"),
        (0, True, "has expired: 2"),
    ):
        urgent, problem = expiry_problem(current, current.not_after - left * lifetime_s)
        assert (urgent, words in problem, bool(problem)) == (is_urgent, True, bool(words))


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def asking(certificate: tuple[Path, Path]) -> Certificate:
    current = load(certificate)
    ask_for_client_certificates([Listener("", cast("Any", None)), Listener("", cast("Any", None), current)], ask=True)
    return current


def shown(server: SSL.Connection) -> bytes | None:
    found = server.get_peer_certificate()
    return None if found is None else crypto.dump_certificate(crypto.FILETYPE_ASN1, found)


def der(files: tuple[Path, Path]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files[1].read_text())


@pytest.mark.parametrize("newest", VERSIONS)
def test_client_certificate_of_any_issuer_is_accepted(
    asking: Certificate, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    expired = make_certificate(tmp_path, ends_in=timedelta(hours=-1))
    _, server = connect(asking, client(newest=newest, shows=expired))
    assert shown(server) == der(expired)


@pytest.mark.parametrize("newest", VERSIONS)
def test_client_without_a_certificate_is_accepted(asking: Certificate, newest: ssl.TLSVersion) -> None:
    _, server = connect(asking, client(newest=newest))
    assert shown(server) is None


@pytest.mark.parametrize("newest", VERSIONS)
def test_client_certificate_is_asked_for_only_if_set(
    asking: Certificate, certificate: tuple[Path, Path], tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """A replaced certificate leaves the setting as it is."""
    context = client(newest=newest, shows=certificate)
    assert shown(connect(load(certificate), context)[1]) is None
    asking.replace(load(make_certificate(tmp_path)))
    assert shown(connect(asking, context)[1]) == der(certificate)
    ask_for_client_certificates([Listener("", cast("Any", None), asking)], ask=False)
    assert shown(connect(asking, context)[1]) is None


@pytest.mark.parametrize("newest", VERSIONS)
def test_client_that_does_not_have_the_key_is_refused(
    asking: Certificate, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """The modulus of its key is that of the certificate's, the private exponent is another one."""
    right = rsa.generate_private_key(65537, 2048)
    files = make_certificate(tmp_path, right)
    assert shown(connect(asking, client(newest=newest, shows=files))[1]) == der(files)
    of = right.private_numbers()
    wrong = rsa.RSAPrivateNumbers(of.p, of.q, of.d ^ 2, of.dmp1 ^ 2, of.dmq1 ^ 2, of.iqmp, of.public_numbers)
    files[0].write_bytes(
        wrong.private_key(unsafe_skip_rsa_key_validation=True).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    with pytest.raises((ssl.SSLError, SSL.Error)):
        connect(asking, client(newest=newest, shows=files))


def is_resumed(certificate: Certificate, context: ssl.SSLContext, first: ssl.SSLObject) -> bool:
    """Return whether a connection resumes the session of another one."""
    return bool(connect(certificate, context, first.session)[0].session_reused)


@pytest.mark.parametrize("newest", VERSIONS)
def test_session_is_resumed_where_the_key_of_tickets_and_the_certificate_are_the_same(
    certificate: tuple[Path, Path], tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    worker, another = load(certificate), load(certificate)
    context = client(newest=newest)
    assert not is_resumed(worker, context, shake_hands(worker, context))  # there is no key yet
    for key in (b"first key", b"second key"):
        for each in (worker, another):
            each.set_ticket_key(key)
        first = shake_hands(worker, context)
        assert [is_resumed(each, context, first) for each in (worker, another)] == [True, True]
    another.set_ticket_key(b"third key")
    assert not is_resumed(another, context, first)
    worker.replace(load(make_certificate(tmp_path)))
    assert not is_resumed(worker, context, first)
    assert is_resumed(worker, context, shake_hands(worker, context))
    worker.replace(load(certificate))
    assert is_resumed(worker, context, first)


@pytest.mark.parametrize("newest", VERSIONS)
def test_no_session_is_resumed_where_client_certificates_are_asked_for(
    asking: Certificate, certificate: tuple[Path, Path], newest: ssl.TLSVersion
) -> None:
    """With one a connection would have the certificate of an earlier one, or none."""
    asking.set_ticket_key(b"key")
    context = client(newest=newest, shows=certificate)
    assert not is_resumed(asking, context, shake_hands(asking, context))
    listeners = [Listener("", cast("Any", None), asking)]
    ask_for_client_certificates(listeners, ask=False)
    first = shake_hands(asking, context)
    assert is_resumed(asking, context, first)
    ask_for_client_certificates(listeners, ask=True)
    assert not is_resumed(asking, context, first)
    asking.replace(load(certificate))
    assert not is_resumed(asking, context, first)
    assert shown(connect(asking, context, first.session)[1]) == der(certificate)


@pytest.mark.parametrize("newest", VERSIONS)
def test_wrong_signature_in_a_client_chain_is_no_error_of_a_later_operation(
    asking: Certificate, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """OpenSSL before 4.0 would take an error that is left in its queue for one of the next connection that reads."""
    _, idle = connect(asking, client(newest=newest))
    owner, forger = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 4096)
    forged = make_certificate(tmp_path / "client", subject="client", signed_by=("issuer", forger))
    issuer = make_certificate(tmp_path / "issuer", owner, subject="issuer", signed_by=("root", forger))
    alone = der(forged)
    forged[1].write_text(forged[1].read_text() + issuer[1].read_text())
    _, server = connect(asking, client(newest=newest, shows=forged))
    assert shown(server) == alone
    with pytest.raises(SSL.WantReadError):
        idle.recv(1)
    with pytest.raises(crypto.Error) as caught:
        crypto.load_certificate(crypto.FILETYPE_ASN1, b"")
    assert "rsa" not in str(caught.value)


@pytest.mark.parametrize("newest", VERSIONS)
def test_client_certificates_over_16_kib_are_refused(
    asking: Certificate, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    files = make_certificate(tmp_path, subject="client")
    own = files[1].read_text()
    other = make_certificate(tmp_path / "other", subject="other")
    fitting = (CHAIN_MAX_BYTES - len(der(files))) // len(der(other))
    shows = []
    for count in (fitting, fitting + 1):
        files[1].write_text(own + other[1].read_text() * count)
        shows.append(client(newest=newest, shows=files))
    assert shown(connect(asking, shows[0])[1]) == ssl.PEM_cert_to_DER_cert(own)
    with pytest.raises(SSL.Error, match="too long"):
        connect(asking, shows[1])

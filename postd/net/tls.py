"""TLS of the listeners: certificates, versions, cipher suites, and client certificates.

Departures from stock Twisted, whose `ssl:` endpoints make one context for their lifetime:

- The certificate can be replaced while the server runs; new connections use the new one.
- TLS 1.2 has only cipher suites with forward secrecy and authenticated encryption (RFC 9325 §4.2); Twisted's list also
  has RSA key exchange and CBC. The endpoint's `sslmethod` is ignored: versions are TLS 1.2 and 1.3.
- A key that does not belong to its certificate is an error when both are read, not when the first client connects.
- The file of the certificate may have those of its issuers, too, and each is sent once. An error names the file; that
  of a key with a password does not ask for it on the terminal.
- A client certificate of any issuer is accepted, and none is required: a token names the thumbprint of its certificate.
  Stock Twisted asks for certificates of named authorities.
- A read handles one record: a client that sends KeyUpdate after KeyUpdate keeps the server from nothing else.
- A session is resumed by a ticket, on each worker; in stock Twisted none is. Not where client certificates are asked
  for: on each connection, the client proves that it has the key of its certificate. The keys of tickets are replaced
  each hour, and belong to one certificate of the server.
"""

from collections.abc import Iterable, Mapping
from hashlib import shake_256
from pathlib import Path
from socket import socket
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet.ssl import AcceptableCiphers, CertificateOptions

from postd.errors import UnusableCertificateError
from postd.net.openssl import TICKET_KEYS_BYTES, can_set_ticket_keys, set_ticket_keys

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"
"""The cipher suites of TLS 1.2. DHE is used only where the endpoint has `dhParameters`."""

CIPHERS_1_3 = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
"""The cipher suites of TLS 1.3, first the one that each implementation has (RFC 8446 §9.1). OpenSSL's own first one has
SHA-384, for which processors have no instructions: a handshake hashes with it more than a dozen times."""

NO_CHAIN = -2
"""The depth of verification with which OpenSSL does not look for issuers. -1 is its default of 100, and with 0 it
verifies the first signature: a wrong one would stay in its queue of errors, as the error of a later operation."""

CHAIN_MAX_BYTES = 16 * 1024
"""Limit on a client's certificate and its chain. OpenSSL keeps both for as long as the connection lasts, in fifteen
times as many bytes, and has a limit of 100 KiB."""

PROTOCOL = b"http/1.1"

KEY_MISMATCH = "its key is not that of its certificate"
"""The error where OpenSSL accepts key and certificate alone, but not together."""


def _reason(error: SSL.Error | crypto.Error) -> str:
    """Return OpenSSL's reason, which is the last part of its first error."""
    reasons = error.args[0] if error.args else ()
    reason = str(reasons[0][-1]) if reasons else ""
    if not reason or "mismatch" in reason or reason == "no certificate assigned":  # none for this kind of key
        return KEY_MISMATCH
    return f"OpenSSL refuses its key or its certificate: {reason}"


def _read_key(path: str) -> Any:
    try:
        return load_pem_private_key(Path(path).read_bytes(), None)
    except TypeError:
        raise UnusableCertificateError(f"{path}: is protected by a password, which is not supported") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableCertificateError(f"{path}: has no private key in PEM form") from None


def _read_certificates(path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(Path(path).read_bytes())
    except ValueError:
        raise UnusableCertificateError(f"{path}: has no certificate in PEM form") from None


def _accept(*_: object) -> bool:
    """Accept any client certificate, also one that OpenSSL rejects; the proof of its key is still checked."""
    return True


def _select_protocol(_connection: SSL.Connection, offered: list[bytes]) -> bytes:
    """Select the protocol of a connection whose client offers some (RFC 7301).

    Raises:
        SSL.Error: there is none in common. OpenSSL sends the alert.
    """
    if PROTOCOL not in offered:
        raise SSL.Error([("", "", "no application protocol")])
    return PROTOCOL


class _AskingConnection(SSL.Connection):
    """A connection that asks for a client certificate."""

    def __init__(self, context: SSL.Context, socket: socket | None) -> None:
        super().__init__(context, socket)
        self.set_verify(SSL.VERIFY_PEER, _accept)

    def do_handshake(self) -> None:
        super().do_handshake()
        shown = [self.get_peer_certificate(), *(self.get_peer_cert_chain() or ())]
        encoded = [crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate) for certificate in shown if certificate]
        if sum(map(len, encoded)) > CHAIN_MAX_BYTES:
            raise SSL.Error([("", "", "the client's certificates are too long")])


class Certificate:
    """The certificate and key of a listener, as a context for its connections.

    Args:
        key: the private key.
        certificate: the certificate that has its public key.
        chain: the certificates of its issuers, for clients that do not have them.
        dh_parameters: the path of parameters for DHE, "" for none.

    Attributes:
        not_before: when the certificate becomes valid, in seconds since the epoch.
        not_after: when it expires.
        fingerprint: the SHA-256 of the certificate.
        can_resume: whether OpenSSL can have keys of tickets, so that sessions can be resumed.

    Raises:
        UnusableCertificateError: OpenSSL refuses the key or the certificate, or they do not belong together.
    """

    _asks_clients = False
    _ticket_key = b""
    _has_tickets = False

    def __init__(self, key: Any, certificate: Any, chain: Iterable[Any] = (), dh_parameters: str = "") -> None:
        options = CertificateOptions(
            privateKey=key,
            certificate=certificate,
            extraCertChain=list(chain),
            acceptableCiphers=AcceptableCiphers.fromOpenSSLCipherString(CIPHERS),
            enableSessionTickets=True,
            verifyDepth=NO_CHAIN,
        )
        try:
            self._context: SSL.Context = options.getContext()
        except (SSL.Error, crypto.Error) as error:
            raise UnusableCertificateError(_reason(error)) from None
        if dh_parameters:
            Path(dh_parameters).open("rb").close()  # OpenSSL's error would not say that there is no file
            try:
                self._context.load_tmp_dh(dh_parameters.encode())
            except SSL.Error:
                raise UnusableCertificateError(f"{dh_parameters}: has no DH parameters in PEM form") from None
        self._context.set_tls13_ciphersuites(CIPHERS_1_3.encode())
        self._context.set_alpn_select_callback(_select_protocol)
        self._context.set_session_id(b"postd")  # Twisted's is another one in each process
        self.fingerprint: bytes = certificate.fingerprint(SHA256())
        self.not_before: float = certificate.not_valid_before_utc.timestamp()
        self.not_after: float = certificate.not_valid_after_utc.timestamp()
        self.can_resume = can_set_ticket_keys(self._context)
        self._set_tickets()

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "Certificate":
        """Read the files that the options of an `ssl:` endpoint name.

        Further certificates of the file `certKey` are those of its issuers, as those of `extraCertChain` are.

        Raises:
            OSError: a file cannot be read.
            UnusableCertificateError: as the class, or a file has nothing of its kind in PEM form.
        """
        key = options.get("privateKey", "server.pem")
        own, *issuers = _read_certificates(options.get("certKey", key))
        if "extraCertChain" in options:
            issuers += _read_certificates(options["extraCertChain"])
        chain = [each for each in dict.fromkeys(issuers) if each != own]  # the files may repeat certificates
        return cls(_read_key(key), own, chain, options.get("dhParameters", ""))

    def accept(self) -> SSL.Connection:
        """Return the TLS of a new connection, whose input and output stay in memory."""
        kind = _AskingConnection if self._asks_clients else SSL.Connection
        connection = kind(self._context, None)
        connection.set_accept_state()
        if not self._has_tickets:
            connection.set_options(SSL.OP_NO_TICKET)
        return connection

    def ask_clients(self, *, ask: bool) -> None:
        """Set whether new connections ask for a client certificate."""
        self._asks_clients = ask
        self._set_tickets()

    def set_ticket_key(self, key: bytes) -> None:
        """Derive the keys of tickets from another one; older tickets are worth nothing."""
        self._ticket_key = key
        self._set_tickets()

    def replace(self, new: "Certificate") -> None:
        """Use another certificate for new connections."""
        self._context, self.fingerprint = new._context, new.fingerprint  # noqa: SLF001 - of the same class
        self.not_before, self.not_after = new.not_before, new.not_after
        self._set_tickets()

    def _set_tickets(self) -> None:
        keys = None
        if self._ticket_key and not self._asks_clients:
            keys = shake_256(self._ticket_key + self.fingerprint).digest(TICKET_KEYS_BYTES)
        self._has_tickets = set_ticket_keys(self._context, keys)

"""What TLS listeners show their clients, and with what they speak to them.

Departures from stock Twisted, whose `ssl:` endpoints make a context once and for all:

- It can be replaced while the server runs: who connects from then on is shown the new certificate.
- Of TLS 1.2 only what has forward secrecy and authenticated encryption (RFC 9325 §4.2); Twisted's own list goes on to
  RSA key exchange and CBC. `sslmethod` has no say: it is TLS 1.2 or 1.3.
- A key that does not fit its certificate is found when both are read, not when the first client connects.
"""

from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.ssl import AcceptableCiphers, CertificateOptions
from zope.interface import implementer

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"
"""Of TLS 1.2, those with DHE only where the endpoint names `dhParameters`; those of 1.3 are all good."""


UNFIT = "its key is not that of its certificate"
"""What is wrong, where OpenSSL takes each of them alone, and not both."""


class UnusableCertificateError(Exception):
    """A key and a certificate that cannot be used; the text says why."""


def _why(error: SSL.Error | crypto.Error) -> str:
    """Return OpenSSL's reason: the last part of the first of its errors."""
    reasons = error.args[0] if error.args else ()
    reason = str(reasons[0][-1]) if reasons else ""
    return UNFIT if not reason or "mismatch" in reason else f"OpenSSL refuses its key or its certificate: {reason}"


@implementer(IOpenSSLServerConnectionCreator)
class Certificate:
    """The certificate of a listener with its key, and all else that its connections need.

    Args:
        options: what Twisted has made of the endpoint.

    Attributes:
        not_after: until when the certificate is good, in seconds since the epoch.

    Raises:
        UnusableCertificateError: they are of no use.
    """

    def __init__(self, options: Any) -> None:
        certificate = options.certificate.to_cryptography()
        modern = CertificateOptions(
            privateKey=options.privateKey.to_cryptography_key(),
            certificate=certificate,
            extraCertChain=[one.to_cryptography() for one in options.extraCertChain],
            dhParameters=options.dhParameters,
            acceptableCiphers=AcceptableCiphers.fromOpenSSLCipherString(CIPHERS),
        )
        try:
            self._context: SSL.Context = modern.getContext()
        except (SSL.Error, crypto.Error) as error:
            raise UnusableCertificateError(_why(error)) from None
        self.not_after: float = certificate.not_valid_after_utc.timestamp()

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:  # noqa: ARG002 - Twisted's signature
        return SSL.Connection(self._context, None)

    def become(self, other: "Certificate") -> None:
        """Show who connects from now on another certificate."""
        self._context, self.not_after = other._context, other.not_after  # noqa: SLF001 - another one of us

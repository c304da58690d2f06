"""The certificate by which a client has authenticated itself in TLS."""

from typing import Any

from twisted.internet.interfaces import ISSLTransport


def certificate_of(request: Any) -> bytes | None:
    """Return the client certificate of a request's connection in DER; None if it has none, or is lost.

    Also None over HTTP/2, which a stock site may have: its streams do not give access to the connection.
    """
    if getattr(request, "channel", None) is None or not ISSLTransport.providedBy(request.transport):
        return None
    from OpenSSL import crypto  # noqa: PLC0415 - only TLS needs it (postd.daemon.startup)

    certificate: Any = request.transport.getPeerCertificate()
    return None if certificate is None else crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)

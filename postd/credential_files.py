"""Files of credentials: secrets in the first line, certificates in PEM. Callers word the errors."""

from pathlib import Path

from OpenSSL import SSL, crypto
from twisted.internet.ssl import Certificate

FILE_MAX_BYTES = 64 * 1024

_BEGIN = b"-----BEGIN CERTIFICATE-----"


def read_first_line(file: str, *, errors: str = "strict") -> str:
    """Return the first line of a text file in UTF-8, stripped, without a byte order mark.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
    """
    with Path(file).open(encoding="utf-8-sig", errors=errors) as opened:
        return opened.readline(FILE_MAX_BYTES).strip()


def load_certificates(file: str) -> list[Certificate]:
    """Return the certificates in a file; the list is empty if it has none, or one is broken.

    Raises:
        OSError: it cannot be read.
    """
    blocks = Path(file).read_bytes().split(_BEGIN)[1:]
    try:
        return [Certificate.loadPEM(_BEGIN + block) for block in blocks]
    except (ValueError, SSL.Error, crypto.Error):
        return []

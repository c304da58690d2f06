"""`Proofs`: DPoP proofs of one key (RFC 9449), with the nonces that servers ask for."""

import re
import time
from collections.abc import Iterable

from postd.net.http_client import split_origin
from postd.protocol.dpop_proof import DPoPKey, make_proof

USE_NONCE = "use_dpop_nonce"
"""The error of a server that asks for a proof with its nonce (RFC 9449 §8, §9)."""

_NONCE = re.compile(rb"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")  # RFC 9449 §8.1


class Proofs:
    """Makes proofs, each with the latest nonce of its origin.

    Args:
        key: signs the proofs.
    """

    def __init__(self, key: DPoPKey) -> None:
        self._key = key
        self._nonces: dict[tuple[bytes, bytes, int], str] = {}

    def make(self, method: str, url: str, token: str | None = None) -> str:
        """Make a proof for one transmission of a request; the arguments are passed to `make_proof`."""
        nonce = self._nonces.get(split_origin(url.encode("ascii")))
        return make_proof(self._key, method=method, url=url, now=time.time(), token=token, nonce=nonce)

    def take_nonce(self, url: str, lines: Iterable[bytes]) -> bool:
        """Keep the nonce of a response for its origin; return whether the response has one.

        Args:
            url: the URL of the request.
            lines: the `DPoP-Nonce` fields of the response. More than one, or a malformed one, is ignored.
        """
        match list(lines):
            case [line] if _NONCE.fullmatch(line):
                self._nonces[split_origin(url.encode("ascii"))] = line.decode("ascii")
                return True
            case _:
                return False

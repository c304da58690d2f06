"""The syntax of Bearer tokens and scopes in HTTP fields (RFC 6750; RFC 6749 §3.3), and of the names of their users."""

import re
import string

_TOKEN = (string.ascii_letters + string.digits + "-._~+/").encode("ascii")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


PROOF_ALGORITHMS = ("ES256", "EdDSA", "PS256", "RS256")
"""The signatures of DPoP proofs that are accepted (RFC 9449 §5.1); `Ed25519` (RFC 9864) is taken for `EdDSA`."""


class BearerSyntaxError(ValueError):
    """Malformed Bearer credentials; `str()` gives the reason, for the log."""


def decode_token(response: bytes) -> str:
    """Return the token after the scheme's name: one `b64token` (RFC 6750 §2.1).

    Raises:
        BearerSyntaxError: there is none, more than one, or another character.
    """
    token = response.rstrip(b"=")
    if not token or token.translate(None, _TOKEN):
        raise BearerSyntaxError("not one token" if response else "no token")
    return response.decode("ascii")


def decode_scope(text: str) -> frozenset[str]:
    """Return the elements of a scope (RFC 6749 §3.3), which a challenge can quote without escapes.

    Raises:
        ValueError: there are other characters, or other separators than one space.
    """
    words = text.split(" ") if text else []
    if not all(map(_SCOPE.fullmatch, words)):
        raise ValueError(
            f'{text!r} is not a scope: words of printable ASCII without " and \\, separated by single spaces'
        )
    return frozenset(words)


def has_issuer(username: str) -> bool:
    """Return whether a name is that of an access token's user, `ISSUER#NAME` (reference: Bearer).

    An issuer is a URL and has a colon, which an account's name cannot have.
    """
    return ":" in username

"""A check of Digest (RFC 7616 §3.4, with MD5 and `qop=auth`) as written for a framework that has none.

Nonces and their used counts are kept in memory: a restart loses them, and a second worker would not have them. postd
keeps them in the store.
"""

import hashlib
import hmac
import re
import secrets
import time
from pathlib import Path

REALM = "postd"
NONCE_LIFETIME_S = 300

_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,"]+))')


class DigestCheck:
    """Authenticates requests."""

    def __init__(self) -> None:
        self._ha1 = dict(line.split(f":{REALM}:") for line in Path("users.digest").read_text().splitlines())
        self._made: dict[str, float] = {}
        self._used: dict[str, set[int]] = {}

    def challenge(self) -> str:
        """Return a `WWW-Authenticate` field with a new nonce; delete expired nonces."""
        now = time.monotonic()
        for nonce in [nonce for nonce, made in self._made.items() if made < now - NONCE_LIFETIME_S]:
            del self._made[nonce], self._used[nonce]
        nonce = secrets.token_urlsafe(24)
        self._made[nonce], self._used[nonce] = now, set()
        return f'Digest realm="{REALM}", nonce="{nonce}", algorithm=MD5, qop="auth"'

    def find_user(self, method: str, target: str, authorization: str | None) -> str | None:
        """Return the name of the user if the response is right, else None."""
        scheme, _, parameters = (authorization or "").partition(" ")
        if scheme.lower() != "digest":
            return None
        found: dict[str, str] = {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(parameters)}
        try:
            user, nonce, count = found["username"], found["nonce"], found["nc"]
            if found["uri"] != target or found["qop"] != "auth" or found["realm"] != REALM:
                return None
            if self._made[nonce] < time.monotonic() - NONCE_LIFETIME_S or int(count, 16) in self._used[nonce]:
                return None
            ha2 = _md5(f"{method}:{target}")
            expected = _md5(f"{self._ha1[user]}:{nonce}:{count}:{found['cnonce']}:auth:{ha2}")
            if not hmac.compare_digest(expected, found["response"]):
                return None
        except (KeyError, ValueError):
            return None
        self._used[nonce].add(int(count, 16))
        return user


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()

"""The users of the Python peers: password hashes, and argon2-cffi to verify them."""

from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

SESSION_SECRET = "signs the cookies of those peers that keep a session in one"

_hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
_hashes: dict[str, str] = {}


def is_password(username: str, password: str) -> bool:
    """Verify a password, which takes some 15 ms, without the interpreter lock."""
    if not _hashes:
        lines = (line.split(":") for line in Path("users").read_text().splitlines())
        _hashes.update({name: password_hash for name, password_hash, *_ in lines})
    try:
        return _hasher.verify(_hashes[username], password)
    except (KeyError, VerifyMismatchError):
        return False

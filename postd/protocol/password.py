"""Hashes and verifies passwords.

New hashes are Argon2id (RFC 9106); Argon2id and bcrypt are verified. The recommended parameters are from OWASP's
Password Storage Cheat Sheet. No error contains a password or a hash.
"""

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

import bcrypt
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError, VerifyMismatchError
from argon2.low_level import Type, verify_secret

from postd.protocol.base64url import decode_base64url

PASSWORD_MAX_CHARS = 1000
"""The longest password, in Unicode code points."""

_MEMORY_KIB, _PASSES, _LANES = 19 * 1024, 2, 1
_HASHER = PasswordHasher(time_cost=_PASSES, memory_cost=_MEMORY_KIB, parallelism=_LANES, hash_len=32, salt_len=16)

DUMMY_HASH = (
    f"$argon2id$v=19$m={_MEMORY_KIB},t={_PASSES},p={_LANES}"
    "$PXEHYQjNcd5TxxyVA3zNzg$x1Rp/8YuRZWamr81rcfld6XHiy1BuAnuUt+VPPKAjlo"
)
"""A hash of random bytes, to verify passwords of unknown users against when there is no account at all."""

_BCRYPT_MAX_BYTES = 72

MARKS_MAX = 30
"""The longest run of combining characters that is normalized (Unicode Standard Annex #15, Stream-Safe Text Format),
because the time for normalizing grows with the square of a run's length; no language has as many."""

_MARKS_OF_CLASS_0 = frozenset("\u0f73\u0f75\u0f81")
"""Characters that decompose into two marks, but have combining class 0 themselves."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def decode_text(octets: bytes) -> str:
    """Return a name or a password as text: UTF-8, or ISO-8859-1 where the octets are not UTF-8.

    RFC 7617 §2 leaves the encoding open without `charset`, and clients differ: requests, aiohttp, libsoup, Qt and Java
    send ISO-8859-1. Text of that encoding is hardly ever valid UTF-8.
    """
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def normalize(text: str) -> str:
    """Return a name or a password in NFC, in which they are stored and compared (RFC 8265 §3.3, §4.2).

    Non-ASCII spaces are not replaced, against RFC 8265 §4.2.2, because no client does so before it hashes for Digest.
    A text with more than `MARKS_MAX` combining characters in a row is returned unchanged.
    """
    if text.isascii() or _has_long_run(text):
        return text
    return unicodedata.normalize("NFC", text)


def _has_long_run(text: str) -> bool:
    """Return whether there are more than `MARKS_MAX` combining characters in a row."""
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) or character in _MARKS_OF_CLASS_0 else 0
        if run > MARKS_MAX:
            return True
    return False


def has_control(text: str) -> bool:
    """Return whether a text has a control character (C0, C1 or DEL), which credentials may not have.

    RFC 7617 §2 forbids ASCII control characters, RFC 8265 §4.2.1 further control characters.
    """
    return _CONTROL.search(text) is not None


def check_password(password: str) -> str:
    """Return a password normalized, if it is allowed for an account.

    Raises:
        ValueError: it is not; `str()` gives the reason, without the password.
    """
    if not password:
        raise ValueError("is empty")
    if len(password) > PASSWORD_MAX_CHARS:
        raise ValueError(f"has more than {PASSWORD_MAX_CHARS:,} characters")
    if has_control(password):
        raise ValueError("has a control character, which clients cannot send (RFC 7617 §2)")
    if not is_encodable(password):
        raise ValueError("is not UTF-8 text")
    return normalize(password)


def is_encodable(text: str) -> bool:
    """Return whether a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def hash_password(password: str) -> str:
    """Return a new Argon2id hash with a salt of its own. Blocks for about 15 ms.

    Raises:
        ValueError: `check_password` refuses the password.
    """
    return _HASHER.hash(check_password(password))


def verify_password(stored: str, password: str) -> bool:
    """Return whether a password matches a hash, in a time that depends on the hash only.

    Blocks for as long as the hash requires, and releases the GIL meanwhile. A password that is empty or too long never
    matches, and with bcrypt none that has over 72 bytes or a NUL.

    Args:
        stored: a hash that `check_hash` accepts.
        password: any string.

    Raises:
        MemoryError: the memory or the threads that Argon2 needs are not available.
    """
    usable = 0 < len(password) <= PASSWORD_MAX_CHARS
    # Such passwords are hashed, too: otherwise the time would reveal the kind of the account's hash.
    secret = normalize(password[:PASSWORD_MAX_CHARS]).encode(errors="surrogatepass")
    if stored.startswith("$argon2id$"):
        return _verify_argon2id(stored, secret) and usable
    # bcrypt's C implementations ignore all bytes from a NUL on, and all after the 72nd.
    usable = usable and len(secret) <= _BCRYPT_MAX_BYTES and b"\0" not in secret
    return bcrypt.checkpw(secret.replace(b"\0", b"")[:_BCRYPT_MAX_BYTES], stored.encode()) and usable


def _verify_argon2id(stored: str, secret: bytes) -> bool:
    try:
        return verify_secret(stored.encode(), secret, Type.ID)
    except VerifyMismatchError:
        return False
    except VerificationError as error:
        raise MemoryError(str(error)) from None


_BASE64 = "[A-Za-z0-9+/]"
_NUMBER = "([1-9][0-9]{0,9})"
_ARGON2ID = re.compile(
    rf"\$argon2id\$v=19\$m={_NUMBER},t={_NUMBER},p={_NUMBER}\$({_BASE64}{{11,86}})\$({_BASE64}{{22,86}})"
)
_MEMORY_MAX_KIB, _PASSES_MAX, _LANES_MAX = 1024**2, 100, 64

# 22 characters of salt hold 128 bits, and 31 of hash 184: the unused bits of the last characters are zero.
_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{30}[.CGKOSWaeimquy26]")
_COST_MIN, _COST_MAX = 4, 20

_DES_CRYPT = re.compile(r"[./0-9A-Za-z]{13}")

_OTHER_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "$apr1$": "an Apache MD5 hash ($apr1$)",
        "{SHA}": "a SHA-1 hash without a salt ({SHA})",
        "{SSHA}": "a SHA-1 hash ({SSHA})",
        "$1$": "an MD5 crypt hash ($1$)",
        "$5$": "a SHA-256 crypt hash ($5$)",
        "$6$": "a SHA-512 crypt hash ($6$)",
        "$7$": "an scrypt hash ($7$)",
        "$y$": "a yescrypt hash ($y$)",
        "$argon2i$": "an Argon2i hash ($argon2i$)",
        "$argon2d$": "an Argon2d hash ($argon2d$)",
        "$2x$": "a hash of a faulty bcrypt ($2x$)",
        "$2$": "a hash of the first bcrypt ($2$)",
        "$": "of an unknown kind",
    }
)

_ANEW = "set the password again with `postd user passwd NAME` or `htpasswd -B`"


def check_hash(stored: str) -> None:
    """Check that a text is a complete Argon2id or bcrypt hash that takes bounded time and memory to verify.

    Raises:
        ValueError: it is not; `str()` is the reason, without the text itself.
    """
    if stored.startswith("$argon2id$"):
        _check_argon2id(stored)
    elif stored.startswith(("$2a$", "$2b$", "$2y$")):
        _check_bcrypt(stored)
    else:
        raise ValueError(f"is {_other_kind(stored)}; supported are Argon2id and bcrypt: {_ANEW}")


def _check_argon2id(stored: str) -> None:
    memory_kib, passes, lanes = _argon2id_numbers(stored)
    if memory_kib > _MEMORY_MAX_KIB or passes > _PASSES_MAX or lanes > _LANES_MAX:
        raise ValueError(
            f"is an Argon2id hash that costs too much to verify: at most m={_MEMORY_MAX_KIB} (1 GiB), "
            f"t={_PASSES_MAX} and p={_LANES_MAX} are allowed; {_ANEW}"
        )
    if memory_kib < 8 * lanes:
        raise ValueError(f"is an Argon2id hash with m below 8 times p, which cannot be verified; {_ANEW}")


def _argon2id_numbers(stored: str) -> tuple[int, int, int]:
    """Return the memory in KiB, the passes and the lanes of a complete Argon2id hash."""
    match = _ARGON2ID.fullmatch(stored)
    if match is None or not (_is_canonical(match[4]) and _is_canonical(match[5])):
        raise ValueError(f"is not a complete Argon2id hash of version 19; {_ANEW}")
    return int(match[1]), int(match[2]), int(match[3])


def _is_canonical(text: str) -> bool:
    """Return whether a text of the Base64 alphabet is canonical, without padding (RFC 4648 §3.5)."""
    try:
        decode_base64url(text.replace("+", "-").replace("/", "_").encode())
    except ValueError:
        return False
    return True


def _check_bcrypt(stored: str) -> None:
    match = _BCRYPT.fullmatch(stored)
    if match is None:
        raise ValueError(f"is not a complete bcrypt hash; {_ANEW}")
    if not _COST_MIN <= int(match[1]) <= _COST_MAX:
        raise ValueError(f"is a bcrypt hash of a cost that is not between {_COST_MIN} and {_COST_MAX}; {_ANEW}")


def _other_kind(stored: str) -> str:
    if not stored:
        return "empty"
    for prefix, kind in _OTHER_KINDS.items():
        if stored.startswith(prefix):
            return kind
    if _DES_CRYPT.fullmatch(stored):
        return "plain text or a DES crypt hash"
    return "plain text or of an unknown kind"


def hash_kind(stored: str) -> str:
    """Return the kind of a hash that `check_hash` accepts: `argon2id`, or `bcrypt cost 12`."""
    match = _BCRYPT.fullmatch(stored)
    return f"bcrypt cost {int(match[1])}" if match else "argon2id"


# OWASP: the pairs of KiB and passes are about equally strong.
_RECOMMENDED = ((47104, 1), (19456, 2), (12288, 3), (9216, 4), (7168, 5))
_COST_RECOMMENDED = 10


def cost_of(stored: str) -> str:
    """Return the part of a hash that determines how long it takes to verify."""
    kind, parameters, *more = stored.split("$")[1:]
    return "$".join([kind, parameters, more[0]]) if kind == "argon2id" else parameters


def weakness(stored: str) -> str | None:
    """Return why a hash that `check_hash` accepts is weaker than recommended, None if it is not."""
    if match := _BCRYPT.fullmatch(stored):
        return f"cost {_COST_RECOMMENDED} or more is recommended" if int(match[1]) < _COST_RECOMMENDED else None
    memory_kib, passes, _ = _argon2id_numbers(stored)
    if any(memory_kib >= enough_kib and passes >= enough_passes for enough_kib, enough_passes in _RECOMMENDED):
        return None
    return f"m={memory_kib}, t={passes}; at least m={_MEMORY_KIB}, t={_PASSES} is recommended"

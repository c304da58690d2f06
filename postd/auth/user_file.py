"""The format of the user file, and how it is read (reference: User file).

A superset of Apache's htpasswd, one account a line:

    name:hash
    name:hash:MD5=<32 hex>,SHA-256=<64 hex>,realm=<text to the end of the line>
    name:hash:id=<12 hex>,MD5=<32 hex>,SHA-256=<64 hex>,realm=<text to the end of the line>
    name:hash:id=<12 hex>
    name:hash:comment

`hash` is one that `postd.protocol.password.check_hash` accepts. The third field, which Apache and nginx ignore, has the
identity of the entry, once its password was changed, and an H(A1) for one or more Digest algorithms with the realm they
are bound to. Else it is a comment. As with Apache, white space before a name and after a hash is ignored, and lines
that are blank or begin with `#` are comments. Names are in UTF-8, or in ISO-8859-1 as by htpasswd on an old terminal
(`decode_text`).
"""

import codecs
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct

from postd.errors import ConfigError
from postd.protocol.digest import ALGORITHMS_BY_DIGITS, HASHES, check_realm, h_a1
from postd.protocol.password import (
    check_hash,
    check_password,
    decode_text,
    has_control,
    hash_password,
    is_encodable,
    normalize,
)

NAME_MAX_BYTES = 255
"""The longest name, in UTF-8 (Apache's htpasswd has the same limit)."""

USER_FILE_MAX_BYTES = 16 * 1024**2

ENTRY_BYTES = 6
"""The length of the identity of an entry: htpasswd refuses lines of 256 bytes and more."""

_FINGERPRINT_BYTES = 16

_HEX_CHARS = MappingProxyType({"id": 2 * ENTRY_BYTES} | {name: digits for digits, name in ALGORITHMS_BY_DIGITS.items()})
"""The parts of the third field with hexadecimal digits, and how many."""

_Checked = TypeVar("_Checked")


class Account(Struct, frozen=True):
    """An account of the user file. Its `repr` shows no hash.

    `name` is in NFC. `h_a1` has the H(A1) in lower-case hex by the name of the algorithm, bound to `digest_realm`; an
    account that cannot use Digest has neither. `entry_id` is the identity that the line gives the entry, empty if it
    gives none.
    """

    name: str
    password_hash: str
    digest_realm: str | None = None
    h_a1: Mapping[str, str] = MappingProxyType({})
    entry_id: bytes = b""

    @property
    def fingerprint(self) -> bytes:
        """What a session has of its account; it changes with the password."""
        return hashlib.sha256(self.password_hash.encode()).digest()[:_FINGERPRINT_BYTES]

    @property
    def entry(self) -> bytes:
        """The identity of the entry, which stays when the password changes: a name that is removed and added again has
        another one. The first password, as hashed, decides it.
        """
        return self.entry_id or self.fingerprint[:ENTRY_BYTES]

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("digest_realm", self.digest_realm)]

    def __repr__(self) -> str:
        return f"Account({', '.join(f'{key}={value!r}' for key, value in self.__rich_repr__())})"

    def h_a1_for(self, realm: str, algorithm: str) -> str | None:
        """Return the H(A1) for an algorithm in a realm, None if the account has none."""
        return self.h_a1.get(algorithm) if realm == self.digest_realm else None


def make_account(name: str, password: str, realm: str) -> Account:
    """Return a new account for all schemes. Blocks for about 15 ms.

    Raises:
        ValueError: the name, the password or the realm is not allowed; `str()` says which and why.
    """
    name = _about("the name", check_name, name)
    password = _about("the password", check_password, password)
    _about("the realm", _check_realm, realm)
    return Account(
        name=name,
        password_hash=hash_password(password),
        digest_realm=realm,
        h_a1=MappingProxyType({algorithm: h_a1(algorithm, name, realm, password) for algorithm in HASHES}),
    )


def _about(subject: str, check: Callable[[str], _Checked], text: str) -> _Checked:
    """Check a text; the error begins with `subject`."""
    try:
        return check(text)
    except ValueError as error:
        raise ValueError(f"{subject} {error}") from None


def check_name(name: str) -> str:
    """Return `name` normalized if the user file can hold it.

    Raises:
        ValueError: it cannot; `str()` says why.
    """
    if not name:
        raise ValueError("is empty")
    if not is_encodable(name):
        raise ValueError("is not UTF-8 text")
    if has_control(name):
        raise ValueError("has a control character")
    if ":" in name:
        raise ValueError("has a colon, which would end the name (RFC 7617 §2)")
    if name.startswith("#"):
        raise ValueError("begins with #, as a comment does")
    if name != name.strip():
        raise ValueError("begins or ends with white space")
    # The first check bounds the work: normalizing takes time that grows with the square of the length.
    if len(name) > NAME_MAX_BYTES or len(normalize(name).encode()) > NAME_MAX_BYTES:
        raise ValueError(f"has more than {NAME_MAX_BYTES} bytes")
    return normalize(name)


def decode_users(content: bytes, where: str) -> dict[str, Account]:
    """Return the accounts of a user file by name, in the order of the file.

    Raises:
        ConfigError: a line is invalid. It names the line after `where`, and contains no hash.
    """
    # Apache would read it as part of the first name.
    if content.startswith(codecs.BOM_UTF8):
        raise ConfigError(f"{where}: line 1", "begins with a byte order mark; save the file as UTF-8 without one")
    accounts: dict[str, Account] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if _is_comment(line):
            continue
        try:
            account = _decode_account(_text(line), accounts)
        except ValueError as error:
            raise ConfigError(f"{where}: line {number}", str(error)) from None
        accounts[account.name] = account
    return accounts


def _is_comment(line: bytes) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith(b"#")


def _text(line: bytes) -> str:
    return decode_text(line.lstrip().removesuffix(b"\n").removesuffix(b"\r"))


def _decode_account(line: str, earlier: Mapping[str, Account]) -> Account:
    name, colon, rest = line.partition(":")
    if not colon:
        raise ValueError("has no colon; a line is name:hash")
    name = _about("the name", check_name, name)
    password_hash, _, field = rest.partition(":")
    password_hash = password_hash.rstrip()
    _about("the hash", check_hash, password_hash)
    if name in earlier:
        raise ValueError(f"the name {name!r} is on an earlier line already")
    if not _PARTS.match(field):
        return Account(name, password_hash)
    return Account(name, password_hash, *_about("the third field", _decode_parts, field))


def _decode_parts(field: str) -> tuple[str | None, Mapping[str, str], bytes]:
    """Return the realm, the H(A1)s and the identity of a line's third field."""
    parts: dict[str, str] = {}
    rest = field
    while not rest.startswith("realm="):
        part, comma, rest = rest.partition(",")
        name, _, value = part.partition("=")
        if name not in _HEX_CHARS:
            raise ValueError(f"has an unknown part; allowed: {', '.join([*_HEX_CHARS, 'realm'])}")
        if name in parts:
            raise ValueError(f"has {name} twice")
        value = value if comma else value.rstrip()
        if not re.fullmatch(f"[0-9A-Fa-f]{{{_HEX_CHARS[name]}}}", value):
            raise ValueError(f"does not have {_HEX_CHARS[name]} hexadecimal digits after {name}=")
        parts[name] = value.lower()
        if not comma:
            if [*parts] == ["id"]:
                return None, MappingProxyType({}), bytes.fromhex(value)
            raise ValueError("has no realm; it ends with realm=<text>")
    entry_id = bytes.fromhex(parts.pop("id", ""))
    if not parts:
        raise ValueError(f"has a realm and no hash; it needs {' or '.join(f'{name}=' for name in HASHES)}")
    realm = rest.removeprefix("realm=")
    _about("has a realm that", _check_realm, realm)
    return realm, MappingProxyType(parts), entry_id


_PARTS = re.compile(rf"(?:{'|'.join(HASHES)}|realm)=|.*,realm=|id=[0-9A-Fa-f]{{{_HEX_CHARS['id']}}}\s*(?:,|$)")
"""What a third field with parts begins with. Another one is a comment, but for that with a misspelled part."""

_PART_IN_REALM = re.compile(rf",(?:{'|'.join(_HEX_CHARS)})=[0-9A-Fa-f]{{{_HEX_CHARS['id']}}}")


def _check_realm(realm: str) -> None:
    try:
        check_realm(realm)
    except ValueError:
        # That error quotes the text, which on a malformed line may be a hash.
        raise ValueError('is empty, or not printable ASCII without " and \\') from None
    if _PART_IN_REALM.search(realm):
        raise ValueError("has a hash or an id in it; realm=<text> is the last part of the field")


def set_account(content: bytes, account: Account) -> bytes:
    """Return a user file with an account added, or replaced if the file has an account of its name.

    Every other line stays the same, to the byte. A comment in the replaced line is kept as a line before it, because
    the hashes for Digest take its place. `content` is as for `decode_users`.
    """
    lines = _split(content)
    encoded = _encode_account(account)
    line_end = b"\r\n" if b"\r\n" in content else b"\n"
    for position, line in enumerate(lines):
        if _name_in(line) == account.name:
            lines[position] = _comment_line(line, line_end) + encoded + (line_end if line.endswith(b"\n") else b"")
            return b"".join(lines)
    if lines and not lines[-1].endswith(b"\n"):
        lines.append(line_end)
    return b"".join([*lines, encoded, line_end])


def remove_account(content: bytes, name: str) -> bytes:
    """Return a user file without the line of an account; every other line stays the same, to the byte."""
    return b"".join(line for line in _split(content) if _name_in(line) != normalize(name))


def _split(content: bytes) -> list[bytes]:
    """Return the lines with their ends."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _name_in(line: bytes) -> str | None:
    return None if _is_comment(line) else normalize(_text(line).partition(":")[0])


def _comment_line(line: bytes, line_end: bytes) -> bytes:
    """Return the comment in the third field of an account's line, as a line; empty if there is none."""
    name, _, rest = line.strip().partition(b":")
    comment = rest.partition(b":")[2].strip()
    return b"# " + name + b": " + comment + line_end if comment and not _PARTS.match(decode_text(comment)) else b""


def _encode_account(account: Account) -> bytes:
    parts = [f"id={account.entry_id.hex()}"] if account.entry_id else []
    if account.h_a1:
        parts += [f"{algorithm}={value}" for algorithm, value in account.h_a1.items()]
        parts.append(f"realm={account.digest_realm}")
    return ":".join([account.name, account.password_hash, *([",".join(parts)] if parts else [])]).encode()


def open_nonblocking(path: str, flags: int, *, folder: int | None = None) -> int:
    """Open a file without blocking on a FIFO, and without acquiring a terminal."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)


def load_accounts(path: str) -> dict[str, Account] | None:
    """Return the accounts of a user file by name, None if it does not exist.

    Raises:
        ConfigError: it cannot be read, or a line is invalid.
    """
    content = read_user_file(Path(path))
    return None if content is None else decode_users(content, path)


def read_user_file(path: Path, opener: Callable[[str, int], int] = open_nonblocking) -> bytes | None:
    """Return the content of the user file, None if it does not exist. `opener` is as for `open`.

    Raises:
        ConfigError: it cannot be read, is not a regular file, or has more than `USER_FILE_MAX_BYTES`.
    """
    try:
        with open(path, "rb", opener=opener) as opened:
            is_regular = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
            content = opened.read(USER_FILE_MAX_BYTES + 1) if is_regular else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(str(path), "cannot be read: the path has a NUL character") from None
    if not is_regular:
        raise ConfigError(str(path), "is not a regular file")
    if len(content) > USER_FILE_MAX_BYTES:
        raise ConfigError(str(path), f"has more than {USER_FILE_MAX_BYTES // 1024**2} MiB")
    return content

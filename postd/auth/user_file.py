"""The user file: its format, and how it is read (contract 4.1).

A superset of Apache's htpasswd, a line an account:

    name:hash
    name:hash:MD5=<32 hex>,SHA-256=<64 hex>,realm=<text to the end of the line>

`hash` is what `postd.protocol.password.check_hash` lets through. The third field, which Apache ignores, has an H(A1)
for one or more algorithms of Digest, and the realm that they are bound to. As with Apache, white space before a name
and after a hash does not count, and lines that are blank or begin with `#` are comments.
"""

import codecs
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from postd.errors import ConfigError
from postd.protocol.digest import HASHES, check_realm, h_a1
from postd.protocol.password import check_hash, check_password, has_control, hash_password, normalize

NAME_MAX_BYTES = 255
"""Of a name in UTF-8 (Apache's htpasswd has the same limit)."""

USER_FILE_MAX_BYTES = 16 * 1024**2

_HEX_CHARS = MappingProxyType({name: 2 * made(usedforsecurity=False).digest_size for name, made in HASHES.items()})


_Checked = TypeVar("_Checked")


class Account(Struct, frozen=True):
    """What the user file has of a user. Its `repr` shows no hash.

    `name` is in NFC. `h_a1` goes from the name of an algorithm to lower-case hex that is bound to `digest_realm`; an
    account that Digest cannot serve has neither.
    """

    name: str
    password_hash: str
    digest_realm: str | None = None
    h_a1: Mapping[str, str] = MappingProxyType({})

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("digest_realm", self.digest_realm)]

    def __repr__(self) -> str:
        return f"Account({', '.join(f'{key}={value!r}' for key, value in self.__rich_repr__())})"

    def h_a1_for(self, realm: str, algorithm: str) -> str | None:
        """Return H(A1) for an algorithm, None if the account has none for it in this realm."""
        return self.h_a1.get(algorithm) if realm == self.digest_realm else None


def make_account(name: str, password: str, realm: str) -> Account:
    """Make an account that every scheme can serve. Blocks for about 15 ms.

    Raises:
        ValueError: the file cannot hold the name, the password or the realm; `str()` of it says which and why.
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


def _about(what: str, check: Callable[[str], _Checked], text: str) -> _Checked:
    """Check a text; say what it is if it is refused."""
    try:
        return check(text)
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


def check_name(name: str) -> str:
    """Return `name` normalized if the user file can hold it.

    Raises:
        ValueError: it cannot; `str()` of it says why.
    """
    if not name:
        raise ValueError("is empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8 text") from None
    if has_control(name):
        raise ValueError("has a control character in it")
    if ":" in name:
        raise ValueError("has a colon in it, which ends a name (RFC 7617 §2)")
    if name.startswith("#"):
        raise ValueError("begins with #, as a comment does")
    if name != name.strip():
        raise ValueError("begins or ends with white space")
    # The first bound keeps what is normalized short: that takes a time that grows with the square of the length.
    if len(name) > NAME_MAX_BYTES or len(normalize(name).encode()) > NAME_MAX_BYTES:
        raise ValueError(f"has more than {NAME_MAX_BYTES} bytes")
    return normalize(name)


def decode_users(content: bytes, where: str) -> dict[str, Account]:
    """Return the accounts of a user file by name, in the order of the file.

    Raises:
        ConfigError: a line cannot be used. It names the line after `where`, and has nothing of a hash in it.
    """
    # Apache would take it for a part of the first name.
    if content.startswith(codecs.BOM_UTF8):
        raise ConfigError(f"{where}: line 1", "begins with a byte order mark; save the file as UTF-8 without one")
    accounts: dict[str, Account] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if _is_comment(line):
            continue
        try:
            account = _decode_account(_text(line), accounts)
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: line {number}", "is not UTF-8 text") from None
        except ValueError as error:
            raise ConfigError(f"{where}: line {number}", str(error)) from None
        accounts[account.name] = account
    return accounts


def _is_comment(line: bytes) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith(b"#")


def _text(line: bytes) -> str:
    return line.lstrip().removesuffix(b"\n").removesuffix(b"\r").decode()


def _decode_account(line: str, earlier: Mapping[str, Account]) -> Account:
    name, colon, rest = line.partition(":")
    if not colon:
        raise ValueError("has no colon; a line is name:hash")
    name = _about("the name", check_name, name)
    password_hash, colon, digest = rest.partition(":")
    password_hash = password_hash.rstrip()
    _about("the hash", check_hash, password_hash)
    if name in earlier:
        raise ValueError(f"the name {name!r} is on an earlier line already")
    if not colon:
        return Account(name, password_hash)
    return Account(name, password_hash, *_about("the third field", _decode_digest, digest))


def _decode_digest(field: str) -> tuple[str, Mapping[str, str]]:
    """Return the realm and the H(A1)s of a third field."""
    hashes: dict[str, str] = {}
    rest = field
    while not rest.startswith("realm="):
        part, comma, rest = rest.partition(",")
        algorithm, _, value = part.partition("=")
        if algorithm not in _HEX_CHARS:
            raise ValueError(f"has a part in it that is none of {', '.join([*_HEX_CHARS, 'realm'])}")
        if algorithm in hashes:
            raise ValueError(f"has {algorithm} twice")
        if not re.fullmatch(f"[0-9A-Fa-f]{{{_HEX_CHARS[algorithm]}}}", value):
            raise ValueError(f"does not have {_HEX_CHARS[algorithm]} hexadecimal digits after {algorithm}=")
        if not comma:
            raise ValueError("has no realm; it ends with realm=<text>")
        hashes[algorithm] = value.lower()
    if not hashes:
        raise ValueError(f"has a realm and no hash; it begins with {' or '.join(f'{name}=' for name in _HEX_CHARS)}")
    realm = rest.removeprefix("realm=")
    _about("has a realm that", _check_realm, realm)
    return realm, MappingProxyType(hashes)


_HASH_IN_REALM = re.compile(rf",(?:{'|'.join(_HEX_CHARS)})=[0-9A-Fa-f]{{32}}")


def _check_realm(realm: str) -> None:
    try:
        check_realm(realm)
    except ValueError:
        # What that says has the text in it, and on a line of the file the text may be a hash that is out of its place.
        raise ValueError('is empty or has something else in it than printable ASCII without " and \\') from None
    if _HASH_IN_REALM.search(realm):
        raise ValueError("has a hash in it; realm=<text> is the last part of the field")


def set_account(content: bytes, account: Account) -> bytes:
    """Return a user file with an account in the place of the one of its name, or at the end if there is none.

    Every other line stays as it is, to the byte. `content` is what `decode_users` takes.
    """
    lines = _split(content)
    encoded = _encode_account(account)
    line_end = b"\r\n" if b"\r\n" in content else b"\n"
    for position, line in enumerate(lines):
        if _name_in(line) == account.name:
            lines[position] = encoded + (line_end if line.endswith(b"\n") else b"")
            return b"".join(lines)
    if lines and not lines[-1].endswith(b"\n"):
        lines.append(line_end)
    return b"".join([*lines, encoded, line_end])


def remove_account(content: bytes, name: str) -> bytes:
    """Return a user file without the line of an account, and otherwise as it is; `content` as for `set_account`."""
    return b"".join(line for line in _split(content) if _name_in(line) != normalize(name))


def _split(content: bytes) -> list[bytes]:
    """Return the lines with their ends."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _name_in(line: bytes) -> str | None:
    return None if _is_comment(line) else normalize(_text(line).partition(":")[0])


def _encode_account(account: Account) -> bytes:
    line = f"{account.name}:{account.password_hash}"
    if account.h_a1:
        hashes = (f"{algorithm}={value}" for algorithm, value in account.h_a1.items())
        line += f":{','.join(hashes)},realm={account.digest_realm}"
    return line.encode()


def open_at_once(path: str, flags: int, *, folder: int | None = None) -> int:
    """Open a FIFO without waiting for its other end, and a terminal without its becoming ours."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)


def read_user_file(path: Path, opener: Callable[[str, int], int] = open_at_once) -> bytes | None:
    """Return what is in the user file, None if there is no such file. `opener` is as for `open`.

    Raises:
        ConfigError: it cannot be read, is no regular file, or has more than `USER_FILE_MAX_BYTES`.
    """
    try:
        with open(path, "rb", opener=opener) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ConfigError(str(path), "is not a regular file")
            content = opened.read(USER_FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(str(path), "cannot be read: there is a NUL in the path") from None
    if len(content) > USER_FILE_MAX_BYTES:
        raise ConfigError(str(path), f"has more than {USER_FILE_MAX_BYTES // 1024**2} MiB")
    return content

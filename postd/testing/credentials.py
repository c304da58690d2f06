"""User files whose passwords are checked within a millisecond, and fields `Authorization`."""

import os
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import bcrypt

from postd.auth.user_file import Account, check_name, set_account
from postd.client.arguments import PATH, check_kind
from postd.protocol.digest import HASHES, check_realm, h_a1
from postd.protocol.password import check_password

Fields = dict[bytes | str, bytes | str]
"""Fields of a request, with the type that `headers=` of treq has."""

_BCRYPT_COST = 4


def write_users(path: str | os.PathLike[str], passwords: Mapping[str, str], *, realm: str = "postd") -> str:
    """Write a user file for all schemes; return its path, for `Protection(users=...)` or the setting `users`.

    It has bcrypt hashes of the lowest cost, and the hashes for Digest. An existing file is replaced.

    Example::

        users = write_users("users", {"alice": "wonderland"})
        protection = Protection(reactor, users=users)

    Args:
        path: `TestCase.mktemp()`, for example, or a path below pytest's `tmp_path`.
        passwords: the password of each user, at most 72 bytes.
        realm: the realm of the challenges, to which the Digest hashes are bound.

    Raises:
        ValueError: a name, a password or the realm is not allowed.
        OSError: the file cannot be written.
    """
    check_kind("path", path, PATH, "a path")
    check_kind("passwords", passwords, Mapping, "a mapping of names to passwords")
    for text in (realm, *passwords, *passwords.values()):
        check_kind("a name, a password or the realm", text, str, "text")
    check_realm(realm)
    content = b""
    for given, secret in passwords.items():
        name, password = check_name(given), check_password(secret)
        password_hash = bcrypt.hashpw(password.encode(), bcrypt.gensalt(_BCRYPT_COST)).decode("ascii")
        hashes = {algorithm: h_a1(algorithm, name, realm, password) for algorithm in HASHES}
        content = set_account(content, Account(name, password_hash, realm, hashes))
    Path(path).write_bytes(content)
    return os.fspath(path)


def basic(user: str, password: str) -> Fields:
    """Return an `Authorization` field with Basic credentials (RFC 7617).

    Example::

        print(basic("alice", "wonderland"))  # {'Authorization': 'Basic YWxpY2U6d29uZGVybGFuZA=='}
    """
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode("ascii")}


def bearer(token: str) -> Fields:
    """Return an `Authorization` field with an access token (RFC 6750 §2.1).

    Example::

        print(bearer("a-token"))  # {'Authorization': 'Bearer a-token'}
    """
    return {"Authorization": f"Bearer {token}"}

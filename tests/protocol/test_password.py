"""Hashing and verifying passwords."""

import base64
import inspect
import re
import subprocess
import sys

import bcrypt
import pytest
from argon2.low_level import Type, hash_secret
from hypothesis import example, given
from hypothesis import strategies as st

from postd.protocol import password
from postd.protocol.password import (
    DUMMY_HASH,
    MARKS_MAX,
    check_hash,
    check_password,
    hash_kind,
    hash_password,
    normalize,
    verify_password,
    weakness,
)
from tests.cases import each
from tests.helpers import SALT

ANEW = "set the password again with `postd user passwd NAME` or `htpasswd -B`"


def bcrypt_hash(password: bytes, prefix: str = "$2y$") -> str:
    """Return what `htpasswd -B -C 4` writes."""
    return prefix + bcrypt.hashpw(password, SALT).decode()[4:]


def argon2_hash(
    password: bytes = b"secret", memory_kib: int = 8, passes: int = 1, kind: Type = Type.ID, version: int = 19
) -> str:
    return hash_secret(password, b"0123456789abcdef", passes, memory_kib, 1, 32, kind, version).decode()


SOURCE = inspect.getsource(password)
BCRYPT = bcrypt_hash(b"secret")
ARGON2 = argon2_hash()


def refusal(stored: str) -> str:
    with pytest.raises(ValueError, match=r"^is ") as caught:
        check_hash(stored)
    return str(caught.value)


class NormalizeTests:
    def test_composed_and_decomposed_forms_are_equal(self) -> None:
        assert normalize("Amelie\u0301") == normalize("Ameli\u00e9") == "Ameli\u00e9"

    @given(st.text())
    def test_normalizing_is_idempotent(self, text: str) -> None:
        assert normalize(normalize(text)) == normalize(text)


class CheckPasswordTests:
    @each("password", ["x", "a:b", " ", "пароль", "密码", "🔑", "x" * 1000, "\u00a0", "a\u0301"])
    def test_any_text_is_allowed(self, password: str) -> None:
        assert check_password(password) == normalize(password)

    @each(
        "password, why",
        [
            ("", "is empty"),
            ("a\nb", "has a control character, which clients cannot send (RFC 7617 §2)"),
            ("a\x00", "has a control character, which clients cannot send (RFC 7617 §2)"),
            ("\x7f", "has a control character, which clients cannot send (RFC 7617 §2)"),
            ("\x85", "has a control character, which clients cannot send (RFC 7617 §2)"),
            ("x" * 1001, "has more than 1,000 characters"),
            ("a\ud800", "is not UTF-8 text"),
        ],
    )
    def test_invalid_password_is_refused(self, password: str, why: str) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            check_password(password)
        with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
            hash_password(password)


class HashPasswordTests:
    def test_hash_is_argon2id_with_owasps_parameters_and_a_random_salt(self) -> None:
        hashes = {hash_password("secret") for _ in range(2)}
        assert len(hashes) == 2
        for stored in hashes:
            assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
            check_hash(stored)
            assert weakness(stored) is None
            assert verify_password(stored, "secret")
            assert not verify_password(stored, "Secret")

    def test_unicode_form_makes_no_difference(self) -> None:
        assert verify_password(hash_password("Amelie\u0301"), "Ameli\u00e9")
        assert verify_password(bcrypt_hash("Ameli\u00e9".encode()), "Amelie\u0301")

    def test_dummy_hash_has_the_cost_of_a_new_hash(self) -> None:
        check_hash(DUMMY_HASH)
        made = hash_password("secret")
        assert DUMMY_HASH.split("$")[:4] == made.split("$")[:4]
        assert len(DUMMY_HASH) == len(made)
        assert not verify_password(DUMMY_HASH, "")
        assert not verify_password(DUMMY_HASH, "secret")


class VerifyPasswordTests:
    @each("prefix", ["$2a$", "$2b$", "$2y$"])
    def test_bcrypt_of_each_prefix_is_verified(self, prefix: str) -> None:
        stored = bcrypt_hash("sécret".encode(), prefix)
        check_hash(stored)
        assert verify_password(stored, "sécret")
        assert not verify_password(stored, "secret")

    def test_bcrypt_does_not_truncate_at_72_bytes_or_a_nul(self) -> None:
        stored = bcrypt_hash(b"x" * 72)
        assert verify_password(stored, "x" * 72)
        assert not verify_password(stored, "x" * 73)
        assert not verify_password(bcrypt_hash(b"x"), "x\0y")
        assert not verify_password(bcrypt_hash(b"xy"), "x\0y")

    @each("stored", [bcrypt_hash(b""), argon2_hash(b"")], ids=["bcrypt", "argon2id"])
    def test_empty_password_never_matches(self, stored: str) -> None:
        check_hash(stored)
        assert not verify_password(stored, "")

    def test_too_long_password_never_matches(self) -> None:
        stored = argon2_hash(b"x" * 1000)
        assert verify_password(stored, "x" * 1000)
        assert not verify_password(stored, "x" * 1001)

    @given(password=st.text(st.characters()))
    @example("\ud800")
    @example("\udc80" * 80)
    @example("\0")
    @example("a" + "\u0301\u0316" * 5000)
    def test_any_string_is_verified_without_error(self, password: str) -> None:
        for stored in (BCRYPT, ARGON2):
            assert verify_password(stored, password) is (password == "secret")

    def test_too_little_memory_raises_memory_error(self) -> None:
        script = (
            "import resource; from postd.protocol.password import verify_password\n"
            "resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))\n"
            "try: verify_password('$argon2id$v=19$m=1048576,t=1,p=1$c2FsdHNhbHQ$' + 'A' * 43, 'x')\n"
            "except MemoryError as error: print(error)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "Memory allocation error\n"


class CheckHashTests:
    @each(
        "stored, kind",
        [
            ("$apr1$Xf2qS1cX$8jv5Q5vYIVxKr7p2ZpV8P/", "is an Apache MD5 hash ($apr1$)"),
            ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "is a SHA-1 hash without a salt ({SHA})"),
            ("{SSHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "is a SHA-1 hash ({SSHA})"),
            ("$1$abcdefgh$irWbblnpmw.5z7wgBnprh0", "is an MD5 crypt hash ($1$)"),
            ("$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", "is a SHA-256 crypt hash ($5$)"),
            ("$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjlO/O817G3u", "is a SHA-512 crypt hash ($6$)"),
            ("$7$CU..../....4yRmZ3f6TAxhRDSaIMxxp.", "is an scrypt hash ($7$)"),
            ("$y$j9T$F5Jx5fExrKuPp53xLKQ..1$X3DX6M94c7o.", "is a yescrypt hash ($y$)"),
            (argon2_hash(kind=Type.I), "is an Argon2i hash ($argon2i$)"),
            (argon2_hash(kind=Type.D), "is an Argon2d hash ($argon2d$)"),
            (bcrypt_hash(b"x", "$2x$"), "is a hash of a faulty bcrypt ($2x$)"),
            ("$2$04$abcdefgh", "is a hash of the first bcrypt ($2$)"),
            ("$pbkdf2-sha256$29000$N2YMIWQsBWBMae09x1jrPQ$1t8iyB2A", "is of an unknown kind"),
            ("rqXexS6ZhobKA", "is plain text or a DES crypt hash"),
            ("hunter2", "is plain text or of an unknown kind"),
            (" " + BCRYPT, "is plain text or of an unknown kind"),
            ("", "is empty"),
        ],
    )
    def test_other_kinds_of_hash_are_named_but_not_quoted(self, stored: str, kind: str) -> None:
        assert refusal(stored) == f"{kind}; supported are Argon2id and bcrypt: {ANEW}"

    @each(
        "stored",
        [
            ARGON2[:-1],
            ARGON2[:-22],
            ARGON2 + "=",
            ARGON2 + "\n",
            ARGON2.replace("$v=19", ""),
            ARGON2.replace("v=19", "v=16"),
            ARGON2.replace("m=8", "m=08"),
            ARGON2.replace("m=8", "m=-8"),
            ARGON2.replace("m=8", "m=٨"),
            ARGON2.replace("t=1", "t=0"),
            ARGON2.replace("p=1", "p=1,keyid=Zm9v"),
            ARGON2.replace("MDEyMzQ1Njc4OWFiY2RlZg", "MDEyMzQ1Nj"),
            ARGON2.replace("MDEyMzQ1Njc4OWFiY2RlZg", "MDEyMzQ1Njc4OWFiY2RlZh"),
            ARGON2.replace("MDEyMzQ1Njc4OWFiY2RlZg", "MDEyMzQ1Njc4OWFiY2Rl."),
            "$argon2id$",
        ],
    )
    def test_incomplete_argon2id_hash_is_refused(self, stored: str) -> None:
        assert refusal(stored) == f"is not a complete Argon2id hash of version 19; {ANEW}"

    @each(
        "stored",
        [
            BCRYPT[:-1],
            BCRYPT + "a",
            BCRYPT + "\n",
            BCRYPT.replace("$04$", "$4$"),
            BCRYPT[:28] + "A" + BCRYPT[29:],
            BCRYPT[:-1] + "/",
            "$2y$",
        ],
    )
    def test_incomplete_bcrypt_hash_is_refused(self, stored: str) -> None:
        assert refusal(stored) == f"is not a complete bcrypt hash; {ANEW}"

    @each("number", ["m=1048577", "m=9999999999", "t=101", "p=65"])
    def test_too_costly_argon2id_hash_is_refused(self, number: str) -> None:
        assert "costs too much to verify" in refusal(re.sub(f"{number[0]}=[0-9]+", number, ARGON2))

    def test_argon2id_hash_invalid_to_argon2_is_refused(self) -> None:
        assert "m below 8 times p" in refusal(ARGON2.replace("p=1", "p=2"))

    @each("cost", ["00", "03", "21", "99"])
    def test_bcrypt_cost_out_of_range_is_refused(self, cost: str) -> None:
        assert "not between 4 and 20" in refusal(BCRYPT.replace("$04$", f"${cost}$"))

    @given(
        st.builds(
            lambda salt, made, lanes, passes: (
                f"$argon2id$v=19$m={8 * lanes},t={passes},p={lanes}${_base64(salt)}${_base64(made)}"
            ),
            st.binary(max_size=80),
            st.binary(max_size=80),
            st.integers(0, 4),
            st.integers(0, 3),
        )
        | st.from_regex(r"\$2[abxy]\$0[3-5]\$[./A-Za-z0-9]{20,23}[./A-Za-z0-9]{30,32}", fullmatch=True)
        | st.text()
    )
    def test_accepted_hash_verifies_without_error(self, stored: str) -> None:
        try:
            check_hash(stored)
        except ValueError as error:
            # Hypothesis generates literals of the module, too, and a message has some of them.
            assert stored in SOURCE or stored not in str(error)
        else:
            assert not verify_password(stored, "secret")
            assert hash_kind(stored)
            weakness(stored)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


class WeaknessTests:
    @each("cost, weak", [("04", True), ("05", True), ("09", True), ("10", False), ("12", False)])
    def test_weakness_of_bcrypt(self, cost: str, weak: bool) -> None:  # noqa: FBT001 - a column of the table
        stored = BCRYPT.replace("$04$", f"${cost}$")
        assert weakness(stored) == ("cost 10 or more is recommended" if weak else None)
        assert hash_kind(stored) == f"bcrypt cost {int(cost)}"

    @each(
        "memory_kib, passes, weak",
        [
            (47104, 1, False),
            (47103, 1, True),
            (19456, 2, False),
            (19455, 2, True),
            (12288, 3, False),
            (9216, 4, False),
            (7168, 5, False),
            (7167, 100, True),
            (65536, 3, False),
        ],
    )
    def test_weakness_of_argon2id(self, memory_kib: int, passes: int, weak: bool) -> None:  # noqa: FBT001 - a column of the table
        stored = ARGON2.replace("m=8,t=1", f"m={memory_kib},t={passes}")
        wanted = f"m={memory_kib}, t={passes}; at least m=19456, t=2 is recommended"
        assert weakness(stored) == (wanted if weak else None)
        assert hash_kind(stored) == "argon2id"


def test_too_long_run_of_combining_characters_is_not_normalized() -> None:
    acute = "e\u0301"
    assert normalize(acute) == "é"
    assert normalize("e" + "\u0301" * MARKS_MAX + acute) == "é" + "\u0301" * (MARKS_MAX - 1) + "é"
    long = acute + "e" + "\u0301" * (MARKS_MAX + 1)
    assert normalize(long) == long

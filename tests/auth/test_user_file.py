"""The format of the user file, and its edits."""

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from postd.auth.user_file import (
    Account,
    check_name,
    decode_users,
    make_account,
    read_user_file,
    remove_account,
    set_account,
)
from postd.auth.user_file_editing import Edited, edit_user_file, put_password
from postd.errors import ConfigError
from postd.protocol.password import verify_password
from tests.cases import each
from tests.helpers import NOT_ROOT, SALT, make_shared_folder

BCRYPT = "$2y$" + bcrypt.hashpw(b"secret", SALT).decode()[4:]
MD5 = hashlib.md5(b"alice:postd:secret").hexdigest()
SHA256 = hashlib.sha256(b"alice:postd:secret").hexdigest()
DIGEST = f"MD5={MD5},SHA-256={SHA256},realm=postd"
ALICE = Account("alice", BCRYPT, "postd", {"MD5": MD5, "SHA-256": SHA256})
ENTRY = hashlib.sha256(b"an earlier hash").digest()[:6]

NAMES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters=":#"), min_size=1, max_size=20)
COMMENTS = st.sampled_from([b"", b"  ", b"# kept", b"\t# a:b", b"#\xff"])
REALMS = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), min_size=1)
ENTRIES = st.binary(min_size=6, max_size=6) | st.just(b"")
FILES = st.lists(
    st.tuples(COMMENTS | NAMES.map(lambda name: f"{name}:{BCRYPT}".encode()), st.sampled_from([b"\n", b"\r\n"]))
).map(lambda lines: b"".join(line + end for line, end in lines))


def decode(text: str | bytes) -> dict[str, Account]:
    return decode_users(text if isinstance(text, bytes) else text.encode(), "users")


def refusal(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        decode(text)
    line = str(caught.value)
    assert "\n" not in line
    for secret in (BCRYPT[7:], MD5, SHA256):
        assert secret not in line
    return line


class DecodeUsersTests:
    def test_file_of_htpasswd_is_decoded(self) -> None:
        assert decode(f"alice:{BCRYPT}\nbob smith:{BCRYPT}\n") == {
            "alice": Account("alice", BCRYPT),
            "bob smith": Account("bob smith", BCRYPT),
        }

    def test_third_field_is_decoded(self) -> None:
        assert decode(f"alice:{BCRYPT}:{DIGEST}\n") == {"alice": ALICE}
        assert decode(f"alice:{BCRYPT}:SHA-256={SHA256},MD5={MD5.upper()},realm=postd") == {"alice": ALICE}

    def test_third_field_with_one_algorithm(self) -> None:
        account = decode(f"alice:{BCRYPT}:MD5={MD5},realm=postd")["alice"]
        assert account.h_a1_for("postd", "MD5") == MD5
        assert account.h_a1_for("postd", "SHA-256") is None

    @each("realm", ["a, b", "a:b", "realm=x", "a=b,c=d", " spaced ", "The posts of 'x'"])
    def test_realm_extends_to_the_end_of_its_line(self, realm: str) -> None:
        for end in ("", "\n", "\r\n"):
            account = decode(f"alice:{BCRYPT}:MD5={MD5},realm={realm}{end}")["alice"]
            assert account.digest_realm == realm

    def test_h_a1_is_for_its_realm_only(self) -> None:
        assert ALICE.h_a1_for("postd", "SHA-256") == SHA256
        assert ALICE.h_a1_for("other", "SHA-256") is None
        assert Account("bob", BCRYPT).h_a1_for("postd", "MD5") is None

    @each(
        "text",
        [
            f"# comment\n\n  \t\n  # indented: too\n#x:y\nalice:{BCRYPT}",
            f"alice:{BCRYPT}\r\n\r\n",
            f"\t alice:{BCRYPT}  \n",
            f"# Jos\u00e9\nalice:{BCRYPT}\n".encode("latin-1"),
        ],
    )
    def test_comments_blank_lines_and_white_space_are_ignored_as_by_apache(self, text: str | bytes) -> None:
        assert decode(text) == {"alice": Account("alice", BCRYPT)}

    def test_names_are_normalized(self) -> None:
        assert list(decode(f"Ame\u0301lie:{BCRYPT}")) == ["Am\u00e9lie"]

    def test_names_that_are_not_utf_8_are_latin_1(self) -> None:
        assert decode(f"Jos\u00e9:{BCRYPT}\n".encode("latin-1")) == decode(f"Jos\u00e9:{BCRYPT}\n")
        both = f"Jos\u00e9:{BCRYPT}\n".encode("latin-1") + f"Jos\u00e9:{BCRYPT}\n".encode()
        assert refusal(both) == "users: line 2: the name 'Jos\u00e9' is on an earlier line already"

    @each(
        "comment", ["", "mail@example.org", "Alice Smith", "x=1, MD5=2", "1000:100:Alice,,,:/home/alice", " ", "J\xf6"]
    )
    def test_third_field_may_be_a_comment_as_for_apache_and_nginx(self, comment: str) -> None:
        line = f"alice:{BCRYPT}:{comment}\n"
        for text in (line, line.encode("latin-1")):
            assert decode(text) == {"alice": Account("alice", BCRYPT)}

    def test_empty_file_has_no_users(self) -> None:
        assert decode("") == {}

    @each(
        "text, line",
        [
            ("alice", "users: line 1: has no colon; a line is name:hash"),
            (f"\n#\n:{BCRYPT}", "users: line 3: the name is empty"),
            (f"al\x1bice:{BCRYPT}", "users: line 1: the name has a control character"),
            (f"alice :{BCRYPT}", "users: line 1: the name begins or ends with white space"),
            (f"\u00a0alice:{BCRYPT}", "users: line 1: the name begins or ends with white space"),
            (f"{'é' * 128}:{BCRYPT}", "users: line 1: the name has more than 255 bytes"),
            (f"alice:{BCRYPT}\nalice:{BCRYPT}", "users: line 2: the name 'alice' is on an earlier line already"),
            (
                f"Am\u00e9:{BCRYPT}\nAme\u0301:{BCRYPT}",
                "users: line 2: the name 'Am\u00e9' is on an earlier line already",
            ),
            (b"al\x85ice:x", "users: line 1: the name has a control character"),
            (
                b"\xef\xbb\xbfalice:x",
                "users: line 1: begins with a byte order mark; save the file as UTF-8 without one",
            ),
        ],
    )
    def test_malformed_line_is_refused(self, text: str | bytes, line: str) -> None:
        assert refusal(text) == line

    @each(
        "text, why",
        [
            ("alice:", "the hash is empty"),
            ("alice::" + DIGEST, "the hash is empty"),
            ("alice:secret", "the hash is plain text or of an unknown kind"),
            ("alice:$apr1$a$b", "the hash is an Apache MD5 hash ($apr1$)"),
            (f"alice:{BCRYPT[:-1]}", "the hash is not a complete bcrypt hash"),
            (f"{BCRYPT}:alice", "the hash is plain text"),
            (f"alice:postd:{MD5}", "the hash is plain text"),
        ],
    )
    def test_malformed_hash_is_refused(self, text: str, why: str) -> None:
        assert refusal(text).startswith(f"users: line 1: {why}")

    @each(
        "field, why",
        [
            (f"SHA-512-256={SHA256},realm=postd", "has an unknown part; allowed: id, MD5, SHA-256, realm"),
            (f"md5={MD5},realm=postd", "has an unknown part; allowed: id, MD5, SHA-256, realm"),
            (f"MD5={MD5},,realm=postd", "has an unknown part; allowed: id, MD5, SHA-256, realm"),
            (f"ID={ENTRY.hex()},{DIGEST}", "has an unknown part; allowed: id, MD5, SHA-256, realm"),
            (f"id={ENTRY.hex()},id={ENTRY.hex()},{DIGEST}", "has id twice"),
            (f"id={ENTRY.hex()},id={ENTRY.hex()}", "has id twice"),
            (f"id={ENTRY.hex()[1:]},{DIGEST}", "does not have 12 hexadecimal digits after id="),
            (f"id={ENTRY.hex()}0,{DIGEST}", "does not have 12 hexadecimal digits after id="),
            (f"id=,{DIGEST}", "does not have 12 hexadecimal digits after id="),
            (f"id={ENTRY.hex()},MD5={MD5}", "has no realm; it ends with realm=<text>"),
            (f"id={ENTRY.hex()},", "has an unknown part"),
            (f"id={ENTRY.hex()},realm=postd", "has a realm and no hash; it needs MD5= or SHA-256="),
            (f"{DIGEST},id={ENTRY.hex()}", "has a realm that has a hash or an id in it; realm=<text> is the last"),
            (f"MD5={MD5},MD5={MD5},realm=postd", "has MD5 twice"),
            (f"MD5={MD5[:-1]},realm=postd", "does not have 32 hexadecimal digits after MD5="),
            (f"MD5={MD5}x,realm=postd", "does not have 32 hexadecimal digits after MD5="),
            (f"SHA-256={MD5},realm=postd", "does not have 64 hexadecimal digits after SHA-256="),
            (f"MD5={MD5}", "has no realm; it ends with realm=<text>"),
            ("realm=postd", "has a realm and no hash; it needs MD5= or SHA-256="),
            (f"MD5={MD5},realm=", "has a realm that is empty, or not printable ASCII"),
            (f'MD5={MD5},realm="x"', "has a realm that is empty, or not printable ASCII"),
            (
                f"MD5={MD5},realm=postd,SHA-256={SHA256}",
                "has a realm that has a hash or an id in it",
            ),
        ],
    )
    def test_malformed_third_field_is_refused(self, field: str, why: str) -> None:
        assert refusal(f"alice:{BCRYPT}:{field}").startswith(f"users: line 1: the third field {why}")

    @each("field", [f"id={ENTRY.hex()},{DIGEST}", f"MD5={MD5},id={ENTRY.hex().upper()},SHA-256={SHA256},realm=postd"])
    def test_line_may_give_its_entry_an_identity(self, field: str) -> None:
        assert decode(f"alice:{BCRYPT}:{field}\n") == {"alice": replace(ALICE, entry_id=ENTRY)}
        assert decode(f"alice:{BCRYPT}:{field}\n")["alice"].entry == ENTRY

    @each("end", ["", " ", "\n", "\r\n"])
    def test_entry_without_digest_may_have_an_identity(self, end: str) -> None:
        assert decode(f"alice:{BCRYPT}:id={ENTRY.hex()}{end}") == {"alice": Account("alice", BCRYPT, entry_id=ENTRY)}

    @each("comment", ["id=", "id=1000", f"id={ENTRY.hex()[1:]}", f"id={ENTRY.hex()} Alice", f"ID={ENTRY.hex()}"])
    def test_comment_that_is_no_identity_stays_a_comment(self, comment: str) -> None:
        assert decode(f"alice:{BCRYPT}:{comment}\n") == {"alice": Account("alice", BCRYPT)}

    def test_entry_without_an_identity_has_that_of_its_hash(self) -> None:
        assert len(ALICE.fingerprint) == 16
        assert ALICE.entry == ALICE.fingerprint[:6]
        assert ALICE.fingerprint == Account("bob", BCRYPT).fingerprint
        assert replace(ALICE, entry_id=ENTRY).fingerprint == ALICE.fingerprint
        assert Account("alice", "$2y$another").entry != ALICE.entry

    @given(st.binary() | st.text().map(str.encode) | st.text("a:=,\n\r\t #$").map(str.encode))
    def test_any_bytes_are_decoded_or_refused(self, content: bytes) -> None:
        try:
            decode(content)
        except ConfigError as error:
            assert str(error).startswith("users: line ")

    def test_repr_shows_no_hash(self) -> None:
        assert repr(ALICE) == "Account(name='alice', digest_realm='postd')"
        assert f"{[ALICE]}{ALICE.__rich_repr__()}".count(MD5) == 0


class CheckNameTests:
    @each("name", ["alice", "a b", "a#b", "José", "李", "a@b.example", "x" * 255, "\u202ealice"])
    def test_valid_name_is_accepted(self, name: str) -> None:
        assert check_name(name) == name

    @each(
        "name, why",
        [
            ("", "is empty"),
            ("a:b", "has a colon"),
            ("#a", "begins with #"),
            (" a", "begins or ends with white space"),
            ("a\u3000", "begins or ends with white space"),
            ("a\nb", "has a control character"),
            ("a\x9bb", "has a control character"),
            ("a\ud800", "is not UTF-8 text"),
            ("x" * 256, "has more than 255 bytes"),
            ("\u0958" * 80, "has more than 255 bytes"),
            ("a" + "\u0301\u0316" * 10**6, "has more than 255 bytes"),
        ],
    )
    def test_invalid_name_is_refused(self, name: str, why: str) -> None:
        with pytest.raises(ValueError, match=f"^{why}"):
            check_name(name)


class MakeAccountTests:
    def test_new_account_works_with_all_schemes(self) -> None:
        account = make_account("alice", "secret", "postd")
        assert verify_password(account.password_hash, "secret")
        assert (account.name, account.digest_realm, account.h_a1) == ("alice", "postd", ALICE.h_a1)

    def test_name_and_password_are_normalized_before_they_are_hashed(self) -> None:
        account = make_account("Ame\u0301", "e\u0301", "postd")
        assert account.h_a1["MD5"] == hashlib.md5("Am\u00e9:postd:\u00e9".encode()).hexdigest()

    @each(
        "name, password, realm, why",
        [
            ("a:b", "secret", "postd", "the name has a colon"),
            ("alice", "", "postd", "the password is empty"),
            ("alice", "secret", 'a"b', "the realm is empty, or not printable"),
            ("alice", "secret", f"x,MD5={MD5}", "the realm has a hash or an id in it"),
        ],
    )
    def test_invalid_name_password_or_realm_is_refused(self, name: str, password: str, realm: str, why: str) -> None:
        with pytest.raises(ValueError, match=f"^{why}"):
            make_account(name, password, realm)


class EditingTests:
    @given(FILES, NAMES, st.booleans())
    def test_setting_keeps_every_other_line(self, content: bytes, name: str, cut: bool) -> None:  # noqa: FBT001
        content = content.removesuffix(b"\n").removesuffix(b"\r") if cut else content
        try:
            before = decode(content)
        except ConfigError:
            return  # a name twice
        for target in [name, *list(before)[:1]]:
            account = Account(check_name(target), BCRYPT, "postd", ALICE.h_a1)
            changed = set_account(content, account)
            assert decode(changed) == before | {account.name: account}
            assert list(decode(changed)) == list(before | {account.name: account})
            assert _others(changed, account.name) == _others(content, account.name)
            assert set_account(changed, account) == changed

    @given(FILES)
    def test_removing_keeps_every_other_line(self, content: bytes) -> None:
        try:
            before = decode(content)
        except ConfigError:
            return  # a name twice
        for name in before:
            changed = remove_account(content, name)
            assert decode(changed) == {other: account for other, account in before.items() if other != name}
            assert _others(changed, name) == _others(content, name)
        assert remove_account(content, "no such user") == content

    def test_replaced_line_keeps_its_position_and_line_end(self) -> None:
        content = f"# one\r\nalice:{BCRYPT}\r\n\r\nbob:{BCRYPT}".encode()
        line = f"alice:{BCRYPT}:{DIGEST}".encode()
        assert set_account(content, ALICE) == b"# one\r\n" + line + b"\r\n\r\nbob:" + BCRYPT.encode()
        added = Account("carol", BCRYPT)
        assert set_account(content, added) == content + f"\r\ncarol:{BCRYPT}\r\n".encode()
        assert set_account(b"", added) == f"carol:{BCRYPT}\n".encode()

    @each("comment", [b"mail@example.org", b"1000:Jos\xe9", b" Alice "])
    def test_comment_of_a_replaced_line_is_kept(self, comment: bytes) -> None:
        content = f"bob:{BCRYPT}\r\nalice:{BCRYPT}:".encode() + comment + b"\r\n"
        changed = set_account(content, ALICE)
        assert changed.splitlines() == [
            f"bob:{BCRYPT}".encode(),
            b"# alice: " + comment.strip(),
            f"alice:{BCRYPT}:{DIGEST}".encode(),
        ]
        assert set_account(changed, ALICE) == changed
        assert remove_account(content, "bob") == content.split(b"\r\n", 1)[1]

    def test_name_is_found_in_any_unicode_form(self) -> None:
        content = f"  Ame\u0301:{BCRYPT}\n".encode()
        assert remove_account(content, "Am\u00e9") == b""
        assert set_account(content, Account("Am\u00e9", BCRYPT)) == f"Am\u00e9:{BCRYPT}\n".encode()

    @given(NAMES, REALMS, ENTRIES)
    def test_written_account_round_trips(self, name: str, realm: str, entry_id: bytes) -> None:
        for account in (
            Account(check_name(name), BCRYPT, realm, ALICE.h_a1, entry_id),
            Account(check_name(name), BCRYPT, entry_id=entry_id),
        ):
            content = set_account(b"", account)
            assert decode(content) == {account.name: account}
            assert set_account(content, account) == content

    @given(st.text(st.sampled_from("id=,MD5SHA-26realm") | st.sampled_from("0f x"), max_size=60), REALMS, ENTRIES)
    def test_any_third_field_is_parts_or_a_comment_or_refused(self, text: str, realm: str, entry_id: bytes) -> None:
        for field in (text, f"id={entry_id.hex()},{text}", f"{text},MD5={MD5},realm={realm}"):
            try:
                account = decode(f"alice:{BCRYPT}:{field}\n")["alice"]
            except ConfigError as error:
                assert str(error).startswith("users: line 1: the third field ")
                continue
            assert (account.h_a1 == {}) is (account.digest_realm is None)
            assert account.entry == (account.entry_id or account.fingerprint[:6])
            written = set_account(b"", account)
            assert decode(written) == {"alice": account}

    @given(
        FILES,
        st.lists(st.sampled_from([BCRYPT[:7] + letter + BCRYPT[8:] for letter in "wxyz"]), min_size=1, max_size=4),
    )
    def test_new_passwords_keep_the_entry(self, content: bytes, hashes: list[str]) -> None:
        try:
            before = decode(content)
        except ConfigError:
            return  # a name twice
        for name, account in before.items():
            changed = content
            for stored in hashes:
                changed = put_password(
                    changed, decode(changed), replace(ALICE, name=name, password_hash=stored), lambda _: None
                )
                now = decode(changed)[name]
                assert (now.password_hash, now.h_a1) == (stored, ALICE.h_a1)
                assert now.entry == account.entry
            again = put_password(
                remove_account(changed, name), {}, replace(account, password_hash=hashes[0]), lambda _: None
            )
            assert decode(again)[name].entry != account.entry


def _others(content: bytes, name: str) -> list[bytes]:
    """Return the lines of other names, without line ends."""
    lines = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    kept = [line for line in lines if not line.strip() or name not in decode(line)]
    while kept and not kept[-1]:
        kept.pop()
    return kept


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def put(name: str) -> Callable[[bytes, Mapping[str, Account]], bytes]:
    return lambda content, _: set_account(content, Account(name, BCRYPT))


def edit_refusal(path: Path, name: str = "alice") -> str:
    with pytest.raises(ConfigError) as caught:
        edit_user_file(path, put(name))
    return str(caught.value)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class ReadUserFileTests:
    def test_file_is_read(self, file: Path) -> None:
        file.write_bytes(b"x")
        assert read_user_file(file) == b"x"

    def test_missing_file_reads_as_none(self, file: Path) -> None:
        assert read_user_file(file) is None
        assert read_user_file(file / "in" / "no" / "folder") is None
        file.symlink_to("nowhere")
        assert read_user_file(file) is None

    def test_other_kinds_of_files_are_refused(self, file: Path) -> None:
        for path, why in (
            (file.parent, "cannot be read: Is a directory"),
            (Path("/dev/zero"), "is not a regular file"),
            (Path("/dev/null/x"), "cannot be read: Not a directory"),
            (Path("a\0b"), "cannot be read: the path has a NUL character"),
        ):
            with pytest.raises(ConfigError, match=why):
                read_user_file(path)

    def test_fifo_is_refused_without_blocking(self, file: Path) -> None:
        os.mkfifo(file)
        with pytest.raises(ConfigError, match="is not a regular file"):
            read_user_file(file)

    def test_too_large_file_is_refused(self, file: Path) -> None:
        with file.open("wb") as opened:
            opened.truncate(16 * 1024**2)
            assert len(read_user_file(file) or b"") == 16 * 1024**2
            opened.truncate(16 * 1024**2 + 1)
        with pytest.raises(ConfigError, match="has more than 16 MiB"):
            read_user_file(file)

    def test_failed_read_leaks_no_descriptor(self, file: Path) -> None:
        os.mkfifo(file)
        before = names_in(Path("/proc/self/fd"))
        for path in (file, file.parent, Path("/dev/null")):
            with pytest.raises(ConfigError):
                read_user_file(path)
        assert names_in(Path("/proc/self/fd")) == before


class EditUserFileTests:
    def test_missing_file_is_created(self, file: Path) -> None:
        before = os.umask(0)
        try:
            assert edit_user_file(file, put("alice")) == Edited(created=True, was_mode=None)
        finally:
            os.umask(before)
        assert list(decode(file.read_bytes())) == ["alice"]
        assert mode(file) == 0o600
        assert names_in(file.parent) == ["users"]

    def test_mode_is_restricted_and_reported(self, file: Path) -> None:
        file.touch()
        file.chmod(0o640)
        assert edit_user_file(file, put("alice")) == Edited(created=False, was_mode=0o640)
        assert mode(file) == 0o600
        assert edit_user_file(file, put("bob")) == Edited(created=False, was_mode=None)

    def test_link_stays_a_link(self, file: Path) -> None:
        real = file.parent / "real" / "users"
        real.parent.mkdir()
        file.symlink_to("real/users")
        for name in ("alice", "bob"):
            edit_user_file(file, put(name))
        assert file.is_symlink()
        assert not real.is_symlink()
        assert list(decode(real.read_bytes())) == ["alice", "bob"]

    def test_edit_that_raises_changes_nothing(self, file: Path) -> None:
        def fail(content: bytes, accounts: Mapping[str, Account]) -> bytes:
            raise KeyError

        with pytest.raises(KeyError):
            edit_user_file(file, fail)
        assert names_in(file.parent) == []

    def test_invalid_file_is_not_edited(self, file: Path) -> None:
        file.write_bytes(b"alice:x\n")
        assert edit_refusal(file, "bob").startswith(f"{file}: line 1: the hash is plain text")
        assert file.read_bytes() == b"alice:x\n"

    def test_unwritable_file_is_refused(self, file: Path) -> None:
        assert edit_refusal(file.parent) == f"{file.parent}: cannot be read: Is a directory"
        missing = file.parent / "no" / "users"
        assert edit_refusal(missing) == f"{missing}: cannot be written: No such file or directory"
        long = file.parent / ("x" * 255)
        assert edit_refusal(long) == f"{long}: cannot be written: File name too long"
        assert "the path has a NUL character" in edit_refusal(Path("a\0b"))
        file.symlink_to(file)
        assert "Too many levels of symbolic links" in edit_refusal(file)

    def test_edit_beyond_the_size_limit_is_refused(self, file: Path) -> None:
        file.write_bytes(b"#" * 16 * 1024**2)
        assert edit_refusal(file) == f"{file}: would have more than 16 MiB"
        assert file.stat().st_size == 16 * 1024**2

    def test_full_disk_loses_nothing(self, file: Path) -> None:
        edit_user_file(file, put("alice"))
        before = file.read_bytes()
        done = _run_limited("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (70, 70))", file)
        assert done == f"{file}: cannot be written: File too large"
        assert file.read_bytes() == before
        assert names_in(file.parent) == ["users"]

    def test_reader_sees_the_old_file_or_the_new_one(self, file: Path) -> None:
        edit_user_file(file, put("alice"))
        done = threading.Event()
        seen = 0

        def edit() -> None:
            for number in range(100):
                edit_user_file(file, put(f"user{number}"))
            done.set()

        thread = threading.Thread(target=edit)
        thread.start()
        while not done.is_set():
            now = len(decode(read_user_file(file) or b""))
            assert now >= max(seen, 1)
            seen = now
        thread.join()
        assert len(decode(file.read_bytes())) == 101

    @pytest.mark.slow
    def test_concurrent_edits_lose_nothing(self, file: Path) -> None:
        script = _SCRIPT + "for number in range(10): edit(sys.argv[1], f'{sys.argv[2]}-{number}')"
        with ExitStack() as ended:
            editors = [ended.enter_context(_start(script, file, str(editor))) for editor in range(8)]
        assert [editor.returncode for editor in editors] == [0] * 8
        assert len(decode(file.read_bytes())) == 80
        assert names_in(file.parent) == ["users"]

    def test_edit_waits_for_another_one(self, file: Path) -> None:
        folder = os.open(file.parent, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        with _start(_SCRIPT + "print(flush=True); edit(sys.argv[1], 'alice')", file) as editor:
            _wait_for_line(editor)
            with pytest.raises(subprocess.TimeoutExpired):
                editor.wait(0.2)
            assert not file.exists()
            os.close(folder)
        assert editor.returncode == 0
        assert list(decode(file.read_bytes())) == ["alice"]

    def test_killed_editor_leaves_a_valid_file_and_no_lock(self, file: Path) -> None:
        edit_user_file(file, put("first"))
        for delay_ms in range(0, 20, 4):
            script = _SCRIPT + "print(flush=True)\nfor number in range(10**6): edit(sys.argv[1], f'user{number}')"
            with _start(script, file) as editor:
                _wait_for_line(editor)
                time.sleep(delay_ms / 1000)
                editor.kill()
            assert "first" in decode(file.read_bytes())
        edit_user_file(file, put("last"))
        assert "last" in decode(file.read_bytes())
        assert names_in(file.parent) == ["users"]

    def test_temporary_file_of_a_killed_editor_is_replaced(self, file: Path) -> None:
        left = file.with_name(".users.new")
        left.symlink_to("/etc/passwd")
        edit_user_file(file, put("alice"))
        assert list(decode(file.read_bytes())) == ["alice"]
        assert names_in(file.parent) == ["users"]


class OwnerTests:
    """Edits by root, for other users."""

    @pytest.fixture(autouse=True)
    def _as_root(self) -> None:
        if os.geteuid() != 0:
            pytest.skip(NOT_ROOT)

    def test_owner_is_kept(self, file: Path) -> None:
        """As when root edits the daemon's file."""
        file.touch()
        os.chown(file, 12345, 54321)
        edit_user_file(file, put("alice"))
        assert (file.stat().st_uid, file.stat().st_gid) == (12345, 54321)
        assert mode(file) == 0o600

    def test_file_created_by_root_belongs_to_the_owner_of_the_folder(self, file: Path) -> None:
        os.chown(file.parent, 12345, 54321)
        edit_user_file(file, put("alice"))
        assert (file.stat().st_uid, file.stat().st_gid) == (12345, 54321)

    def test_edit_by_another_user_is_refused(self) -> None:
        """With write access to the folder, another user could replace the file by one that the daemon cannot read."""
        with make_shared_folder(0o777) as folder:
            file = folder / "users"
            file.write_bytes(b"")
            file.chmod(0o644)
            done = _run_limited("import os; os.setuid(12345)", file)
            assert done == f"{file}: belongs to another user; run the command as that user or as root"
            assert file.read_bytes() == b""
            assert names_in(folder) == ["users"]
            file.unlink()
            assert _run_limited("import os; os.setuid(12345)", file) == ""
            assert file.stat().st_uid == 12345


_SCRIPT = f"""
import sys
from pathlib import Path
from postd.auth.user_file_editing import edit_user_file, put_password
from postd.auth.user_file import Account, set_account
def edit(path, name):
    edit_user_file(Path(path), lambda content, _: set_account(content, Account(name, {BCRYPT!r})))
"""


def _start(script: str, *arguments: Path | str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _wait_for_line(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    process.stdout.readline()


def _run_limited(limit: str, file: Path) -> str:
    """Add "bob" in a process with resource limits; return its error."""
    script = (
        f"{_SCRIPT}\n{limit}\nfrom postd.errors import ConfigError\n"
        "try: edit(sys.argv[1], 'bob')\nexcept ConfigError as error: print(error)"
    )
    with _start(script, file) as process:
        said = process.communicate()[0]
    assert process.returncode == 0
    return said.removesuffix("\n")

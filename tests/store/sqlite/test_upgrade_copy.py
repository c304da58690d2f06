"""Upgrades of a file with an older schema: atomic, and with a copy of the old file."""

import hashlib
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.logger import LogLevel, capturedLogs, formatEvent

from postd.errors import StoreRefusedError, StoreUnavailableError
from postd.model import Change, ChangeKind, PostDetails
from postd.protocol.password_reset import PasswordReset
from postd.reactor import IReactor
from postd.store.sqlite.database_file import SCHEMA_WITHOUT_TEXTS, schema_steps
from postd.store.sqlite.store import SqliteStore
from tests.helpers import PATIENCE_S, locked, run_sql
from tests.store.contract import (
    ID_TOKEN,
    KEYS,
    NOW,
    error_of,
    id_hash_of,
    make_passkey,
    make_provider_session,
    make_session,
    make_token,
    open_store,
    started,
    until_available,
)
from tests.store.failing import wait_until
from tests.store.sqlite.older import NEWEST, OLDER, POSTS, make_older, names_in, older_postd, schema_of, tables_of
from tests.store.sqlite.upgrading import KINDS

reactor = cast(IReactor, global_reactor)

END_MAX_S = PATIENCE_S


def make_store(path: Path) -> SqliteStore:
    return SqliteStore(str(path), reactor=reactor)


def begin(path: Path, where: str = "nowhere") -> subprocess.Popen[str]:
    """Start a process that upgrades a file when it reads a line (`tests.store.sqlite.upgrading`)."""
    command = [sys.executable, "-m", "tests.store.sqlite.upgrading", str(path), where]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("schema", OLDER)
@ensureDeferred
async def test_upgrade_keeps_all_data_and_a_copy(path: Path, schema: int) -> None:
    before = make_older(path, schema)
    with capturedLogs() as events:
        store = await open_store(lambda: make_store(path))
    copy = path.with_name(f"posts.db.schema-{schema}")
    (logged,) = [formatEvent(event) for event in events if event["log_level"] is LogLevel.info]
    upgraded = f"store: {path} was upgraded from schema {schema} to {NEWEST}"
    which = ", which has texts of deleted posts," if schema < SCHEMA_WITHOUT_TEXTS else ""
    assert logged == f"{upgraded}; a copy of the old file{which} is {copy}"
    assert {name: rows for name, rows in tables_of(path).items() if name in before} == before

    posts = (await store.list_posts(limit=POSTS + 2)).posts
    assert (len(posts), posts[1], posts[-1]) == (POSTS, (2, "changed"), (POSTS, f"post {POSTS}"))
    assert await store.list_changes(after=POSTS + 2, limit=9) == [
        Change(POSTS + 3, ChangeKind.DELETED, POSTS + 1, None),
    ]
    older = await store.version()
    assert await store.add_post("next") == POSTS + 2  # not the id of the deleted post
    newer = await store.version()
    # An older change has no tag.
    assert (await store.list_posts(limit=0, since=older)).changes == (
        None if schema < 6 else {POSTS + 2: (POSTS + 2, "next")}
    )
    assert (await store.list_posts(limit=0, since=newer)).changes == {}
    await store.replace_post(1, "again")
    assert (await store.list_posts(limit=0, since=newer)).changes == {1: (1, "again")}
    assert await store.get_details(1) == PostDetails(1, "again")
    collection = await store.collection()
    assert abs(collection.began / 1000 - time.time()) < 60
    assert await store.collection() == collection
    assert (await store.get_session(id_hash_of(1)) == make_session()) == (schema > 1)
    assert (await store.get_session(id_hash_of(2)) == make_provider_session("1", "s")) == (schema > 9)
    assert await store.get_id_token(id_hash_of(2)) == (ID_TOKEN if schema > 9 else "")
    assert await store.end_sessions_at(b"provider", subject="1") == (1 if schema > 9 else 0)
    assert await store.use_nonce(b"nonce", 7, expires=NOW) == (schema == 1)
    assert await store.use_nonce(b"nonce", 5000, expires=NOW) == (schema == 1)
    assert await store.use_nonce(b"nonce", 2000, expires=NOW)
    assert await store.use_proof(b"proof", expires=NOW) == (schema == 1)
    assert (await store.key("digest") == bytes(range(32))) == (schema > 1)
    assert len(await store.count_failures(KEYS, now=NOW)) == (3 if schema > 1 else 0)
    await store.stop()
    assert schema_of(path) == NEWEST

    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert names_in(path.parent) == {"posts.db", copy.name}
    assert (schema_of(copy), tables_of(copy)) == (schema, before)


@ensureDeferred
async def test_upgrade_copy_has_no_id_token_and_no_credential(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(lambda: make_store(path))
    session = make_provider_session("1", "s")
    for number in range(3):
        await store.add_session(id_hash_of(number), session, id_token=ID_TOKEN[: 4096 >> 4 * number])
    secrets = [hashlib.sha256(b"%d" % number).digest() for number in range(50)]
    for number, secret in enumerate(secrets):
        await store.add_token(secret, make_token(number, label="LABEL" * 20))
        await store.add_passkey(make_passkey(number, f"{number}", credential_id=secret, label="LABEL" * 20))
        await store.add_password_reset(secret, PasswordReset(f"{number}", b"", NOW))
    await store.delete_tokens([f"token{number}" for number in range(0, 50, 2)])
    await store.stop()
    steps = (*schema_steps(), "CREATE TABLE next (id);\n")
    monkeypatch.setattr("postd.store.sqlite.database_file.schema_steps", lambda: steps)
    store = await open_store(lambda: make_store(path))
    assert await store.get_id_token(id_hash_of(0)) == ID_TOKEN
    assert (len(await store.list_tokens()), len(await store.list_passkeys())) == (25, 50)
    await store.stop()
    copy = path.with_name(f"posts.db.schema-{NEWEST}")
    assert run_sql(copy, "SELECT count(*) FROM session") == [(3,)]
    assert ID_TOKEN[:16].encode() not in copy.read_bytes()
    assert ID_TOKEN[1000:1016].encode() not in copy.read_bytes()
    assert b"LABEL" not in copy.read_bytes()
    assert [secret for secret in secrets if secret[:8] in copy.read_bytes()] == []


@pytest.mark.parametrize("schema", OLDER)
def test_foreign_view_of_the_log_works_after_the_upgrade(path: Path, schema: int) -> None:
    make_older(path, schema)
    run_sql(path, "CREATE VIEW deleted AS SELECT id FROM change WHERE kind = 'deleted'")
    make_store(path).prepare()
    assert run_sql(path, "SELECT id FROM deleted") == [(POSTS + 1,)]


@pytest.mark.parametrize("schema", OLDER)
def test_older_postd_can_use_the_copy(path: Path, schema: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_older(path, schema)
    make_store(path).prepare()
    with older_postd(monkeypatch, schema):
        with pytest.raises(StoreRefusedError, match=f"newer postd .schema {NEWEST}; this one knows {schema}"):
            make_store(path).prepare()
        path.with_name(f"posts.db.schema-{schema}").rename(path)
        make_store(path).prepare()
    assert (schema_of(path), tables_of(path)) == (schema, before)


def test_copy_does_not_replace_another(path: Path) -> None:
    make_older(path, 3)
    make_store(path).prepare()
    copy, second = (path.with_name(f"posts.db.schema-3{suffix}") for suffix in ("", ".2"))
    first_copy = copy.read_bytes()
    shutil.copyfile(copy, path)
    make_store(path).prepare()
    assert names_in(path.parent) == {"posts.db", copy.name}  # a second copy would be equal
    shutil.copyfile(copy, path)
    run_sql(path, "INSERT INTO post (post) VALUES ('of the older postd')")
    make_store(path).prepare()
    assert copy.read_bytes() == first_copy
    assert run_sql(second, "SELECT id, post FROM post ORDER BY id DESC LIMIT 1") == [
        (POSTS + 2, "of the older postd"),
    ]
    assert names_in(path.parent) == {"posts.db", copy.name, second.name}


def test_file_with_the_current_schema_is_not_copied(path: Path) -> None:
    for _ in range(2):
        make_store(path).prepare()
    assert names_in(path.parent) == {"posts.db"}


def test_copy_is_beside_the_target_of_a_symlink(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    make_older(path.parent / "elsewhere" / "real.db", 1)
    path.symlink_to(path.parent / "elsewhere" / "real.db")
    make_store(path).prepare()
    assert names_in(path.parent / "elsewhere") == {"real.db", "real.db.schema-1"}


@pytest.mark.parametrize("where", [where for where in KINDS if where != "nowhere"])
def test_killed_upgrade_leaves_the_old_or_the_new_schema(path: Path, where: str) -> None:
    before = make_older(path, 1)
    with begin(path, where) as killed:
        killed.communicate("go\n", timeout=END_MAX_S)
    assert killed.returncode == -signal.SIGKILL
    schema = schema_of(path)
    assert schema == (NEWEST if where == "after the commit" else 1)
    assert {name: rows for name, rows in tables_of(path).items() if name in before} == before
    make_store(path).prepare()
    assert schema_of(path) == NEWEST
    # The unfinished copy was removed, and a finished one is not repeated.
    assert names_in(path.parent) == {"posts.db", "posts.db.schema-1"}
    assert tables_of(path.with_name("posts.db.schema-1")) == before


def test_one_of_several_processes_upgrades(path: Path) -> None:
    before = make_older(path, 2)
    processes = [begin(path) for _ in range(3)]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "here\n"
    with locked(path, "IMMEDIATE"):
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        time.sleep(0.2)  # all wait for the lock with an older file
    logs = [process.communicate(timeout=END_MAX_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(line.count("was upgraded from schema 2") for line in logs) == [0, 0, 1]
    # SQLite leaves its own files if all close at the same moment.
    assert names_in(path.parent) - {"posts.db-wal", "posts.db-shm"} == {"posts.db", "posts.db.schema-2"}
    assert tables_of(path.with_name("posts.db.schema-2")) == before
    assert schema_of(path) == NEWEST


@contextmanager
def files_at_most(max_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_upgrade_without_space_for_the_copy_changes_nothing(path: Path) -> None:
    before = make_older(path, 3, posts=2000)
    assert tables_of(path) == before  # which empties the log
    content = path.read_bytes()
    with files_at_most(len(content) - 4096), pytest.raises(StoreRefusedError) as caught:
        make_store(path).prepare()
    assert caught.value.why.startswith(
        f"{path}: it cannot be upgraded from schema 3 to {NEWEST}: the backup copy cannot be made: "
    )
    assert caught.value.why.endswith("; it takes 1 MiB in a folder that postd may write to")
    assert path.read_bytes() == content
    assert names_in(path.parent) == {"posts.db"}
    make_store(path).prepare()
    assert schema_of(path) == NEWEST


def test_damaged_older_file_is_neither_copied_nor_changed(path: Path) -> None:
    make_older(path, 3)
    run_sql(path, "DROP TRIGGER post_added")
    content = path.read_bytes()
    with pytest.raises(StoreRefusedError, match=r"not those of postd .post_added"):
        make_store(path).prepare()
    assert path.read_bytes() == content
    assert names_in(path.parent) == {"posts.db"}


@ensureDeferred
async def test_upgrade_waits_for_an_older_server_that_has_the_file_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_older(path, 3)
    with older_postd(monkeypatch, 3):
        older = await open_store(lambda: make_store(path))
    store = make_store(path)
    with pytest.raises(StoreUnavailableError, match=r"an older postd has it open; .* from schema 3 to"):
        store.prepare()
    starting = started(store.start())
    run_sql(path, "INSERT INTO post (post) VALUES ('of the older one')")
    assert await older.last_id() == POSTS + 2
    assert isinstance(await error_of(store.version()), StoreUnavailableError)
    assert run_sql(path, "PRAGMA user_version") == [(3,)]
    await older.stop()
    await starting
    assert await store.add_post("of the newer one") == POSTS + 3
    await store.stop()
    assert run_sql(path.with_name("posts.db.schema-3"), "SELECT count(*) FROM post") == [(POSTS + 1,)]


@ensureDeferred
async def test_running_server_upgrades_a_restored_older_backup(path: Path) -> None:
    backup = path.with_name("backup.db")
    before = make_older(backup, 2)
    assert tables_of(backup) == before  # which checkpoints its log
    store = await open_store(lambda: make_store(path))
    await store.add_post("gone with the file")
    backup.rename(path)
    await wait_until(path.with_name("posts.db.schema-2").exists)
    await until_available(store)
    assert (await store.get_post(2)).post == "changed"
    assert await store.add_post("next") == POSTS + 2
    await store.stop()
    assert tables_of(path.with_name("posts.db.schema-2")) == before

"""Posts in SQLite, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import sqlite3
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import msgspec

from postd.errors import KeyReusedError, NoSuchPostError, PostChangedError
from postd.model import Change, ChangeKind, Post, Version
from postd.store.interface import PAGE_CHANGES_MAX, IdempotencyKey, Page
from postd.store.part import StorePart, contiguous_changes, proven_changes
from postd.store.sqlite.batches import InsertRow
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import transaction
from postd.store.sqlite.importing import SqliteImport

_CHANGES = ("post",)


class SqlitePosts(StorePart[SqliteDatabase]):
    """The tables of `schema/0001_posts.sql`, and the idempotency keys."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        # Bound once: these are called for each request.
        self._read, self._read_cached, self._write = database.read, database.read_cached, database.write

    def version(self) -> Coroutine[Any, Any, Version]:
        return self._read_cached("post", "version", _select_version)

    async def list_posts(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page:
        def query(connection: sqlite3.Connection) -> Page:
            if since is not None and not limit:  # one query needs no transaction
                version, changes = _select_changes(connection, since)
                return Page(version, [], False, changes)  # noqa: FBT003 - `more`
            with transaction(connection):  # all queries see the same state
                version, changes = (
                    (_select_version(connection), None) if since is None else _select_changes(connection, since)
                )
                posts = connection.execute(
                    "SELECT id, post FROM post WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1)
                ).fetchall()
            more = len(posts) > limit
            return Page(version, posts[:limit] if more else posts, more, changes)

        return await self._read(query)

    def get_post(self, post_id: int) -> Coroutine[Any, Any, Post]:
        return self._read_cached("post", post_id, lambda connection: Post(post_id, _select_text(connection, post_id)))

    async def add_post(self, text: str, *, idempotency_key: IdempotencyKey | None = None) -> int:
        insert = InsertRow("INSERT INTO post (post)", (text,), numbered=True)
        if idempotency_key is None:
            return await self._write(insert, changes=_CHANGES)
        key, request, now, expires = msgspec.structs.astuple(idempotency_key)

        def write(connection: sqlite3.Connection) -> int:
            query = "SELECT request, post_id FROM idempotency_key WHERE key = ? AND expires > ?"
            known_request, known_id = connection.execute(query, (key, now)).fetchone() or (request, None)
            if known_request != request:
                raise KeyReusedError
            if known_id is not None:
                return int(known_id)
            post_id = insert(connection)
            row = (key, request, post_id, expires)
            connection.execute("REPLACE INTO idempotency_key VALUES (?, ?, ?, ?)", row)
            return post_id

        return await self._write(write, changes=_CHANGES)

    async def replace_post(self, post_id: int, text: str, *, expected: str | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            changing = "UPDATE post SET post = ? WHERE id = ? AND post = coalesce(?, post)"
            if not connection.execute(changing, (text, post_id, expected)).rowcount:
                raise _refusal(connection, post_id)

        await self._write(write, changes=_CHANGES)

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            deleting = "DELETE FROM post WHERE id = ? AND post = coalesce(?, post)"
            if not connection.execute(deleting, (post_id, expected)).rowcount:
                raise _refusal(connection, post_id)

        await self._write(write, changes=_CHANGES)

    async def list_changes(self, *, after: int, limit: int) -> list[Change]:
        def query(connection: sqlite3.Connection) -> list[Change]:
            with transaction(connection):  # both queries see the same state
                latest = _select_version(connection).revision
                rows = connection.execute(
                    "SELECT revision, kind, id, post FROM change WHERE revision > ? ORDER BY revision LIMIT ?",
                    (after, limit),
                ).fetchall()
            changes = [Change(revision, ChangeKind(kind), post_id, text) for revision, kind, post_id, text in rows]
            return contiguous_changes(changes, after=after, latest=latest)

        return await self._read(query)

    def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        return self.database.read_batches("SELECT id, post FROM post ORDER BY id", batch_size=batch_size)

    async def last_id(self) -> int:
        return await self._read(_select_last_id)

    async def begin_import(self) -> SqliteImport:
        return await SqliteImport.begin(self.database)


def _select_version(connection: sqlite3.Connection) -> Version:
    revision, tag = connection.execute("SELECT revision, tag FROM version").fetchone()
    return Version(revision, tag.hex())


def _select_changes(
    connection: sqlite3.Connection, since: Version
) -> tuple[Version, Sequence[tuple[int, str | None]] | None]:
    """Return the current version, and the changes from another one to it as `Page.changes`."""
    rows = connection.execute(_SELECT_CHANGES, (since.revision, since.revision + PAGE_CHANGES_MAX)).fetchall()
    version = Version(rows[0][0], rows[0][1].hex())
    # If the log has none of them there is one row of NULLs, whose tag is not that of a version.
    return version, proven_changes([row[2:] for row in rows], since, version)


_SELECT_CHANGES = """
    SELECT version.revision, version.tag, lower(hex(change.tag)), change.id, change.post
    FROM version LEFT JOIN change ON change.revision BETWEEN ? AND ? ORDER BY change.revision
"""


def _select_last_id(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'post'").fetchone()
    return row[0] if row else 0


def _select_text(connection: sqlite3.Connection, post_id: int) -> str:
    row = connection.execute("SELECT post FROM post WHERE id = ?", (post_id,)).fetchone()
    if row is None:
        raise NoSuchPostError(post_id)
    text: str = row[0]
    return text


def _refusal(connection: sqlite3.Connection, post_id: int) -> NoSuchPostError | PostChangedError:
    """Return the error for a post that a statement has not changed: it is absent, or has another text than expected."""
    exists = connection.execute("SELECT 1 FROM post WHERE id = ?", (post_id,)).fetchone()
    return PostChangedError(post_id) if exists else NoSuchPostError(post_id)

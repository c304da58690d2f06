"""Posts in SQLite, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from postd.errors import KeyReusedError, NoSuchPostError, PostChangedError
from postd.model import Change, ChangeKind, Post, Version
from postd.reactor import Work
from postd.store.base import StorePart, contiguous_changes, proven_changes
from postd.store.interface import PAGE_CHANGES_MAX, IdempotencyKey, Page
from postd.store.sqlite.batches import InsertRow
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import transaction
from postd.store.sqlite.importing import SqliteImport

_CHANGES = ("post",)


class SqlitePosts(StorePart[SqliteDatabase]):
    """The tables of `schema/0001_posts.sql`, and the idempotency keys."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        # Bound once: each request calls these methods.
        self._read, self._read_cached, self._write = database.read, database.read_cached, database.write

    def version(self) -> Work[Version]:
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

    def get_post(self, post_id: int) -> Work[Post]:
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
        await self._change_post("UPDATE post SET post = :text", post_id, text, expected)

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        await self._change_post("DELETE FROM post", post_id, None, expected)

    async def _change_post(self, statement: str, post_id: int, text: str | None, expected: str | None) -> None:
        """Replace or delete a post; remember the text that it had."""

        def write(connection: sqlite3.Connection) -> None:
            before = _select_text(connection, post_id)
            if expected is not None and before != expected:
                raise PostChangedError(post_id)
            if before != text:
                connection.execute(f"{statement} WHERE id = :id", {"id": post_id, "text": text})
                revision, tag = connection.execute(_SELECT_VERSION).fetchone()
                self.database.replaced_texts.add(revision, tag, before)

        try:
            await self._write(write, changes=_CHANGES)
        except (NoSuchPostError, PostChangedError):
            raise
        except BaseException:  # it may be executed nevertheless: a request is cancelled when its client disconnects
            self.database.deleted_texts.remove_later()
            raise
        self.database.deleted_texts.remove_later()

    async def list_changes(self, *, after: int, limit: int, since: int | None = None) -> list[Change | None]:
        recall = self.database.replaced_texts.get if since is None else None

        def query(connection: sqlite3.Connection) -> list[Change | None]:
            with transaction(connection):  # both queries see the same state
                latest = _select_version(connection).revision
                span = {"after": after, "limit": limit, "since": _REVISION_MAX if since is None else since}
                rows = connection.execute(_SELECT_LOG, span).fetchall()
            changes = [(row[0], _decode_change(row, recall)) for row in rows]
            return contiguous_changes(changes, after=after, latest=latest)

        return await self._read(query)

    def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        return self.database.read_batches("SELECT id, post FROM post ORDER BY id", batch_size=batch_size)

    async def last_id(self) -> int:
        return await self._read(_select_last_id)

    async def begin_import(self) -> SqliteImport:
        return await SqliteImport.begin(self.database)


def _select_version(connection: sqlite3.Connection) -> Version:
    revision, tag = connection.execute(_SELECT_VERSION).fetchone()
    return Version(revision, tag.hex())


_SELECT_VERSION = "SELECT revision, tag FROM version"


def _select_changes(connection: sqlite3.Connection, since: Version) -> tuple[Version, dict[int, str | None] | None]:
    """Return the current version, and the changes from another one to it as `Page.changes`."""
    rows = connection.execute(_SELECT_CHANGES, (since.revision, since.revision + PAGE_CHANGES_MAX)).fetchall()
    version = Version(rows[0][0], rows[0][1].hex())
    # If the log has none of them there is one row of NULLs, whose tag is not that of a version.
    return version, proven_changes([row[2:] for row in rows], since, version)


_SELECT_CHANGES = """
    SELECT version.revision, version.tag, lower(hex(change.tag)), change.id, post.post
    FROM version LEFT JOIN change ON change.revision BETWEEN ? AND ? LEFT JOIN post ON post.id = change.id
    ORDER BY change.revision
"""


# The log, with the text that each post has now, and the revision and tag of the next change of the post. If there is no
# next one, a post that was added since a revision is `added`, even if it was updated after that.
_SELECT_LOG = """
    SELECT revision,
        CASE WHEN kind = 'updated' AND following IS NULL AND id IN (
            SELECT id FROM change WHERE revision > :since AND revision <= :after + :limit AND kind = 'added'
        ) THEN 'added' ELSE kind END,
        id, text, following, (SELECT tag FROM change WHERE revision = following)
    FROM (
        SELECT revision, kind, change.id AS id, post.post AS text, (
            SELECT min(later.revision) FROM change AS later
            WHERE later.id = change.id AND later.kind <> 'added' AND later.revision > change.revision
        ) AS following
        FROM change LEFT JOIN post ON post.id = change.id WHERE revision > :after ORDER BY revision LIMIT :limit
    ) AS log ORDER BY revision
"""
_REVISION_MAX = 2**63 - 1
_LogRow = tuple[int, str, int, str | None, int | None, bytes | None]


def _decode_change(row: _LogRow, recall: Callable[[int, bytes], str | None] | None) -> Change | None:
    """Return the change of a row of `_SELECT_LOG`, None if its text is gone.

    `recall` returns the text that a change has replaced or deleted, None if it is not known. Without it, a change is
    returned only if no other change of its post followed.
    """
    revision, kind, post_id, text, following, tag = row
    if kind == ChangeKind.DELETED:
        is_followed = following is not None or text is not None  # it was imported again
        return None if is_followed and recall is None else Change(revision, ChangeKind.DELETED, post_id, None)
    if following is not None:
        text = recall(following, tag) if recall is not None and tag is not None else None
    return None if text is None else Change(revision, ChangeKind(kind), post_id, text)


def _select_last_id(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'post'").fetchone()
    return row[0] if row else 0


def _select_text(connection: sqlite3.Connection, post_id: int) -> str:
    row = connection.execute("SELECT post FROM post WHERE id = ?", (post_id,)).fetchone()
    if row is None:
        raise NoSuchPostError(post_id)
    text: str = row[0]
    return text

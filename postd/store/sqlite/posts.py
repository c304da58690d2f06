"""Posts in SQLite, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from postd.errors import KeyReusedError, NoSuchPostError, NotAuthorError, PostChangedError
from postd.model import POST_ID_MAX, Change, ChangeKind, Post, PostCollection, PostDetails, Version
from postd.reactor import Work
from postd.store.base import StorePart, contiguous_changes, proven_changes, to_milliseconds
from postd.store.interface import PAGE_CHANGES_MAX, IdempotencyKey, Page
from postd.store.sqlite.batches import InsertRow
from postd.store.sqlite.database import SqliteDatabase
from postd.store.sqlite.database_file import transaction
from postd.store.sqlite.importing import SqliteImport

_CHANGES = ("post",)


class SqlitePosts(StorePart[SqliteDatabase]):
    """The tables of `schema/0001_posts.sql` and `schema/0009_details.sql`, and the idempotency keys."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        # Bound once: each request calls these methods.
        self._read, self._read_cached, self._write = database.read, database.cache.read, database.write
        self.watch_changes = database.watch_changes

    def version(self) -> Work[Version]:
        return self._read_cached("post", "version", _select_version)

    async def list_posts(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page[tuple[int, str]]:
        def query(connection: sqlite3.Connection) -> Page[tuple[int, str]]:
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

    async def list_details(self, *, after: int = 0, limit: int, since: Version | None = None) -> Page[PostDetails]:
        def query(connection: sqlite3.Connection) -> Page[PostDetails]:
            with transaction(connection):
                version, changes = (
                    (_select_version(connection), None)
                    if since is None
                    else _select_detailed_changes(connection, since)
                )
                posts = _select_details(connection, "WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1))
            return Page(version, posts[:limit], len(posts) > limit, changes)

        return await self._read(query)

    async def list_latest(self, *, before: int = POST_ID_MAX + 1, limit: int) -> Page[PostDetails]:
        def query(connection: sqlite3.Connection) -> Page[PostDetails]:
            with transaction(connection):
                version = _select_version(connection)
                posts = _select_details(connection, "WHERE id < ? ORDER BY id DESC LIMIT ?", (before, limit + 1))
            return Page(version, posts[:limit][::-1], len(posts) > limit)

        return await self._read(query)

    def get_post(self, post_id: int) -> Work[Post]:
        return self._read_cached("post", post_id, lambda connection: Post(post_id, _select_text(connection, post_id)))

    def get_details(self, post_id: int) -> Work[PostDetails]:
        return self._read_cached("post", ("details", post_id), lambda connection: _get_details(connection, post_id))

    async def add_post(
        self,
        text: str,
        *,
        author: str | None = None,
        now: float | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        moment = to_milliseconds(now)
        # Each value that is bound costs as much as some steps of Python.
        if author is None:
            insert = InsertRow(_INSERT, (text, moment), "column1, column2, column2", numbered=True)
        else:
            insert = InsertRow(_INSERT_BY, (text, moment, author), "column1, column2, column2, column3", numbered=True)
        if idempotency_key is None:
            return await self._write(insert, changes=_CHANGES)
        key, request, arrived, expires = msgspec.structs.astuple(idempotency_key)

        def write(connection: sqlite3.Connection) -> int:
            query = "SELECT request, post_id FROM idempotency_key WHERE key = ? AND expires > ?"
            known_request, known_id = connection.execute(query, (key, arrived)).fetchone() or (request, None)
            if known_request != request:
                raise KeyReusedError
            if known_id is not None:
                return int(known_id)
            post_id: int = insert(connection)
            row = (key, request, post_id, expires)
            connection.execute("REPLACE INTO idempotency_key VALUES (?, ?, ?, ?)", row)
            return post_id

        return await self._write(write, changes=_CHANGES)

    async def replace_post(
        self,
        post_id: int,
        text: str,
        *,
        now: float | None = None,
        expected: str | None = None,
        expected_author: str | None = None,
    ) -> None:
        def replace(connection: sqlite3.Connection, post: PostDetails) -> None:
            moments = (to_milliseconds(now), post.updated, post.created)
            updated = post.updated if now is None else max(moment for moment in moments if moment is not None)
            connection.execute("UPDATE post SET post = ?, updated = ? WHERE id = ?", (text, updated, post_id))

        await self._change_post(replace, post_id, text, expected, expected_author)

    async def delete_post(
        self, post_id: int, *, expected: str | None = None, expected_author: str | None = None
    ) -> None:
        def delete(connection: sqlite3.Connection, _: PostDetails) -> None:
            connection.execute("DELETE FROM post WHERE id = ?", (post_id,))

        await self._change_post(delete, post_id, None, expected, expected_author)

    async def _change_post(
        self,
        change: Callable[[sqlite3.Connection, PostDetails], None],
        post_id: int,
        text: str | None,
        expected: str | None,
        expected_author: str | None,
    ) -> None:
        """Replace or delete a post; remember it as it was."""

        def write(connection: sqlite3.Connection) -> None:
            before = _get_details(connection, post_id)
            if expected_author is not None and before.author != expected_author:
                raise NotAuthorError(post_id)
            if expected is not None and before.post != expected:
                raise PostChangedError(post_id)
            if before.post != text:
                change(connection, before)
                revision, tag = connection.execute(_SELECT_VERSION).fetchone()
                self.database.replaced_texts.add(revision, tag, before)

        try:
            await self._write(write, changes=_CHANGES)
        except (NoSuchPostError, NotAuthorError, PostChangedError):
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

    async def read_posts(self, *, batch_size: int) -> AsyncIterator[Sequence[PostDetails]]:
        async for rows in self.database.read_batches(f"{_SELECT_DETAILS} ORDER BY id", batch_size=batch_size):
            yield [PostDetails(*row) for row in rows]

    async def read_ids_of(self, author: str, *, batch_size: int) -> AsyncIterator[Sequence[int]]:
        query = "SELECT id FROM post WHERE author = ? ORDER BY id"
        async for rows in self.database.read_batches(query, author, batch_size=batch_size):
            yield [post_id for (post_id,) in rows]

    async def last_id(self) -> int:
        return await self._read(_select_last_id)

    def collection(self) -> Work[PostCollection]:
        return self._read(_select_collection)

    async def begin_import(self) -> SqliteImport:
        return await SqliteImport.begin(self.database)


def _select_version(connection: sqlite3.Connection) -> Version:
    revision, tag = connection.execute(_SELECT_VERSION).fetchone()
    return Version(revision, tag.hex())


_SELECT_VERSION = "SELECT revision, tag FROM version"


def _select_changes(
    connection: sqlite3.Connection, since: Version
) -> tuple[Version, dict[int, tuple[int, str] | None] | None]:
    """Return the current version, and the changes from another one to it as `Page.changes`."""
    rows = _select_entries(connection, since, "post.post")
    entries = [(tag, post_id, None if text is None else (post_id, text)) for _, _, tag, post_id, text in rows]
    version = _version_of(rows)
    return version, proven_changes(entries, since, version)


def _select_detailed_changes(
    connection: sqlite3.Connection, since: Version
) -> tuple[Version, dict[int, PostDetails | None] | None]:
    """As `_select_changes`, with the details of the posts."""
    rows = _select_entries(connection, since, "post.post, post.created, post.updated, post.author")
    entries = [(row[2], row[3], None if row[4] is None else PostDetails(*row[3:])) for row in rows]
    version = _version_of(rows)
    return version, proven_changes(entries, since, version)


def _select_entries(connection: sqlite3.Connection, since: Version, columns: str) -> list[Any]:
    """Return the current version beside each entry of the log since a version, with columns of its post."""
    # If the log has none of them there is one row of NULLs, whose tag is not that of a version.
    query = f"""
        SELECT version.revision, version.tag, lower(hex(change.tag)), change.id, {columns}
        FROM version LEFT JOIN change ON change.revision BETWEEN ? AND ? LEFT JOIN post ON post.id = change.id
        ORDER BY change.revision
    """  # noqa: S608 - names of columns
    return connection.execute(query, (since.revision, since.revision + PAGE_CHANGES_MAX)).fetchall()


def _version_of(rows: list[Any]) -> Version:
    return Version(rows[0][0], rows[0][1].hex())


# The log, with the text and details that each post has now, and the revision and tag of the next change of the post. If
# there is no next one, a post that was added since a revision is `added`, even if it was updated after that.
_SELECT_LOG = """
    SELECT revision,
        CASE WHEN kind = 'updated' AND following IS NULL AND id IN (
            SELECT id FROM change WHERE revision > :since AND revision <= :after + :limit AND kind = 'added'
        ) THEN 'added' ELSE kind END,
        id, text, created, updated, author, following, (SELECT tag FROM change WHERE revision = following)
    FROM (
        SELECT revision, kind, change.id AS id, post.post AS text, created, updated, author, (
            SELECT min(later.revision) FROM change AS later
            WHERE later.id = change.id AND later.kind <> 'added' AND later.revision > change.revision
        ) AS following
        FROM change LEFT JOIN post ON post.id = change.id WHERE revision > :after ORDER BY revision LIMIT :limit
    ) AS log ORDER BY revision
"""
_REVISION_MAX = 2**63 - 1
_LogRow = tuple[int, str, int, str | None, int | None, int | None, str | None, int | None, bytes | None]


def _decode_change(row: _LogRow, recall: Callable[[int, bytes], PostDetails | None] | None) -> Change | None:
    """Return the change of a row of `_SELECT_LOG`, None if its text is gone.

    `recall` returns the post that a change has replaced or deleted, None if it is not known. Without it, a change is
    returned only if no other change of its post followed.
    """
    revision, kind, post_id, text, created, updated, author, following, tag = row
    if kind == ChangeKind.DELETED:
        is_followed = following is not None or text is not None  # it was imported again
        return None if is_followed and recall is None else Change(revision, ChangeKind.DELETED, post_id, None)
    if following is not None:
        post = recall(following, tag) if recall is not None and tag is not None else None
        return None if post is None else Change(revision, ChangeKind(kind), *msgspec.structs.astuple(post))
    return None if text is None else Change(revision, ChangeKind(kind), post_id, text, created, updated, author)


def _select_last_id(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'post'").fetchone()
    return row[0] if row else 0


def _select_text(connection: sqlite3.Connection, post_id: int) -> str:
    row = connection.execute("SELECT post FROM post WHERE id = ?", (post_id,)).fetchone()
    if row is None:
        raise NoSuchPostError(post_id)
    text: str = row[0]
    return text


_INSERT = "INSERT INTO post (post, created, updated)"
_INSERT_BY = "INSERT INTO post (post, created, updated, author)"
_SELECT_DETAILS = "SELECT id, post, created, updated, author FROM post"


def _select_details(connection: sqlite3.Connection, rest: str, values: tuple[int, ...]) -> list[PostDetails]:
    return [PostDetails(*row) for row in connection.execute(f"{_SELECT_DETAILS} {rest}", values)]


def _get_details(connection: sqlite3.Connection, post_id: int) -> PostDetails:
    row = connection.execute(f"{_SELECT_DETAILS} WHERE id = ?", (post_id,)).fetchone()
    if row is None:
        raise NoSuchPostError(post_id)
    return PostDetails(*row)


def _select_collection(connection: sqlite3.Connection) -> PostCollection:
    collection_id, began = connection.execute("SELECT id, began FROM collection").fetchone()
    return PostCollection(collection_id.hex(), began)

"""Posts in SQLite, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import sqlite3

from postd.errors import ChangesGoneError, NoSuchPostError, PostChangedError
from postd.model import Change, ChangeKind, Post, Version
from postd.store.interface import Page
from postd.store.sqlite_engine import SqliteEngine
from postd.store.sqlite_file import transaction


class SqlitePosts(SqliteEngine):
    """The tables of `schema/0001_posts.sql`."""

    async def version(self) -> Version:
        return await self._read(_select_version)

    async def list_posts(self, *, after: int = 0, limit: int) -> Page:
        def query(connection: sqlite3.Connection) -> Page:
            with transaction(connection):  # one state of the database for both questions
                version = _select_version(connection)
                posts = connection.execute(
                    "SELECT id, post FROM post WHERE id > ? ORDER BY id LIMIT ?", (after, limit + 1)
                ).fetchall()
            more = len(posts) > limit
            return Page(version, posts[:limit] if more else posts, more)

        return await self._read(query)

    async def get_post(self, post_id: int) -> Post:
        return Post(post_id, await self._read(lambda connection: _select_text(connection, post_id)))

    async def add_post(self, text: str) -> int:
        def write(connection: sqlite3.Connection) -> int | None:
            return connection.execute("INSERT INTO post (post) VALUES (?)", (text,)).lastrowid

        added: int = await self._write(write)
        return added

    async def replace_post(self, post_id: int, text: str, *, expected: str | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            _expect(connection, post_id, expected)
            connection.execute("UPDATE post SET post = ? WHERE id = ?", (text, post_id))

        await self._write(write)

    async def delete_post(self, post_id: int, *, expected: str | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            _expect(connection, post_id, expected)
            connection.execute("DELETE FROM post WHERE id = ?", (post_id,))

        await self._write(write)

    async def list_changes(self, *, after: int, limit: int) -> list[Change]:
        def query(connection: sqlite3.Connection) -> list[Change]:
            with transaction(connection):  # one state of the database for both questions
                latest = _select_version(connection).revision
                rows = connection.execute(
                    "SELECT revision, kind, id, post FROM change WHERE revision > ? ORDER BY revision LIMIT ?",
                    (after, limit),
                ).fetchall()
            # The log has no holes: what came next is either the first row or was trimmed.
            if after > latest or (after < latest and (not rows or rows[0][0] != after + 1)):
                raise ChangesGoneError(after)
            return [Change(revision, ChangeKind(kind), post_id, text) for revision, kind, post_id, text in rows]

        return await self._read(query)


def _select_version(connection: sqlite3.Connection) -> Version:
    revision, tag = connection.execute("SELECT revision, tag FROM version").fetchone()
    return Version(revision, tag.hex())


def _select_text(connection: sqlite3.Connection, post_id: int) -> str:
    row = connection.execute("SELECT post FROM post WHERE id = ?", (post_id,)).fetchone()
    if row is None:
        raise NoSuchPostError(post_id)
    text: str = row[0]
    return text


def _expect(connection: sqlite3.Connection, post_id: int, expected: str | None) -> None:
    text = _select_text(connection, post_id)
    if expected is not None and text != expected:
        raise PostChangedError(post_id)

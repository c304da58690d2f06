"""Posts in SQLite, their version, and the log of their changes (`postd.store.interface.PostStore`)."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from typing import Any

from twisted.internet.task import deferLater

from postd.errors import KeyReusedError, NoSuchPostError, PostChangedError, StoreUnavailableError
from postd.model import Change, ChangeKind, Post, Version
from postd.store.interface import Once, Page
from postd.store.paging import follow
from postd.store.sqlite.database_file import transaction
from postd.store.sqlite.engine import NewRow, SqliteEngine
from postd.store.sqlite.importing import SqliteImport


class SqlitePosts(SqliteEngine):
    """The tables of `schema/0001_posts.sql`."""

    async def version(self) -> Version:
        return await self._recall("version", _select_version)

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
        return await self._recall(post_id, lambda connection: Post(post_id, _select_text(connection, post_id)))

    async def add_post(self, text: str, *, once: Once | None = None) -> int:
        new = NewRow("INSERT INTO post (post)", (text,), numbered=True)

        def write(connection: sqlite3.Connection) -> object:
            assert once is not None
            query = "SELECT request, post_id FROM idempotency_key WHERE key = ? AND expires > ?"
            request, post_id = connection.execute(query, (once.key, once.now)).fetchone() or (once.request, None)
            if request != once.request:
                raise KeyReusedError
            if post_id is None:
                post_id = new(connection)
                row = (once.key, once.request, post_id, once.expires)
                connection.execute("REPLACE INTO idempotency_key VALUES (?, ?, ?, ?)", row)
            return post_id

        added: int = await self._write(write if once else new)
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
            changes = [Change(revision, ChangeKind(kind), post_id, text) for revision, kind, post_id, text in rows]
            return follow(changes, after=after, latest=latest)

        return await self._read(query)

    async def read_posts(self, *, at_once: int) -> AsyncIterator[Sequence[tuple[int, str]]]:
        if self._reader is None:
            raise StoreUnavailableError(self._why_not_open)
        # Of its own: on the one that is open, all other reads would be of the same moment, too.
        with closing(self._file.open_reader()) as connection:
            if not self._file_is_ours():
                raise StoreUnavailableError(self._not_ours)
            try:
                posts = connection.execute("SELECT id, post FROM post ORDER BY id")
                while portion := posts.fetchmany(at_once):
                    yield portion
                    await deferLater(self._reactor, 0)  # others have their turn
            except sqlite3.Error as error:
                raise self._unavailable(error) from None

    async def last_id(self) -> int:
        return await self._read(_select_last_id)

    async def begin_import(self) -> SqliteImport:
        return await SqliteImport.begin(beside=self._beside, write=self._write)

    async def _beside(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Return what `work` returns, done with the writer's connection between two writes.

        Args:
            work: changes temporary tables, and nothing of the file. Its transaction locks nothing.
        """

        def in_thread() -> Any:
            if self._writer is None:
                raise StoreUnavailableError(self._why_not_open)
            try:
                with transaction(self._writer):
                    return work(self._writer)
            except sqlite3.Error as error:
                raise self._unavailable(error) from None

        if self._writer is None:  # nor is there a thread, perhaps
            raise StoreUnavailableError(self._why_not_open)
        return await self._thread.run(in_thread)


def _select_version(connection: sqlite3.Connection) -> Version:
    revision, tag = connection.execute("SELECT revision, tag FROM version").fetchone()
    return Version(revision, tag.hex())


def _select_last_id(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'post'").fetchone()
    return row[0] if row else 0


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

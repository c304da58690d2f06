"""The SQLite file of the Python peers, as durable as postd's, and their statements.

Each statement is its own transaction (`isolation_level = None`): a write has been synced when `execute` returns. That
is one statement less for each write than sqlite3's own transactions take.
"""

import sqlite3
import threading

FILE = "posts.db"
POST_MAX_CHARS = 140
PAGE_MAX_POSTS = 1000

LIST = "SELECT id, post FROM post ORDER BY id"
PAGE = "SELECT id, post FROM post WHERE id > ? ORDER BY id LIMIT ?"
ONE = "SELECT id, post FROM post WHERE id = ?"
ADD = "INSERT INTO post (post) VALUES (?)"
REPLACE = "UPDATE post SET post = ? WHERE id = ?"

ADDED, REPLACED = "Success a Post!\n", "Update a Post!\n"

_of_thread = threading.local()


def connection() -> sqlite3.Connection:
    """Return the connection of the calling thread."""
    if not hasattr(_of_thread, "connection"):
        _of_thread.connection = connect()
    found: sqlite3.Connection = _of_thread.connection
    return found


def connect() -> sqlite3.Connection:
    opened = sqlite3.connect(FILE, isolation_level=None)
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("PRAGMA synchronous = FULL")
    return opened


def is_post(text: object) -> bool:
    return isinstance(text, str) and 1 <= len(text) <= POST_MAX_CHARS


def _create_schema() -> None:
    opened = connect()
    for table in (
        "post (id INTEGER PRIMARY KEY AUTOINCREMENT, post TEXT NOT NULL)",
        "session (id BLOB PRIMARY KEY, username TEXT NOT NULL, ends REAL NOT NULL)",
    ):
        opened.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    opened.close()


_create_schema()

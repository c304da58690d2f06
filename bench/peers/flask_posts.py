"""The post API as a Flask user writes it: request.get_json, jsonify, a sqlite3 connection a thread."""

import sqlite3
import threading

from flask import Flask, Response, abort, jsonify, request
from flask.json.provider import DefaultJSONProvider

FILE = "posts.db"
POST_MAX_CHARS = 140

app = Flask(__name__)
assert isinstance(app.json, DefaultJSONProvider)
app.json.compact = False  # Flask's own switch for an indentation of two spaces
_of_thread = threading.local()


@app.get("/post")
def list_posts() -> Response:
    rows = _connection().execute("SELECT id, post FROM post ORDER BY id")
    return jsonify([{"id": post_id, "post": text} for post_id, text in rows])


@app.post("/post")
def add_post() -> Response:
    new = request.get_json()
    text = new.get("post") if isinstance(new, dict) else None
    if not isinstance(text, str) or not 1 <= len(text) <= POST_MAX_CHARS:
        abort(422)
    with _connection() as connection:
        connection.execute("INSERT INTO post (post) VALUES (?)", (text,))
    return Response("Success a Post!\n", status=201, mimetype="text/plain")


def _connection() -> sqlite3.Connection:
    if not hasattr(_of_thread, "connection"):
        _of_thread.connection = _connect()
    connection: sqlite3.Connection = _of_thread.connection
    return connection


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(FILE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _create_schema() -> None:
    connection = _connect()
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS post (id INTEGER PRIMARY KEY AUTOINCREMENT, post TEXT NOT NULL)")
    connection.close()


_create_schema()

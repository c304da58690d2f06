"""The post API as a Flask user writes it: request.get_json, jsonify, a sqlite3 connection a thread, on gunicorn."""

from flask import Flask, Response, abort, jsonify, request
from flask.json.provider import DefaultJSONProvider

from bench.peers.posts_file import (
    ADD,
    ADDED,
    LIST,
    ONE,
    PAGE,
    PAGE_MAX_POSTS,
    REPLACE,
    REPLACED,
    connection,
    is_post,
)


def list_posts() -> Response:
    rows = connection().execute(LIST)
    return jsonify([{"id": post_id, "post": text} for post_id, text in rows])


def list_posts_if_changed() -> Response:
    """Send the list with Werkzeug's ETag, a hash of the body; 304 if the client has it."""
    response = list_posts()
    response.add_etag()
    response.make_conditional(request)
    return response


def list_page() -> Response:
    limit = request.args.get("limit", PAGE_MAX_POSTS, type=int)
    after = request.args.get("after", 0, type=int)
    if not 1 <= limit <= PAGE_MAX_POSTS:
        abort(400)
    rows = connection().execute(PAGE, (after, limit))
    return jsonify([{"id": post_id, "post": text} for post_id, text in rows])


def get_post(post_id: int) -> Response:
    row = connection().execute(ONE, (post_id,)).fetchone()
    if row is None:
        abort(404)
    return jsonify({"id": row[0], "post": row[1]})


def add_post() -> Response:
    connection().execute(ADD, (decode_post(),))
    return Response(ADDED, status=201, mimetype="text/plain")


def replace_post(post_id: int) -> Response:
    if not connection().execute(REPLACE, (decode_post(), post_id)).rowcount:
        abort(404)
    return Response(REPLACED, mimetype="text/plain")


def decode_post() -> str:
    new = request.get_json()
    text = new.get("post") if isinstance(new, dict) else None
    if not isinstance(text, str) or not is_post(text):
        abort(422)
    return text


def make_app() -> Flask:
    """Return an application with all routes but the list."""
    made = Flask(__name__)
    assert isinstance(made.json, DefaultJSONProvider)
    made.json.compact = False  # makes Flask indent by two spaces
    made.get("/post/<int:post_id>")(get_post)
    made.post("/post")(add_post)
    made.put("/post/<int:post_id>")(replace_post)
    return made


app = make_app()
app.get("/post")(list_posts)
conditional_app = make_app()
conditional_app.get("/post")(list_posts_if_changed)
paged_app = make_app()
paged_app.get("/post")(list_page)

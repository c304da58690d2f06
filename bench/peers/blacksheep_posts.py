"""The post API as a BlackSheep user writes it: `async def` endpoints over sqlite3, orjson, on granian.

The endpoints call SQLite directly: a call in a thread takes longer than these statements.
"""

from collections.abc import Awaitable, Callable
from hashlib import blake2b

import orjson
from blacksheep import Application, Content, Request, Response, Router
from blacksheep.exceptions import BadRequest, NotFound
from blacksheep.server.responses import text as answer_text
from blacksheep.settings.json import json_settings

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

json_settings.use(loads=orjson.loads, dumps=lambda value: orjson.dumps(value).decode())


async def list_posts() -> Response:
    return Response(200, content=Content(b"application/json", encode_list()))


async def list_posts_if_changed(request: Request) -> Response:
    """Send the list with an ETag, a hash of the body; 304 if the client has it."""
    body = encode_list()
    etag = b'"%b"' % blake2b(body, digest_size=12).hexdigest().encode()
    if request.if_none_match == etag:
        return Response(304, [(b"ETag", etag)])
    return Response(200, [(b"ETag", etag)], Content(b"application/json", body))


async def list_page(request: Request) -> Response:
    """Send a page. It decodes the query itself, which is faster than BlackSheep's binding of parameters."""
    query = request.query
    try:
        limit, after = int(query.get("limit", [PAGE_MAX_POSTS])[0]), int(query.get("after", [0])[0])
    except ValueError:
        raise BadRequest("limit, after: expected numbers") from None
    if not 1 <= limit <= PAGE_MAX_POSTS:
        raise BadRequest(f"limit: expected 1 to {PAGE_MAX_POSTS}")
    rows = connection().execute(PAGE, (after, limit))
    body = orjson.dumps([{"id": post_id, "post": text} for post_id, text in rows], option=orjson.OPT_INDENT_2)
    return Response(200, content=Content(b"application/json", body))


async def get_post(post_id: int) -> Response:
    row = connection().execute(ONE, (post_id,)).fetchone()
    if row is None:
        raise NotFound
    body = orjson.dumps({"id": row[0], "post": row[1]}, option=orjson.OPT_INDENT_2)
    return Response(200, content=Content(b"application/json", body))


async def add_post(request: Request) -> Response:
    connection().execute(ADD, (await decode_post(request),))
    return answer_text(ADDED, 201)


async def replace_post(request: Request, post_id: int) -> Response:
    if not connection().execute(REPLACE, (await decode_post(request), post_id)).rowcount:
        raise NotFound
    return answer_text(REPLACED)


def encode_list() -> bytes:
    rows = connection().execute(LIST)
    return orjson.dumps([{"id": post_id, "post": text} for post_id, text in rows], option=orjson.OPT_INDENT_2)


async def decode_post(request: Request) -> str:
    new = await request.json()
    text = new.get("post") if isinstance(new, dict) else None
    if not isinstance(text, str) or not is_post(text):
        raise BadRequest("a post has 1 to 140 characters")
    return text


def make_app(
    list_posts: Callable[..., Awaitable[Response]] = list_posts,
    add_post: Callable[..., Awaitable[Response]] = add_post,
    replace_post: Callable[..., Awaitable[Response]] = replace_post,
) -> Application:
    made = Application(router=Router())  # by default the applications of a process share one
    made.router.add_get("/post", list_posts)
    made.router.add_post("/post", add_post)
    made.router.add_get("/post/{int:post_id}", get_post)
    made.router.add_put("/post/{int:post_id}", replace_post)
    return made


app = make_app()
conditional_app = make_app(list_posts_if_changed)
paged_app = make_app(list_page)

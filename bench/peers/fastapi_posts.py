"""The post API as a FastAPI user writes it: a pydantic model and `async def` endpoints over sqlite3, on uvicorn.

Of the usual ways to write it, this has the faster ones, as measured:

- `async def` that calls SQLite directly, with one connection, not `def` in FastAPI's threads. In threads a read takes
  longer, and 32 writers sleep while they wait for SQLite's lock, some of them for seconds.
- The list as a complete response (orjson, indented), not as `list[Post]`, which would be validated once more.
"""

from hashlib import blake2b
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Header, HTTPException, Query
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, Field

from bench.peers.posts_file import (
    ADD,
    ADDED,
    LIST,
    ONE,
    PAGE,
    PAGE_MAX_POSTS,
    POST_MAX_CHARS,
    REPLACE,
    REPLACED,
    connection,
)


class NewPost(BaseModel):
    post: Annotated[str, Field(min_length=1, max_length=POST_MAX_CHARS)]


class IndentedJSONResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_INDENT_2)


async def list_posts() -> Response:
    rows = connection().execute(LIST)
    return IndentedJSONResponse([{"id": post_id, "post": text} for post_id, text in rows])


async def list_posts_if_changed(if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Send the list with an ETag, a hash of the body; 304 if the client has it."""
    response = await list_posts()
    etag = f'"{blake2b(response.body, digest_size=12).hexdigest()}"'
    if if_none_match == etag:
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return response


async def list_page(
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX_POSTS)] = PAGE_MAX_POSTS, after: Annotated[int, Query(ge=0)] = 0
) -> Response:
    rows = connection().execute(PAGE, (after, limit))
    return IndentedJSONResponse([{"id": post_id, "post": text} for post_id, text in rows])


async def get_post(post_id: int) -> Response:
    row = connection().execute(ONE, (post_id,)).fetchone()
    if row is None:
        raise HTTPException(404)
    return IndentedJSONResponse({"id": row[0], "post": row[1]})


async def add_post(new: NewPost) -> Response:
    connection().execute(ADD, (new.post,))
    return PlainTextResponse(ADDED, status_code=201)


async def replace_post(post_id: int, new: NewPost) -> Response:
    if not connection().execute(REPLACE, (new.post, post_id)).rowcount:
        raise HTTPException(404)
    return PlainTextResponse(REPLACED)


def add_routes(to: FastAPI) -> FastAPI:
    """Add all routes but the list."""
    to.get("/post/{post_id}")(get_post)
    to.post("/post", status_code=201)(add_post)
    to.put("/post/{post_id}")(replace_post)
    return to


app = add_routes(FastAPI())
app.get("/post")(list_posts)
conditional_app = add_routes(FastAPI())
conditional_app.get("/post")(list_posts_if_changed)
paged_app = add_routes(FastAPI())
paged_app.get("/post")(list_page)

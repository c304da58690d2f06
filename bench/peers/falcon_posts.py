"""The post API as a Falcon user writes it: a class a resource, orjson for the media, WSGI (on granian).

WSGI, not ASGI: where no endpoint waits, it is Falcon's faster interface on granian.
"""

from hashlib import blake2b

import falcon
import orjson
from falcon.media import JSONHandler

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


class Posts:
    def on_get(self, _request: falcon.Request, response: falcon.Response) -> None:
        rows = connection().execute(LIST)
        posts = [{"id": post_id, "post": text} for post_id, text in rows]
        response.data = orjson.dumps(posts, option=orjson.OPT_INDENT_2)

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        connection().execute(ADD, (decode_post(request),))
        response.status = falcon.HTTP_201
        response.content_type = falcon.MEDIA_TEXT
        response.text = ADDED


class OnePost:
    def on_get(self, _request: falcon.Request, response: falcon.Response, post_id: int) -> None:
        row = connection().execute(ONE, (post_id,)).fetchone()
        if row is None:
            raise falcon.HTTPNotFound
        response.data = orjson.dumps({"id": row[0], "post": row[1]}, option=orjson.OPT_INDENT_2)

    def on_put(self, request: falcon.Request, response: falcon.Response, post_id: int) -> None:
        if not connection().execute(REPLACE, (decode_post(request), post_id)).rowcount:
            raise falcon.HTTPNotFound
        response.content_type = falcon.MEDIA_TEXT
        response.text = REPLACED


class ConditionalPosts(Posts):
    """The list with an ETag, a hash of the body."""

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        super().on_get(request, response)
        assert response.data is not None
        etag = falcon.ETag(blake2b(response.data, digest_size=12).hexdigest())
        response.etag = etag
        if etag in (request.if_none_match or ()):
            response.status, response.data = falcon.HTTP_304, None


class PagedPosts(Posts):
    """The list in pages: `?limit=` and `?after=`."""

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        limit = request.get_param_as_int("limit", min_value=1, max_value=PAGE_MAX_POSTS, default=PAGE_MAX_POSTS)
        after = request.get_param_as_int("after", min_value=0, default=0)
        rows = connection().execute(PAGE, (after, limit))
        posts = [{"id": post_id, "post": text} for post_id, text in rows]
        response.data = orjson.dumps(posts, option=orjson.OPT_INDENT_2)


def decode_post(request: falcon.Request) -> str:
    new = request.get_media()
    text = new.get("post") if isinstance(new, dict) else None
    if not isinstance(text, str) or not is_post(text):
        raise falcon.HTTPUnprocessableEntity
    return text


def make_app(posts: Posts) -> falcon.App[falcon.Request, falcon.Response]:
    made = falcon.App()
    made.req_options.media_handlers[falcon.MEDIA_JSON] = JSONHandler(orjson.dumps, orjson.loads)
    made.add_route("/post", posts)
    made.add_route("/post/{post_id:int}", OnePost())
    return made


app = make_app(Posts())
conditional_app = make_app(ConditionalPosts())
paged_app = make_app(PagedPosts())

"""What `postd.web.posts` and `postd.web.events` do, in words."""

from collections.abc import Mapping

from postd.model import Post
from postd.web.body import NewText
from postd.web.openapi.operation import Access, Body, Operation, Reply
from postd.web.openapi.parts import EVENTS_TYPE, FULL, JSON_TYPE, UNAVAILABLE, text

TAG = "Posts"

_SEND = """-H 'Content-Type: application/json' -d '{"post": "Hello, world"}'"""
_HAVE = ("If-None-Match", "If-Match")
_NOT_MODIFIED = Reply("You have it already: it is what `If-None-Match` names.", headers=("ETag",))
_CHANGED = "It is not, or not any more, what `If-Match` or `If-None-Match` asks for. Nothing was done."
_NOT_THERE = "There is no such post, or the number cannot be one."
_NO_JSON = "The body is not a JSON object in UTF-8, or has `post` more than once."
_NO_TEXT = "`post` is missing, is no string, or is no text that a post can have; `pointer` says where it stands."
_NO_TYPE = "The body is not said to be `application/json`, or has a charset other than UTF-8, or is encoded."
_NEW_TEXT = Body(JSON_TYPE, NewText, {"post": "Hello, world"})

OPERATIONS: Mapping[str, Operation] = {
    "GET /post": Operation(
        "listPosts",
        TAG,
        "List the posts",
        "All posts as one array, by their numbers, the smallest first. With `limit` it comes in pages: while there is "
        "more, `Link` leads to the next one. A list too long to be read at one moment may have no `ETag`.",
        {
            200: Reply(
                "The posts; an empty array if there are none.",
                Body(JSON_TYPE, list[Post], [{"id": 1, "post": "Hello, world"}, {"id": 2, "post": "Hello again"}]),
                sometimes=("ETag", "Link"),
            ),
            304: _NOT_MODIFIED,
        },
        {400: "`limit` or `after` is no number in its range, or is there twice.", 412: _CHANGED, 503: UNAVAILABLE},
        Access.READ,
        ("limit", "after", *_HAVE),
        query="?limit=100",
    ),
    "POST /post": Operation(
        "addPost",
        TAG,
        "Add a post",
        "Stores a text and gives it the next number. It is answered when the post is safely stored. Send an "
        "`Idempotency-Key` and you can repeat the request after a lost connection without adding the post twice.",
        {201: Reply("The post is stored; `Location` is its path.", text("Success a Post!\n"), ("Location",))},
        {
            400: f"{_NO_JSON} Or `Idempotency-Key` is no key.",
            409: "A request with this `Idempotency-Key` is under way.",
            415: _NO_TYPE,
            422: f"{_NO_TEXT} Or this `Idempotency-Key` was used with another body.",
            503: f"{UNAVAILABLE} With an `Idempotency-Key` it is safe to repeat.",
            507: FULL,
        },
        Access.WRITE,
        ("Idempotency-Key",),
        _NEW_TEXT,
        _SEND,
    ),
    "GET /post/{id}": Operation(
        "getPost",
        TAG,
        "Read a post",
        "One post.",
        {
            200: Reply("The post.", Body(JSON_TYPE, Post, {"id": 1, "post": "Hello, world"}), ("ETag",)),
            304: _NOT_MODIFIED,
        },
        {404: _NOT_THERE, 412: _CHANGED, 503: UNAVAILABLE},
        Access.READ,
        ("id", *_HAVE),
    ),
    "PUT /post/{id}": Operation(
        "replacePost",
        TAG,
        "Replace the text of a post",
        "Gives a post another text. It never makes a post: numbers are given by the server. With `If-Match` it is done "
        "only if nobody has changed the post meanwhile.",
        {200: Reply("The post has the new text.", text("Update a Post!\n"))},
        {
            400: _NO_JSON,
            404: _NOT_THERE,
            412: _CHANGED,
            415: _NO_TYPE,
            422: _NO_TEXT,
            503: UNAVAILABLE,
            507: FULL,
        },
        Access.WRITE,
        ("id", *_HAVE),
        _NEW_TEXT,
        f"-X PUT {_SEND}",
    ),
    "DELETE /post/{id}": Operation(
        "deletePost",
        TAG,
        "Delete a post",
        "Its number is never given to another post.",
        {200: Reply("The post is gone.", text("Delete a Post!\n"))},
        {404: _NOT_THERE, 412: _CHANGED, 503: UNAVAILABLE, 507: FULL},
        Access.WRITE,
        ("id", *_HAVE),
        curl="-X DELETE",
    ),
    "GET /post/events": Operation(
        "watchPosts",
        TAG,
        "Be told of changes as they come",
        "Server-Sent Events, for `EventSource` in a browser or any HTTP client that reads while it is sent. The answer "
        "does not end by itself.\n\n"
        "Each event is `added`, `updated` or `deleted`. Its `data` is one line of JSON: the post as it was then, or of "
        "a deleted one the number alone. Its `id` only grows. The event `reset` says that what came before is not "
        "known any more: read the list again.\n\n"
        "The first lines are an `id` without an event. A comment comes each 15 seconds. When the server stops, or "
        "what you were let in with ends, the stream ends.",
        {
            200: Reply(
                "The events.",
                Body(
                    EVENTS_TYPE,
                    str,
                    'retry: 1000\nid: 17\n\nevent: added\nid: 18\ndata: {"id":3,"post":"Hello, world"}\n\n',
                ),
            )
        },
        {503: UNAVAILABLE},
        Access.READ,
        ("Last-Event-ID", "after-event"),
        curl="-N",
    ),
}

"""Descriptions of `postd.web.posts` and `postd.web.events`."""

from postd.web.body import NewText
from postd.web.openapi.components import (
    CONDITIONS,
    EVENTS_TYPE,
    FULL,
    NOT_MODIFIED,
    UNAVAILABLE,
    Body,
    Operation,
    Post,
    Reply,
    text,
)

_CHANGED = "`If-Match` or `If-None-Match` does not hold. Nothing was done."
_BAD_INCLUDE = "`include` is not `meta`, or is repeated."
_NOT_THERE = "There is no post with this number."
_NOT_YOURS = "The settings allow this only to the author of the post and to moderators."
_NO_JSON = "The body is not a JSON object in UTF-8, or has `post` more than once."
_NO_TEXT = "`post` is missing, is not a string, or is not allowed as a post; `pointer` names it."
_NO_TYPE = "The `Content-Type` is not `application/json` in UTF-8, or the body has a `Content-Encoding`."
_NEW_TEXT = Body(NewText, {"post": "Hello, world"})

OPERATIONS = {
    "GET /post": Operation(
        "listPosts",
        "List the posts",
        "All posts as one array, in ascending order of their numbers. With `limit` the list is paged, and `Link` leads "
        "to the next page. A list too long for one snapshot may have no `ETag`. With `include=meta` each post has its "
        "times and its author.",
        {
            200: Reply(
                "The posts; an empty array if there are none.",
                Body(list[Post], [{"id": 1, "post": "Hello, world"}, {"id": 2, "post": "Hello again"}]),
                optional_headers=("ETag", "Link"),
            ),
            304: NOT_MODIFIED,
        },
        {400: "`limit`, `after` or `include` is repeated or out of range.", 412: _CHANGED, 503: UNAVAILABLE},
        "read",
        ("limit", "after", "include", *CONDITIONS),
        query="?limit=100",
    ),
    "POST /post": Operation(
        "addPost",
        "Add a post",
        "Stores a text under the next number. The response is sent after the post is durable in the store. With an "
        "`Idempotency-Key` the request can be repeated after a lost connection without adding the post twice.",
        {201: Reply("The post is stored; `Location` is its path.", text("Success a Post!\n"), ("Location",))},
        {
            400: f"{_NO_JSON} Or `Idempotency-Key` is invalid.",
            409: "A request with this `Idempotency-Key` is in progress.",
            415: _NO_TYPE,
            422: f"{_NO_TEXT} Or this `Idempotency-Key` was used with another body.",
            503: f"{UNAVAILABLE} With an `Idempotency-Key` a retry is safe.",
            507: FULL,
        },
        "write",
        ("Idempotency-Key",),
        _NEW_TEXT,
    ),
    "GET /post/{id}": Operation(
        "getPost",
        "Read a post",
        "Returns one post; with `include=meta` it has its times and its author.",
        {
            200: Reply("The post.", Body(Post, {"id": 1, "post": "Hello, world"}), ("ETag",)),
            304: NOT_MODIFIED,
        },
        {400: _BAD_INCLUDE, 404: _NOT_THERE, 412: _CHANGED, 503: UNAVAILABLE},
        "read",
        ("id", "include", *CONDITIONS),
    ),
    "PUT /post/{id}": Operation(
        "replacePost",
        "Replace the text of a post",
        "Replaces the text, and never creates a post, because the server assigns the numbers. With `If-Match` it is "
        "done only if the post has not changed since.",
        {200: Reply("The post has the new text.", text("Update a Post!\n"))},
        {
            400: _NO_JSON,
            403: _NOT_YOURS,
            404: _NOT_THERE,
            412: _CHANGED,
            415: _NO_TYPE,
            422: _NO_TEXT,
            503: UNAVAILABLE,
            507: FULL,
        },
        "write",
        ("id", *CONDITIONS),
        _NEW_TEXT,
    ),
    "DELETE /post/{id}": Operation(
        "deletePost",
        "Delete a post",
        "Deletes a post. Its number is never reused.",
        {200: Reply("The post is deleted.", text("Delete a Post!\n"))},
        {403: _NOT_YOURS, 404: _NOT_THERE, 412: _CHANGED, 503: UNAVAILABLE, 507: FULL},
        "write",
        ("id", *CONDITIONS),
    ),
}

CHANGES = {
    "GET /post/events": Operation(
        "watchPosts",
        "Stream changes (Server-Sent Events)",
        "For `EventSource` in a browser, or any HTTP client that reads the body while it arrives. The response has no "
        "end.\n\n"
        "Events are `added`, `updated` and `deleted`. Their `data` is one line of JSON: the post after the change, or "
        "the number of the deleted post. Their `id` only grows. The event `reset` means that changes were missed: read "
        "the list again. A client that resumes gets one event for each post that was changed meanwhile. With "
        "`include=meta` posts have their times and their author.\n\n"
        "The stream begins with the event `position`, whose `id` is where it begins. Each 15 seconds it has a comment. "
        "The stream ends when the server stops or the credentials expire.",
        {
            200: Reply(
                "The events.",
                Body(
                    str,
                    "retry: 1000\nevent: position\nid: 17\ndata: {}\n\n"
                    'event: added\nid: 18\ndata: {"id":3,"post":"Hello, world"}\n\n',
                    EVENTS_TYPE,
                ),
            )
        },
        {400: _BAD_INCLUDE, 503: UNAVAILABLE},
        "read",
        ("Last-Event-ID", "last-event-in-query", "after-event", "include"),
    ),
}

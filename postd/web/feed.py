"""`GET /feed.atom`: the newest posts as an Atom feed (RFC 4287; reference: Feed).

Ids are UUIDs made from the id of the collection of posts, which every copy of it keeps: they depend neither on the
address of the server nor on its settings.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from uuid import UUID, uuid5
from xml.sax.saxutils import escape, quoteattr

from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import Response
from postd.model import PostCollection, PostDetails, Version
from postd.protocol.timestamp import format_timestamp
from postd.store.interface import PostStore
from postd.web.authorship import Authorship, Form
from postd.web.forms import caching_of
from postd.web.lists.compression import NegotiatedText, negotiated
from postd.web.preconditions import hash_etag
from postd.web.routing import Application

PATH = "/feed.atom"
TYPE = b"application/atom+xml; charset=utf-8"

ENTRIES_MAX = 50
"""How many posts the feed has."""

TITLE_MAX_CHARS = 80
"""The longest title: the beginning of the text of a post."""

KEPT_MAX = 16
"""Limit on the feeds that are kept; clients choose the origins of their links."""

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot have (§2.2), not even as references; a text has no surrogates."""

_Key = tuple[Form, str]


class Feed:
    """The resource `/feed.atom`.

    Args:
        store: the posts.
        clients: finds the origin for the links.
        work: gives the turns in which feeds are made.
        authorship: which clients see the names of authors.
        title: the title of the feed.
        private: whether reading needs credentials: then no cache may store responses.
        has_board: whether the posts have pages.
    """

    app = Application()

    def __init__(  # noqa: PLR0913 - three by position
        self,
        store: PostStore,
        clients: PeerResolver,
        work: FairTurns,
        *,
        authorship: Authorship,
        title: str,
        private: bool,
        has_board: bool,
    ) -> None:
        self._store = store
        self._clients = clients
        self._work = work
        self._authorship = authorship
        self._title = title
        self._private = private
        self._has_board = has_board
        self._kept: OrderedDict[_Key, tuple[Version, NegotiatedText]] = OrderedDict()

    @app.route(PATH, methods=["GET"])
    async def show_feed(self, request: Request) -> Response:
        key = self._authorship.form(request), self._clients.origin(request) or ""
        version = await self._store.version()
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            async with self._work.turn(request.client_network):
                kept = await self._make(*key)
            self._kept[key] = kept
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return await kept[1].respond(request)

    async def _make(self, form: Form, origin: str) -> tuple[Version, NegotiatedText]:
        collection = await self._store.collection()
        page = await self._store.list_latest(limit=ENTRIES_MAX)
        document = make_feed(
            page.posts[::-1],
            collection,
            title=self._title,
            url_of=lambda path: origin + path,
            has_board=self._has_board,
            shows_authors=form is Form.DETAILED,
        )
        body = document.encode()
        caching = caching_of(form, self._authorship, private=self._private)
        headers = {b"ETag": hash_etag(body), **negotiated(caching)}
        link = {b"Link": b'</board>; rel="alternate"; type="text/html"'} if self._has_board else {}
        return page.version, NegotiatedText(TYPE, body, headers, link, work=self._work)


def make_feed(  # noqa: PLR0913 - all by name but two
    posts: list[PostDetails],
    collection: PostCollection,
    *,
    title: str,
    url_of: Callable[[str], str],
    has_board: bool,
    shows_authors: bool,
) -> str:
    """Return the feed with some posts, newest first.

    Args:
        posts: the posts.
        collection: the collection that they are in. Posts without a time have the time when it began to keep times.
        title: the title of the feed, and the author of posts that name none.
        url_of: returns the URL of a path.
        has_board: whether posts have pages.
        shows_authors: whether posts name their authors.
    """
    feed_id = UUID(hex=collection.id, version=4)
    updated = max([_updated(post, collection) for post in posts], default=collection.began)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<id>{feed_id.urn}</id>",
        f"<title>{_text(title)}</title>",
        f"<updated>{format_timestamp(updated)}</updated>",
        f"<author><name>{_text(title)}</name></author>",
        f'<link rel="self" type="application/atom+xml" href={quoteattr(url_of(PATH))}/>',
    ]
    if has_board:
        lines.append(f'<link rel="alternate" type="text/html" href={quoteattr(url_of("/board"))}/>')
    for post in posts:
        lines += [
            "<entry>",
            f"<id>{uuid5(feed_id, str(post.id)).urn}</id>",
            f"<title>{_text(_title(post))}</title>",
            f"<updated>{format_timestamp(_updated(post, collection))}</updated>",
            f"<published>{format_timestamp(_published(post, collection))}</published>",
        ]
        if shows_authors and post.author is not None:
            lines.append(f"<author><name>{_text(post.author)}</name></author>")
        if has_board:
            page = quoteattr(url_of(f"/board/{post.id}"))
            lines.append(f'<link rel="alternate" type="text/html" href={page}/>')
        lines += [f'<content type="text">{_text(post.post)}</content>', "</entry>"]
    return "\n".join([*lines, "</feed>", ""])


def _text(text: str) -> str:
    """Escape a text for XML. Characters that XML cannot have become U+FFFD; a carriage return is a reference, because
    parsers make a line feed of it (XML 1.0 §2.11).
    """
    return escape(_NO_XML.sub("\ufffd", text), {"\r": "&#13;"})


def _title(post: PostDetails) -> str:
    """Return the first line of a post with any text, shortened; it has no other spaces than single ones."""
    lines = (" ".join(line.split()) for line in post.post.splitlines())
    line = next(filter(None, lines), f"Post {post.id}")
    return line if len(line) <= TITLE_MAX_CHARS else f"{line[: TITLE_MAX_CHARS - 1].rstrip()}…"


def _updated(post: PostDetails, collection: PostCollection) -> int:
    known = post.updated if post.updated is not None else post.created
    return collection.began if known is None else known


def _published(post: PostDetails, collection: PostCollection) -> int:
    return min(collection.began, _updated(post, collection)) if post.created is None else post.created

"""The table of URLs.

| path | served by |
|---|---|
| `/post`, `/post/<id>` | `posts.PostApi` |
| anything else | 404 |
"""

from typing import Any

from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from werkzeug.exceptions import NotFound

from postd.store.interface import PostStore
from postd.web.errors import encode_error
from postd.web.front.router import Router
from postd.web.posts import PostApi


class _Nothing(Resource):
    """What is at the addresses where nothing is."""

    isLeaf = True

    def render(self, request: Any) -> Any:
        # Not returned: to a HEAD request stock Twisted complains in the log of a body that it drops.
        request.write(encode_error(request, NotFound()))
        request.finish()
        return NOT_DONE_YET


class _Root(Resource):
    def getChild(self, _path: bytes, _request: Any) -> Resource:
        return _Nothing()


def make_root(store: PostStore) -> Resource:
    """Return the resource tree."""
    root = _Root()
    # A router matches the whole path itself: routes are written out in full in the Klein applications.
    root.putChild(b"post", Router(PostApi(store).app))
    return root

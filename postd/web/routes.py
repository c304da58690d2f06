"""The table of URLs.

| path | served by | behind |
|---|---|---|
| `/post`, and all below | `posts.PostApi` | `[api]`: the read rule for GET and HEAD, the write rule for the rest |
| `/`, `/login`, `/logout` | `login.LoginPages` | |
| `/home` | `name_pages.Home` | a session |
| `/board`, `/board/<id>`, `/board/<id>/delete` | `board.views.Board`, if "session" is in the read rule | a session |
| the path of a `[[page]]`, and all below | `folder.Folder` or `name_pages.show_name` | its rule |
| the path of a `[[page]]` with `forward` | `forward_auth.admit` | `forward_auth.ForwardAuth`, by its rule |
| `/.well-known/oauth-protected-resource`, and below | `resource_metadata.ResourceMetadata`, if there are issuers | |
| `/openapi.json`, `/docs` | `openapi.docs.Docs` | |
| anything else | 404 | |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from msgspec import Struct
from twisted.web.resource import IResource, Resource

from postd.fair_queue import FairTurns
from postd.http.errors import not_found
from postd.http.views import ViewResource, error_page
from postd.protect.guard import ProtectedResource
from postd.store.interface import PostStore
from postd.web.access import Access
from postd.web.board.views import Board
from postd.web.cors import allow_origins
from postd.web.events import Events
from postd.web.forward_auth import ForwardAuth, admit
from postd.web.name_pages import Home, show_name
from postd.web.posts import PostApi
from postd.web.routing import Router

_NOT_FOUND = error_page(not_found())


class ProtectedPage(Struct, frozen=True):
    """A page at a path: the folder `files`, or a text; for `users`, or for all authenticated users.

    With `forward` it authenticates requests to other servers, for any of the normalized `hosts`, None for any host.
    `read_scope` and `write_scope` are as in `ProtectedResource`.
    """

    path: str
    schemes: Collection[str]
    files: str = ""
    users: frozenset[str] = frozenset()
    read_scope: str = ""
    write_scope: str = ""
    forward: bool = False
    hosts: frozenset[str] | None = None


class _ByMethod(Resource):
    """Routes by method to the resource for reading, the one for writing, or the one for OPTIONS."""

    isLeaf = True

    def __init__(self, options: IResource, read: IResource, write: IResource) -> None:
        super().__init__()
        self._by_method = {b"OPTIONS": options, b"GET": read, b"HEAD": read}
        self._write = write

    def render(self, request: Any) -> Any:
        return self._by_method.get(request.method, self._write).render(request)


class _Root(Resource):
    def __init__(self, pages: Mapping[tuple[bytes, ...], IResource]) -> None:
        super().__init__()
        self._pages = pages
        self._longest = max(map(len, pages), default=0)

    def getChildWithDefault(self, path: bytes, request: Any) -> IResource:
        child: IResource | None = self.children.get(path)
        if child is None:
            return self.getChild(path, request)
        # For the log of requests that the guard refuses; a router sets a more exact one.
        request.route = "/" + path.decode("ascii")
        return child

    def getChild(self, path: bytes, request: Any) -> IResource:
        """Return the page with the longest path that is a prefix of a path."""
        segments = (path, *request.postpath[: self._longest - 1])
        for length in range(len(segments), 0, -1):
            page = self._pages.get(segments[:length])
            if page is not None:
                below = length - 1
                request.prepath += request.postpath[:below]
                del request.postpath[:below]
                request.route = "/" + b"/".join(segments[:length]).decode("ascii")
                return page
        return _NOT_FOUND


class _OnDemand(Resource):
    """A resource that is made at its first request; its modules are imported only then."""

    isLeaf = True

    def __init__(self, make: Callable[[], IResource]) -> None:
        super().__init__()
        self._make = make

    @cached_property
    def _made(self) -> IResource:
        return self._make()

    def render(self, request: Any) -> Any:
        return self._made.render(request)


def _folder(path: str) -> IResource:
    from postd.web.folder import Folder  # noqa: PLC0415 - as its docstring says

    return Folder(path)


def make_root(  # noqa: PLR0913 - all parts of the tree
    store: PostStore,
    events: Events,
    access: Access,
    *,
    read: Collection[str],
    write: Collection[str],
    pages: Sequence[ProtectedPage],
    now: Callable[[], float],
    cors_origins: Collection[str] = (),
) -> IResource:
    """Return the resource tree.

    The schemes `read` and `write` may read and write posts; "open" is access without credentials. Pages of
    `cors_origins` may use the API (`postd.web.cors`). `now` is the clock of the dates in the store.
    """
    api_resource = ProtectedResource(access.clients, "/post")
    protected: list[tuple[Collection[str], ProtectedResource]] = [((*read, *write), api_resource)]
    by_path: dict[tuple[bytes, ...], IResource] = {}
    for page in pages:
        place = tuple(page.path.encode("ascii").split(b"/")[1:])
        if page.forward:
            # It protects the whole origin that the proxy forwards, whose paths are unknown here.
            other = ProtectedResource(access.clients.without_public_url(), "", page.read_scope, page.write_scope)
            admission = ViewResource(admit)
            guard = partial(ForwardAuth, hosts=page.hosts)
            by_path[place] = access.protect(admission, page.schemes, other, page.users, guard=guard)
            continue
        resource = ProtectedResource(access.clients, page.path, page.read_scope, page.write_scope)
        protected.append((page.schemes, resource))
        shown = _folder(page.files) if page.files else ViewResource(show_name)
        by_path[place] = access.protect(shown, page.schemes, resource, page.users)
    work = FairTurns(events.clock)
    documented = [PostApi.app]
    has_board = "session" in read
    home = Home(access.realm, has_board)
    by_path[b"home",] = access.protect(ViewResource(home.show), ["session"], ProtectedResource(access.clients))
    root = _Root(by_path)
    # A router matches the whole path itself: routes are written out in full in the Klein applications.
    api = PostApi(store, events, work, now=now, private="open" not in read)
    posts = Router(api)
    reading, writing = (access.protect(posts, rule, api_resource) for rule in (read, write))
    root.putChild(b"post", _ByMethod(posts, reading, writing))
    for name, parts in access.schemes.items():
        resources = [resource for rule, resource in protected if name in rule]
        for segments, views in parts.make_views(access.portal, resources) if parts.make_views else ():
            router = Router(views)
            for segment in segments:
                root.putChild(segment, router)
            documented.append(views.app)
    if has_board:
        to_write = (one for name, one in access.descriptions.items() if name in write)
        scheme = None if "open" in write else next(to_write, None)
        writable = "session" in write
        board = Router(Board(store, access.clients, scheme, work, now=now, site_name=access.realm, writable=writable))
        signed_in = access.protect(board, ["session"], ProtectedResource(access.clients, "/board"))
        root.putChild(b"board", _ByMethod(board, signed_in, signed_in))
        documented.append(Board.app)

    def make_docs() -> Router:
        from postd.web.openapi.docs import Docs  # noqa: PLC0415 - takes 10 to 20 ms, and many servers are never asked

        return Router(
            Docs(
                documented,
                access.descriptions,
                read=read,
                write=write,
                clients=access.clients,
                site_name=access.realm,
                work=work,
            )
        )

    docs = _OnDemand(make_docs)
    for segment in (b"openapi.json", b"docs"):
        root.putChild(segment, docs)
    if cors_origins:
        allow_origins(root, cors_origins)
    return root

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

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from postd.fair_queue import FairTurns
from postd.http.views import View
from postd.protect.guard import Guard, ProtectedResource
from postd.store.interface import PostStore
from postd.web.access import Access
from postd.web.board.views import Board
from postd.web.cors import Cors
from postd.web.events import Events
from postd.web.forward_auth import ForwardAuth, admit
from postd.web.name_pages import Home, show_name
from postd.web.posts import PostApi
from postd.web.routing import Middleware, Router


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


def _view_of_folder(path: str) -> View:
    from postd.web.folder import Folder  # noqa: PLC0415 - takes 6 ms and half a mebibyte, and few servers have files

    return Folder(path).show


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
) -> Router:
    """Return the table of routes.

    The schemes `read` and `write` may read and write posts; "open" is access without credentials. Pages of
    `cors_origins` may use the API (`postd.web.cors`). `now` is the clock of the dates in the store.
    """
    router = Router(of_api=Cors(cors_origins) if cors_origins else None)

    def guard_by(
        rule: Collection[str],
        described: ProtectedResource,
        users: frozenset[str] = frozenset(),
        *,
        guard: Callable[..., Guard] = Guard,
    ) -> Middleware | None:
        made = access.protect(router, rule, described, users, guard=guard)
        return made if isinstance(made, Guard) else None

    api_resource = ProtectedResource(access.clients, "/post")
    protected: list[tuple[Collection[str], ProtectedResource]] = [((*read, *write), api_resource)]
    for page in pages:
        if page.forward:
            # It protects the whole origin that the proxy forwards, whose paths are unknown here.
            other = ProtectedResource(access.clients.without_public_url(), "", page.read_scope, page.write_scope)
            guard = guard_by(page.schemes, other, page.users, guard=partial(ForwardAuth, hosts=page.hosts))
            router.add_page(page.path, admit, guard)
            continue
        resource = ProtectedResource(access.clients, page.path, page.read_scope, page.write_scope)
        protected.append((page.schemes, resource))
        shown = _view_of_folder(page.files) if page.files else show_name
        router.add_page(page.path, shown, guard_by(page.schemes, resource, page.users))
    work = FairTurns(events.clock)
    documented = [PostApi.app]
    has_board = "session" in read
    home = Home(access.realm, has_board)
    router.add_page("/home", home.show, guard_by(["session"], ProtectedResource(access.clients)))
    api = PostApi(store, events, work, now=now, private="open" not in read)
    router.add(api, read=guard_by(read, api_resource), write=guard_by(write, api_resource))
    for name, parts in access.schemes.items():
        resources = [resource for rule, resource in protected if name in rule]
        for _, views in parts.make_views(access.portal, resources) if parts.make_views else ():
            router.add(views)
            documented.append(views.app)
    if has_board:
        to_write = (one for name, one in access.descriptions.items() if name in write)
        scheme = None if "open" in write else next(to_write, None)
        writable = "session" in write
        board = Board(store, access.clients, scheme, work, now=now, site_name=access.realm, writable=writable)
        signed_in = guard_by(["session"], ProtectedResource(access.clients, "/board"))
        router.add(board, read=signed_in, write=signed_in)
        documented.append(Board.app)

    def make_docs() -> Any:
        from postd.web.openapi.docs import Docs  # noqa: PLC0415 - takes 10 to 20 ms, and many servers are never asked

        return Docs(
            documented,
            access.descriptions,
            read=read,
            write=write,
            clients=access.clients,
            site_name=access.realm,
            work=work,
        )

    router.add_on_demand([b"openapi.json", b"docs"], make_docs)
    return router

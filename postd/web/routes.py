"""The table of URLs.

| path | served by | behind |
|---|---|---|
| `/post`, and all below | `posts.PostApi` | `[api]`: the read rule for GET and HEAD, the write rule for the rest |
| `/`, `/login`, `/logout` | `scheme_pages.SchemePages`, with the views of `postd.protect.login` | |
| `/home` | `name_pages.Home` | a session |
| `/board`, `/board/<id>`, `/board/<id>/delete` | `board.views.Board`, if "session" is in the read rule | a session |
| the path of a `[[page]]`, and all below | `folder.Folder` or `name_pages.show_name` | its rule |
| the path of a `[[page]]` with `forward` | `forward_auth.admit` | `forward_auth.ForwardAuth`, by its rule |
| `/.well-known/oauth-protected-resource`, and below | `SchemePages`, with those of `postd.protect.bearer` | |
| `/openapi.json`, `/docs` | `openapi.docs.Docs` | |
| anything else | 404 | |
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from postd.fair_queue import FairTurns
from postd.http.views import View
from postd.protect.assembly import Authentication
from postd.protect.guard import Guard, ProtectedResource
from postd.store.interface import PostStore
from postd.web.board.views import Board
from postd.web.cors import Cors
from postd.web.events import Events
from postd.web.forward_auth import ForwardAuth, admit
from postd.web.name_pages import Home, show_name
from postd.web.posts import PostApi
from postd.web.routing import Middleware, Router
from postd.web.scheme_pages import SchemePages


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
    authentication: Authentication,
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
    clients, realm = authentication.context.clients, authentication.context.realm

    def guard_by(
        rule: Collection[str],
        described: ProtectedResource,
        users: frozenset[str] = frozenset(),
        *,
        guard: Callable[..., Guard] = Guard,
    ) -> Middleware | None:
        return None if "open" in rule else authentication.protect(router, rule, described, users, guard=guard)

    api_resource = ProtectedResource(clients, "/post")
    protected: list[tuple[Collection[str], ProtectedResource]] = [((*read, *write), api_resource)]
    for page in pages:
        if page.forward:
            # It protects the whole origin that the proxy forwards, whose paths are unknown here.
            other = ProtectedResource(clients.without_public_url(), "", page.read_scope, page.write_scope)
            guard = guard_by(page.schemes, other, page.users, guard=partial(ForwardAuth, hosts=page.hosts))
            router.add_page(page.path, admit, guard)
            continue
        resource = ProtectedResource(clients, page.path, page.read_scope, page.write_scope)
        protected.append((page.schemes, resource))
        shown = _view_of_folder(page.files) if page.files else show_name
        router.add_page(page.path, shown, guard_by(page.schemes, resource, page.users))
    work = FairTurns(events.clock)
    documented = [PostApi.app]
    has_board = "session" in read
    home = Home(realm, has_board)
    router.add_page("/home", home.show, guard_by(["session"], ProtectedResource(clients)))
    api = PostApi(store, events, work, now=now, private="open" not in read)
    router.add(api, read=guard_by(read, api_resource), write=guard_by(write, api_resource))
    if has_board:
        to_write = (one.description for one in authentication.schemes if one.name in write)
        scheme = None if "open" in write else next(to_write, None)
        writable = "session" in write
        board = Board(store, clients, scheme, work, now=now, site_name=realm, writable=writable)
        signed_in = guard_by(["session"], ProtectedResource(clients, "/board"))
        router.add(board, read=signed_in, write=signed_in)
        documented.append(Board.app)

    def make_docs() -> Any:
        from postd.web.openapi.docs import Docs  # noqa: PLC0415 - takes 10 to 20 ms, and many servers are never asked

        return Docs(
            documented,
            {scheme.name: scheme.description for scheme in authentication.schemes},
            read=read,
            write=write,
            clients=clients,
            site_name=realm,
            work=work,
        )

    router.add_on_demand([b"openapi.json", b"docs"], make_docs)
    scheme_pages = SchemePages(authentication.make_pages(protected, router.segments))
    router.add(scheme_pages)
    documented.append(scheme_pages.app)
    return router

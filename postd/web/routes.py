"""The table of URLs.

| path | served by | behind |
|---|---|---|
| `/post`, and all below | `posts.PostApi` | `[api]`: the read rule for GET and HEAD, the write rule for the rest |
| `/`, `/login`, `/logout` | `scheme_pages.SchemePages`, with the views of `postd.protect.login` | |
| `/account`, and below | `SchemePages`, with those of `postd.protect.account` | a session |
| `/home` | `name_pages.Home` | a session |
| `/board`, `/board/<id>`, `/board/<id>/delete` | `board.views.Board`, if it is enabled | the rules of `/post` |
| the path of a `[[page]]`, and all below | `folder.Folder` or `name_pages.show_name` | its rule |
| the path of a `[[page]]` with `forward` | `forward_auth.admit` | `forward_auth.ForwardAuth`, by its rule |
| `/.well-known/oauth-protected-resource`, and below | `SchemePages`, with those of `postd.protect.bearer` | |
| `/feed.atom` | `feed.Feed` | the read rule of `/post` |
| `/openapi.json`, `/docs` | `openapi.docs.Docs` | |
| anything else | 404 | |

A rule with "open" requires no credentials. Where credentials of a scheme in use are sent, they are checked all the same
(`postd.protect.guard.OpenGuard`): they give an open request its identity.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from postd.fair_queue import FairTurns
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import Response, StreamedResponse
from postd.http.views import View
from postd.protect.assembly import Authentication
from postd.protect.guard import Guard, OpenGuard, ProtectedResource
from postd.store.interface import PostStore
from postd.web.authorship import UNRESTRICTED, Authorship
from postd.web.board.views import Board, KeptForms
from postd.web.cors import Cors
from postd.web.events import Events
from postd.web.feed import PATH as FEED_PATH
from postd.web.feed import Feed
from postd.web.forward_auth import ForwardAuth, admit
from postd.web.name_pages import Home, show_name
from postd.web.posts import PostApi
from postd.web.routing import Middleware, Router
from postd.web.scheme_pages import SchemePages


class SameSite(Struct, frozen=True):
    """Refuses cross-site requests, also where no credentials are required, before they pass `then`."""

    clients: PeerResolver
    then: Middleware | None

    async def enter(self, request: Request, view: View) -> Response | StreamedResponse | None:
        self.clients.refuse_cross_site(request)
        return await (view(request) if self.then is None else self.then.enter(request, view))


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
    from postd.web.folder import Folder  # noqa: PLC0415 - reads the system's media types, and few servers have files

    return Folder(path).show


def make_root(  # noqa: PLR0913 - all parts of the tree
    store: PostStore,
    events: Events,
    authentication: Authentication,
    *,
    read: Collection[str],
    write: Collection[str],
    judged: Collection[str],
    pages: Sequence[ProtectedPage],
    now: Callable[[], float],
    has_board: bool = True,
    authorship: Authorship = UNRESTRICTED,
    cors_origins: Collection[str] = (),
) -> Router:
    """Return the table of routes.

    The schemes `read` and `write` may read and write posts; "open" is access without credentials, where credentials of
    the schemes `judged` are checked if they are sent. Pages of `cors_origins` may use the API (`postd.web.cors`). `now`
    is the clock of the dates in the store.
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
        if "open" not in rule:
            return authentication.protect(router, rule, described, users, guard=guard)
        return authentication.protect(router, judged, described, users, guard=OpenGuard) if judged else None

    api_resource, board_resource = ProtectedResource(clients, "/post"), ProtectedResource(clients, "/board")
    api_rule = {*read, *write, *(judged if "open" in {*read, *write} else ())}
    protected: list[tuple[Collection[str], ProtectedResource]] = [(api_rule, api_resource)]
    feed_resource = ProtectedResource(clients, FEED_PATH)
    protected.append(({*read, *(judged if "open" in read else ())}, feed_resource))
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
    home = Home(realm, has_board and not {"open", "session"}.isdisjoint(read))
    of_home = guard_by(["session"], ProtectedResource(clients), guard=partial(Guard, leads_back=False))
    router.add_page("/home", home.show, of_home)
    api = PostApi(store, events, work, now=now, authorship=authorship, private="open" not in read)
    router.add(api, read=guard_by(read, api_resource), write=guard_by(write, api_resource))
    private = "open" not in read
    feed = Feed(store, clients, work, authorship=authorship, title=realm, private=private, has_board=has_board)
    router.add(feed, read=guard_by(read, feed_resource), write=None)
    documented.append(Feed.app)
    if has_board:
        to_write = (one.description for one in authentication.schemes if one.name in write)
        scheme = None if "open" in write else next(to_write, None)
        writers, sign_in = frozenset(write), "session" in judged
        board = Board(
            store,
            clients,
            scheme,
            work,
            now=now,
            authorship=authorship,
            site_name=realm,
            writers=writers,
            sign_in=sign_in,
            open_to_read="open" in read,
            sign_out_origins=authentication.sign_out_origins,
        )
        writing = SameSite(clients, KeptForms(board, guard_by(write, board_resource)))
        resume = None if {"open", "session"}.isdisjoint(read) else board.resume
        protected.append((api_rule, replace(board_resource, resume=resume)))
        router.add(board, read=guard_by(read, board_resource), write=writing)
        documented.append(Board.app)

    @cache
    def make_scheme_pages() -> SchemePages:  # takes 1 ms
        return SchemePages(pages_of_schemes)

    def make_docs() -> Any:
        from postd.web.openapi.docs import Docs  # noqa: PLC0415 - takes 10 to 20 ms, and many servers are never asked

        return Docs(
            [*documented, make_scheme_pages().app],
            {scheme.name: scheme.description for scheme in authentication.schemes},
            read=read,
            write=write,
            judged=judged,
            clients=clients,
            site_name=realm,
            work=work,
        )

    router.add_on_demand([b"openapi.json", b"docs"], make_docs)
    pages_of_schemes = authentication.make_pages(protected, router.segments)
    segments = {path.partition("/")[0].encode("ascii") for path in pages_of_schemes}
    router.add_on_demand([*segments], make_scheme_pages)
    return router

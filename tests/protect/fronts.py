"""The two fronts that the tests of `postd.protect` run on: postd's own, and a stock `twisted.web.server.Site`.

What a stock site itself answers otherwise is said here, by the checks that know of it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from msgspec import Struct
from msgspec.structs import asdict
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.resource import IResource, Resource
from twisted.web.server import Site
from twisted.web.static import File

from postd.fair_queue import FairTurns
from postd.front.factory import HttpFactory
from postd.http.views import ViewResource
from postd.protect import Protection, issuer
from postd.protect.bearer import METADATA_PATH
from postd.reactor import IReactor
from postd.settings.schema import Settings
from postd.web.events import Events
from postd.web.name_pages import show_name
from postd.web.posts import PostApi
from postd.web.routing import Router
from tests.helpers import InlineHashThreads, InMemoryApi, Response, make_site, result_of
from tests.web import test_posts


class Front(Struct, frozen=True):
    """A front.

    Args:
        name: the id of its tests.
        make_api: makes a server from a folder and settings, as `InMemoryApi`.
        make_site: makes a site from a resource and a clock.
    """

    name: str
    make_api: Callable[[Path, str], InMemoryApi]
    make_site: Callable[[IResource, Clock], HttpFactory]


def make_stock_site(root: IResource, clock: Clock) -> HttpFactory:
    """Return a stock site; of what the declared type has, clients in memory use what is Twisted's."""
    return cast(HttpFactory, Site(cast(Resource, root), reactor=clock))


class StockApi(InMemoryApi):
    """The pages and posts of `InMemoryApi`, protected by `Protection`, on a stock site.

    Files are sent by `twisted.web.static`, and unknown paths are stock 404s. `logins` and `events` are postd's alone.
    """

    def _serve(self, settings: Settings, reactor: IReactor) -> HttpFactory:
        if settings.public_url or settings.session.secure != "auto":
            # Not missing coverage: the same tests run on postd's front, which has these settings.
            pytest.skip("Protection has neither a public URL nor a choice of secure cookies")
        parts: dict[str, Any] = {"open_login_store": lambda _url, **_: self.store, "HashThreads": InlineHashThreads}
        with (
            patch("postd.protect.protection.open_login_store", parts["open_login_store"]),
            patch("postd.protect.assembly.HashThreads", InlineHashThreads),
        ):
            self.protection = Protection(reactor, **_arguments(settings))
        starting = Deferred.fromCoroutine(self.protection.start())
        self.clock.advance(0)  # it writes the key of nonces
        result_of(starting)
        events, private = Events(self.store, reactor=reactor), "open" not in settings.api.read
        posts = Router(PostApi(self.store, events, FairTurns(reactor), now=self.clock.seconds, private=private))
        read, write = (
            posts if "open" in rule else self.protect(posts, *rule) for rule in (settings.api.read, settings.api.write)
        )
        pages: dict[str, IResource] = {
            page.path: self.protection.protect(
                File(page.files, defaultType="text/plain") if page.files else ViewResource(show_name),
                *page.schemes,
                users=page.users,
                read_scope=page.read_scope,
                write_scope=page.write_scope,
            )
            for page in settings.pages
        }
        pages["/post"] = _ByMethod(posts, read, write)
        pages["/home"] = self.protect(ViewResource(show_name), "session")
        if settings.bearer:
            pages[METADATA_PATH] = self.protection.metadata()
        root = _Root(self.protection.pages(after="/home"), pages)
        return make_stock_site(root, self.clock)

    def protect(self, resource: IResource, *schemes: str) -> IResource:
        return self.protection.protect(resource, *schemes)

    def close(self) -> None:
        result_of(self.protection.stop())


FRONTS = (
    Front("postd", InMemoryApi, lambda root, clock: make_site(root, clock=clock)),
    Front("stock", StockApi, make_stock_site),
)


def _arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments of `Protection` that mean what settings say."""
    tables = [asdict(table) for table in settings.bearer]
    return {
        "realm": settings.realm,
        "users": settings.users,
        "issuers": [issuer(one.pop("issuer"), leeway=one.pop("leeway_s"), **one) for one in tables],
        "digest_algorithms": settings.digest.algorithms,
        "nonce_lifetime_s": settings.digest.nonce_lifetime_s,
        "session_idle_s": settings.session.idle_s,
        "session_lifetime_s": settings.session.lifetime_s,
        "trusted_proxies": settings.trusted_proxies,
        **asdict(settings.throttle),
    }


class _ByMethod(Resource):
    """Leads to a resource for OPTIONS, to one for reading and to one for writing."""

    isLeaf = True

    def __init__(self, options: IResource, read: IResource, write: IResource) -> None:
        super().__init__()
        self._by_method = {b"OPTIONS": options, b"GET": read, b"HEAD": read}
        self._write = write

    def render(self, request: Any) -> Any:
        return self._by_method.get(request.method, self._write).render(request)


class _Root(Resource):
    """Leads to the page that is nearest above a path, else to the form or to what is below it."""

    def __init__(self, form: IResource, pages: Mapping[str, IResource]) -> None:
        super().__init__()
        self._form = form
        self._pages = {tuple(path.encode("ascii").split(b"/")[1:]): page for path, page in pages.items()}

    def getChildWithDefault(self, path: bytes, request: Any) -> IResource:
        segments = (path, *request.postpath)
        for length in range(len(segments), 0, -1):
            page = self._pages.get(segments[:length])
            if page is not None:
                request.prepath += request.postpath[: length - 1]
                del request.postpath[: length - 1]
                return page
        below: IResource = self._form.getChildWithDefault(path, request)
        return below


def is_stock(answer: Response) -> bool:
    """Return whether a stock site has sent an answer: it names itself, but for a 400 that has no fields at all."""
    return "server" in answer.headers or not answer.headers


def check_text_error(answer: Response, status: int) -> None:
    """Check the body of an error that is no problem details; a 404 may be that of a stock site."""
    assert answer.status == status
    if not (status == 404 and is_stock(answer) and answer.header("Content-Type") == "text/html; charset=utf-8"):
        assert answer.header("Content-Type") == "text/plain; charset=utf-8"


def check_problem(answer: Response, status: int) -> None:
    """Check an error of the post API: problem details, or text if a request of a stock site has none."""
    if is_stock(answer):
        check_text_error(answer, status)
        assert answer.header("Cache-Control") == "no-store"
    else:
        test_posts.check_problem(answer, status)

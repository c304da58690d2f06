"""The pages of schemes are routes of a Klein application."""

from typing import Any

from klein import Klein
from twisted.internet.task import Clock

from postd.http.peer import PeerResolver
from postd.http.responses import make_no_content
from postd.protect.pages import Page
from postd.web.routing import Router
from postd.web.scheme_pages import SchemePages
from tests.helpers import make_site
from tests.web.wire import Worker, ask


async def view(request: Any) -> Any:
    return make_no_content({b"X-Below": b",".join(request.postpath)})


def test_each_method_and_path_is_a_route_of_klein() -> None:
    clients = PeerResolver()
    pages = SchemePages({"login": Page({b"POST": view}, clients), "keys": Page({b"GET": view}, clients, below=True)})
    assert isinstance(pages.app, Klein)
    rules = {(rule.rule, method) for rule in pages.app.url_map.iter_rules() for method in rule.methods or ()}
    assert rules == {
        ("/login", "POST"),
        *((path, method) for path in ("/keys", "/keys/<path:path>") for method in ("GET", "HEAD")),
    }


def test_page_gets_the_path_below_it() -> None:
    clock = Clock()
    pages = SchemePages({"keys": Page({b"GET": view}, PeerResolver(), below=True)})
    worker = Worker(make_site(Router(pages), clock=clock), clock)
    assert [ask(worker, "GET", path).header("X-Below") for path in ("/keys", "/keys/one", "/keys/one/two")] == [
        "",
        "one",
        "one,two",
    ]

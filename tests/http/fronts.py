"""The two fronts that have requests: postd's own, and a stock `twisted.web.server.Site`."""

from collections.abc import Callable
from typing import cast

from msgspec import Struct
from twisted.internet.task import Clock
from twisted.web.resource import IResource, Resource
from twisted.web.server import Site

from postd.front.factory import HttpFactory
from tests.helpers import make_site


class Front(Struct, frozen=True):
    """A front: the id of its tests, and a function that makes a site from a resource and a clock."""

    name: str
    make_site: Callable[[IResource, Clock], HttpFactory]


def make_stock_site(root: IResource, clock: Clock) -> HttpFactory:
    """Return a stock site; of what the declared type has, clients in memory use what is Twisted's."""
    return cast(HttpFactory, Site(cast(Resource, root), reactor=clock))


FRONTS = (Front("postd", lambda root, clock: make_site(root, clock=clock)), Front("stock", make_stock_site))

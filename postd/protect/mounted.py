"""The protected resources of an application, at the paths at which its site has them."""

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from postd.http.interface import Request
from postd.http.stock_request import StockRequest
from postd.protect.guard import Guard, ProtectedResource
from postd.protect.pages import Page

_UNQUOTED = "~!$&'()*+,;=:@"


class MountedResources:
    """The resources behind guards of an application: a guard does not know at which path of a site it is mounted.

    The site looks up a path as for a request. An application of Klein is a leaf, below which nothing is found.

    Attributes:
        guards: by guard the rule, which has schemes or their names, and the resource.
    """

    def __init__(self) -> None:
        self.guards = WeakKeyDictionary[Guard, tuple[Collection[Any], ProtectedResource]]()

    def find(self, request: Request, segments: Sequence[bytes], scheme: str) -> ProtectedResource | None:
        """Return the resource at a path, with the path, if its rule has the scheme; None if there is none."""
        guard = request.resource_at(segments) if isinstance(request, StockRequest) else None
        rule, resource = self.guards.get(guard, ((), None)) if isinstance(guard, Guard) else ((), None)
        if resource is None or not any(getattr(one, "name", one) == scheme for one in rule):
            return None
        return replace(resource, path="".join(f"/{quote(segment, safe=_UNQUOTED)}" for segment in segments))

    def path_below(self, page: str, request: Request, scheme: str) -> str:
        """Return the path of the resource that a request is for; "" if the page does not serve it."""
        if not isinstance(request, StockRequest):
            return ""
        below = [*page.encode("ascii").split(b"/")[1:], *request.prepath]
        resource = self.find(request, request.prepath, scheme)
        return resource.path if resource is not None and isinstance(request.resource_at(below), Page) else ""

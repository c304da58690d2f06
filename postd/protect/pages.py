"""The pages of authentication schemes as resources, which a site or an application mounts."""

from collections.abc import Mapping

from twisted.web.resource import Resource

from postd.http.errors import Problem, not_found
from postd.http.interface import Request
from postd.http.peer import PeerResolver
from postd.http.responses import Response, StreamedResponse, make_no_content
from postd.http.views import View, ViewResource, error_page


class Page(ViewResource):
    """A resource with a view for each method; GET has HEAD with it.

    Args:
        views: the views by method; without any, each request is 404.
        clients: refuses requests for other hosts.
        below: whether the views serve the paths below this one, too.
    """

    def __init__(self, views: Mapping[bytes, View], clients: PeerResolver, *, below: bool = False) -> None:
        super().__init__(self._respond)
        self.views = views
        self._clients = clients
        self.below = below

    async def _respond(self, request: Request) -> Response | StreamedResponse | None:
        self._clients.refuse_other_hosts(request)
        if not self.views or (request.postpath and not self.below):
            raise not_found()
        found = self.views.get(b"GET" if request.method == b"HEAD" else request.method)
        if found is not None:
            return await found(request)
        allow = b", ".join(sorted({*self.views, b"OPTIONS", *([b"HEAD"] if b"GET" in self.views else [])}))
        if request.method == b"OPTIONS":
            return make_no_content({b"Allow": allow})
        raise Problem(405, f"Allowed methods: {allow.decode('ascii')}.", headers={b"Allow": allow})


class Pages(Resource):
    """Pages below one path, by the rest of their paths; that of the rest "" is at the path itself."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        super().__init__()
        self._first: ViewResource = pages.get("") or error_page(not_found())
        self.putChild(b"", self._first)
        for name in dict.fromkeys(path.partition("/")[0] for path in pages if path):
            below = {
                path.removeprefix(name)[1:]: page for path, page in pages.items() if f"{path}/".startswith(f"{name}/")
            }
            self.putChild(name.encode("ascii"), below[""] if [*below] == [""] else Pages(below))

    def render(self, request: object) -> int:
        """Show the first page where the path has no slash at its end."""
        return self._first.render(request)

"""The admin listeners: `/healthz`, `/readyz` and `/metrics` (reference: Operations)."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from twisted.web.resource import IResource, Resource

from postd.monitoring.exposition import CONTENT_TYPE, encode
from postd.monitoring.health import Report
from postd.web.responses import TEXT, Response, make_response
from postd.web.server.routing import Application, Router

_HEADERS = {b"Cache-Control": b"no-store"}


class Admin:
    """The views of the admin listeners.

    Args:
        report: returns the health of the service.
    """

    app = Application()

    def __init__(self, report: Callable[[], Awaitable[Report]]) -> None:
        self._report = report

    @app.route("/healthz", methods=["GET"])
    async def show_liveness(self, _request: Any) -> Response:
        return make_response(HTTPStatus.OK, TEXT, b"ok\n", _HEADERS)

    @app.route("/readyz", methods=["GET"])
    async def show_readiness(self, _request: Any) -> Response:
        report = await self._report()
        text = "".join(f"{subject}: {state}\n" for subject, state in report.states.items())
        status = HTTPStatus.OK if report.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return make_response(status, TEXT, text.encode(errors="backslashreplace"), _HEADERS)

    @app.route("/metrics", methods=["GET"])
    async def show_metrics(self, _request: Any) -> Response:
        return make_response(HTTPStatus.OK, CONTENT_TYPE, encode((await self._report()).numbers), _HEADERS)


class _AnyPath(Resource):
    """Passes every path to the router."""

    def __init__(self, views: IResource) -> None:
        super().__init__()
        self._views = views

    def getChildWithDefault(self, _path: bytes, _request: Any) -> IResource:
        return self._views


def make_admin_root(report: Callable[[], Awaitable[Report]]) -> IResource:
    """Return the resource tree of the admin listeners; `report` is that of `Admin`."""
    return _AnyPath(Router(Admin(report)))

"""The views of the admin listeners: `/healthz`, `/readyz`, `/metrics` (reference: Operations)."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from postd.http.responses import TEXT, Response, make_response
from postd.monitoring.exposition import CONTENT_TYPE, encode
from postd.monitoring.health import Health
from postd.web.routing import Application

_HEADERS = {b"Cache-Control": b"no-store"}


class Admin:
    """The views of the admin listeners."""

    app = Application()

    def __init__(self, check_health: Callable[[], Awaitable[Health]]) -> None:
        self._check_health = check_health

    @app.route("/healthz", methods=["GET"])
    async def show_liveness(self, _request: object) -> Response:
        return make_response(HTTPStatus.OK, TEXT, b"ok\n", _HEADERS)

    @app.route("/readyz", methods=["GET"])
    async def show_readiness(self, _request: object) -> Response:
        health = await self._check_health()
        text = "".join(f"{name}: {state}\n" for name, state in health.states.items())
        status = HTTPStatus.OK if health.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return make_response(status, TEXT, text.encode(errors="backslashreplace"), _HEADERS)

    @app.route("/metrics", methods=["GET"])
    async def show_metrics(self, _request: object) -> Response:
        return make_response(HTTPStatus.OK, CONTENT_TYPE, encode((await self._check_health()).metrics), _HEADERS)

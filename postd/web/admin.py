"""The views of the admin listeners: `/healthz`, `/readyz`, `/metrics` (reference: Operations)."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from postd.http.interface import Request
from postd.http.responses import TEXT, Response, make_response
from postd.monitoring.exposition import FORMATS, Format, encode
from postd.monitoring.health import Health
from postd.protocol.accept import MediaRange, decode_media_ranges
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
    async def show_metrics(self, request: Request) -> Response:
        form, escaping = choose_format(b",".join(request.fields.get(b"Accept", ())))
        text = encode((await self._check_health()).metrics, form)
        return make_response(HTTPStatus.OK, form.content_type(escaping), text, {**_HEADERS, b"Vary": b"Accept"})


def choose_format(accept: bytes) -> tuple[Format, bytes]:
    """Return the format of metrics that a value of `Accept` prefers, and the escaping scheme that it asks for.

    Of formats with the same weight, that of the earlier media range is chosen.
    """
    ranges = [*enumerate(decode_media_ranges(accept))]
    best, chosen, escaping = (0.0, 0), FORMATS[0], b""
    for offered in FORMATS:
        matching = [(_closeness(one, offered), -place, one) for place, one in ranges if _closeness(one, offered)]
        if matching:
            _, place, closest = max(matching, key=lambda match: match[:2])
            if (closest.weight, place) > best:
                best, chosen = (closest.weight, place), offered
                escaping = closest.parameters.get(b"escaping", b"")
    return chosen, escaping


def _closeness(media_range: MediaRange, offered: Format) -> int:
    """Return how closely a media range describes a format, 0 if it does not (RFC 9110 §12.5.1)."""
    version = media_range.parameters.get(b"version")
    if version not in {None, offered.version}:
        return 0
    names = (b"*/*", b"%b/*" % offered.media_type.partition(b"/")[0], offered.media_type)
    return names.index(media_range.name) + 1 + len(names) * (version is not None) if media_range.name in names else 0

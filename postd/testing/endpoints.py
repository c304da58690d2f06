"""HTTP endpoints of issuers and providers (`Endpoints`)."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request


class Answer(Struct):
    """A response.

    Args:
        body: bytes, or an object that is sent as JSON.
        status: the HTTP status.
        headers: further header fields.
        is_sent: whether it is ever sent: otherwise the request stays open.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    is_sent: bool = True


class Endpoints(Resource):
    """Answers requests by their path: GET and POST, and 404 for other paths."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.by_path: dict[str, Callable[[Request], Answer]] = {}

    def render_GET(self, request: Request) -> bytes | int:
        endpoint = self.by_path.get(request.path.decode("latin-1"))
        answer = Answer(status=404) if endpoint is None else endpoint(request)
        if not answer.is_sent:
            return NOT_DONE_YET
        request.setResponseCode(answer.status)
        is_bytes = isinstance(answer.body, bytes)
        request.setHeader(b"Content-Type", b"text/plain" if is_bytes else b"application/json")
        for name, value in answer.headers.items():
            request.setHeader(name, value)
        return answer.body if is_bytes else orjson.dumps(answer.body)

    def render_POST(self, request: Request) -> bytes | int:
        return self.render_GET(request)

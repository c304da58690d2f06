"""The paths of the API."""

from postd.protocol.percent import percent_decode

API_SEGMENTS = (b"post", b".well-known", b"openapi.json")
"""First path segments of the API."""

_API = [[b"", segment] for segment in API_SEGMENTS]


def is_api(path: bytes) -> bool:
    """Return whether errors at a path are problem details; also true of the empty path of an undecodable request."""
    return not path or [percent_decode(segment) for segment in path.split(b"/", 2)[:2]] in _API

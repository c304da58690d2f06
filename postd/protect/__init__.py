"""Authentication for any application of twisted.web or Klein: Basic, Digest, a form with a session, Bearer tokens.

`Protection.protect` puts a guard before a resource; `identity` returns the authenticated client in a resource or view.
docs/how-to/protect.md has example programs, and a list of checks that a stock `twisted.web.server.Site` lacks.
"""

from typing import Any

from postd.auth.identity import Identity
from postd.http.stock_request import result_of_authentication
from postd.protect.issuers import issuer
from postd.protect.protection import Protection
from postd.reactor import use_monotonic_clock

__all__ = ["Identity", "Protection", "identity", "issuer", "use_monotonic_clock"]


def identity(request: Any) -> Identity | None:
    """Return the authenticated client of a request; None if no guard protects the resource.

    Args:
        request: the `twisted.web.server.Request` that the resource or the Klein view received.
    """
    result = result_of_authentication(request)
    return None if result is None else result.identity

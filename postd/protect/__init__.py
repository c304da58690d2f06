"""Authentication for any application of twisted.web or Klein: Basic, Digest, a form with a session, Bearer tokens.

`Protection.protect` puts a guard before a resource; `identity` returns the authenticated client in a resource or view.
docs/how-to/protect.md has example programs, and a list of checks that a stock `twisted.web.server.Site` lacks.
"""

from postd.auth.credentials import Refused
from postd.auth.identity import Identity
from postd.errors import ConfigError, StoreUnavailableError
from postd.http.interface import Request
from postd.http.responses import Response, make_response
from postd.http.stock_request import result_of_authentication
from postd.protect.issuers import TrustedIssuer, issuer
from postd.protect.pages import Page
from postd.protect.protection import Protection
from postd.protect.providers import TrustedProvider, provider
from postd.protect.schemes.interface import Context, Scheme, SchemeDescription, SchemeParts
from postd.protect.schemes.own import make_parts
from postd.protect.wsgi import wsgi
from postd.reactor import use_monotonic_clock

__all__ = [
    "ConfigError",
    "Context",
    "Identity",
    "Page",
    "Protection",
    "Refused",
    "Request",
    "Response",
    "Scheme",
    "SchemeDescription",
    "SchemeParts",
    "StoreUnavailableError",
    "TrustedIssuer",
    "TrustedProvider",
    "identity",
    "issuer",
    "make_parts",
    "make_response",
    "provider",
    "use_monotonic_clock",
    "wsgi",
]


def identity(request: object) -> Identity | None:
    """Return the authenticated client of a request; None if no guard protects the resource::

        f"Hello {identity(request).name}"

    Args:
        request: the `twisted.web.server.Request` that the resource or the Klein view received.
    """
    result = result_of_authentication(request)
    return None if result is None else result.identity

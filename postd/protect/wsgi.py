"""WSGI applications (PEP 3333) behind a `Protection`."""

from collections.abc import Iterable, Sequence
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from twisted.web.resource import IResource, Resource
from twisted.web.wsgi import WSGIResource

from postd.http.stock_request import result_of_authentication
from postd.protect.arguments import expected
from postd.protect.protection import Protection
from postd.protect.schemes.interface import Scheme
from postd.reactor import IReactor
from postd.scheme_names import SchemeName


def wsgi(
    protection: Protection,
    application: WSGIApplication,
    *schemes: SchemeName | Scheme,
    users: Sequence[str] = (),
    read_scope: str = "",
    write_scope: str = "",
) -> IResource:
    """Return a resource that runs a WSGI application for authenticated clients, in the threads of the reactor.

    The environment has `REMOTE_USER`, the account (`Identity.account`), and `AUTH_TYPE`, the scheme; it does not have
    the field `Authorization`::

        site = Site(wsgi(protection, flask_app, "digest", "basic"))

    Args:
        protection: authenticates the requests.
        application: the WSGI application.
        schemes: as for `Protection.protect`.
        users: as for `Protection.protect`.
        read_scope: as for `Protection.protect`.
        write_scope: as for `Protection.protect`.

    Raises:
        ValueError: an argument is invalid; the message names it.
    """
    if not isinstance(protection, Protection):
        raise expected("protection", "a Protection", protection)
    if not callable(application):
        raise expected("application", "a WSGI application", application)
    resource = _WsgiResource(protection.reactor, application)
    return protection.protect(resource, *schemes, users=users, read_scope=read_scope, write_scope=write_scope)


class _WsgiResource(Resource):
    isLeaf = True

    def __init__(self, reactor: IReactor, application: WSGIApplication) -> None:
        super().__init__()
        self._reactor = reactor
        self._application = application

    def render(self, request: Any) -> Any:
        result = result_of_authentication(request)
        assert result is not None  # the guard has set it
        assert result.identity is not None
        # Text in an environment has the bytes of UTF-8, decoded as Latin-1.
        account = result.identity.account.encode("utf-8", "surrogateescape").decode("latin-1")
        own = {"REMOTE_USER": account, "AUTH_TYPE": result.identity.scheme}

        def run(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            environ.pop("HTTP_AUTHORIZATION", None)
            return self._application(environ | own, start_response)

        return WSGIResource(self._reactor, self._reactor.getThreadPool(), run).render(request)

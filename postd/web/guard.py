"""What stands before a protected resource: it logs the client in, or challenges it.

`Guard` is `HTTPAuthSessionWrapper` with these departures, for which stock Twisted has no hook:

- A login that is decided at once is answered at once, without a Deferred. The stock wrapper makes a class for each
  login, and goes through `NOT_DONE_YET` even when nothing waits.
- The portal is given a `Visit` for `mind`, so that one realm does for all resources. It keeps nobody logged in: no
  logout is called when an answer is finished.
- A challenge is the whole line, for a factory may have several, in its own quoting: the stock wrapper quotes every
  parameter, and RFC 7616 §3.3 forbids that for `algorithm` and `stale`. It is told why the last try was refused.
- Two `Authorization` fields are a bad request (RFC 9110 §5.3: it is no list); the stock wrapper takes the last of them,
  a proxy may have looked at the first. One of more than 8 KiB is refused (RFC 6585 §5).
- A tab may follow the scheme's name (RFC 9110 §11.4 has spaces; §5.6.3 asks for leniency with white space).
- 401 has a body in the form that other errors have there, is not to be stored, and has its length for HEAD too (RFC
  9110 §9.3.2). A store that is away is 503, and too many failures are 429: no 401 for either, that would make clients
  drop good credentials.
- Without credentials nobody logs in, not even as `Anonymous`.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from msgspec import Struct
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials
from twisted.cred.error import UnhandledCredentials
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.web.guard import HTTPAuthSessionWrapper
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import Attribute, Interface, implementer

from postd.auth.checker import Checker, Lasting, always
from postd.auth.credentials import InsufficientScopeError, Refused, StaleNonceError, log_refusal
from postd.errors import TooManyFailuresError
from postd.web.cookie import decode_session_cookies, expire_session_cookie
from postd.web.cors import is_preflight
from postd.web.errors import Problem, is_api, make_problem_response
from postd.web.peer import PeerResolver
from postd.web.responses import Response, make_no_content, make_redirect
from postd.web.server.driver import Steps, ViewResource, error_page

AUTHORIZATION_MAX_BYTES = 8 * 1024

Check = Callable[[Any], Coroutine[Any, Any, Any]]
"""Tells whose credentials these are: comes to the identifier of an avatar."""

_log = Logger()


class CredentialFactory(Protocol):
    """`twisted.web.iweb.ICredentialFactory`, with `challenges` in the place of `getChallenge`."""

    @property
    def scheme(self) -> bytes:
        """The scheme's name, in lower case."""

    async def challenges(self, refusal: Refused | None, request: Any) -> Sequence[bytes]:
        """Return the values of `WWW-Authenticate`, one for each field line.

        Args:
            refusal: why the credentials of the request were not good; None if it had none.
            request: the request that is challenged.
        """

    def decode(self, response: bytes, request: Any) -> Any:
        """Return the credentials in what follows the scheme's name.

        Raises:
            Refused: there are none.
            Problem: the request is not to be answered, whatever they are.
        """


class IUser(Interface):
    """An avatar that is no more than who it is."""

    name: str = Attribute("the user's name")


@implementer(IUser)
class User(Struct, frozen=True):
    name: str


class Visit(Struct, frozen=True):
    """A request that wants to see a resource which only `users` may see; everybody who is known if that is empty."""

    request: Any
    resource: IResource
    users: frozenset[str]


@implementer(IRealm)
class Realm:
    """Avatars: the protected resource to visit, or the user."""

    def requestAvatar(
        self, avatarId: bytes | tuple[()], mind: object, *_interfaces: type[Interface]
    ) -> tuple[type[Interface], object, Callable[[], None]]:
        name = bytes(avatarId).decode()
        if not isinstance(mind, Visit):
            return IUser, User(name), _stay_out
        mind.request.username = name
        if mind.users and name not in mind.users:
            mind.request.auth_outcome = "forbidden"
            return IResource, _FORBIDDEN, _stay_out
        mind.request.auth_outcome = "accepted"
        return IResource, mind.resource, _stay_out


def _stay_out() -> None:
    """Log out who was never kept logged in."""


_FORBIDDEN = error_page(Problem(403, "You are known, but this is not for you."))


class Guard(HTTPAuthSessionWrapper):
    """Protects a resource and all below it.

    Args:
        portal: logs in.
        factories: the schemes that a client may use, in the order of their challenges.
        resource: what is protected.
        clients: tells where a request comes from, if there are proxies in between.
        session_challenge: names the form (`postd.web.cookie.make_challenge`), if a session lets in, too; it is for
            programs, where no other scheme has a challenge.
        users: the only ones that may enter; all if there is none.
    """

    def __init__(  # noqa: PLR0913 - a rule has as many sides
        self,
        portal: Portal,
        factories: Sequence[CredentialFactory],
        resource: IResource,
        *,
        clients: PeerResolver | None = None,
        session_challenge: bytes | None = None,
        users: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(portal, factories)
        self._resource = resource
        self._checks: dict[type, Check] = {}
        self._by_scheme = {factory.scheme: factory for factory in factories}
        self._clients = clients or PeerResolver()
        self._session_challenge = session_challenge
        self._users = users

    def _authorizedResource(self, request: Any) -> IResource:
        if is_preflight(request):
            return ViewResource(_respond_to_preflight)
        try:
            if self._session_challenge is not None:
                self._clients.refuse_cross_site_write(request)
            request.credentials = credentials = self._decode(request)
            if credentials is None:
                return self._challenge(None, request)
            check = self._checks.get(type(credentials)) or self._find_check(credentials)
            checking = check(credentials)
            waiting = checking.send(None)  # up to where it has to wait
        except StopIteration as found:
            return self.admit(found.value, request)
        except Exception as error:  # noqa: BLE001 - the table has them all
            return self.refuse(error, request)
        return _Waiting(self, checking, waiting)

    def _find_check(self, credentials: ICredentials) -> Check:
        """Return what checks credentials of a kind: what `Portal.login` does, but for its Deferreds."""
        for interface, checker in self._portal.checkers.items():
            if interface.providedBy(credentials):
                check = checker.check if isinstance(checker, Checker) else partial(_ask, checker)
                self._checks[type(credentials)] = check
                return check
        raise UnhandledCredentials

    def admit(self, name: bytes, request: Any) -> IResource:
        """Return what answers to somebody who is known."""
        visit = Visit(request, self._resource, self._users)
        resource: IResource = self._portal.realm.requestAvatar(name, visit, IResource)[1]
        return resource

    def refuse(self, error: Exception, request: Any) -> IResource:
        """Return what answers where a check has failed."""
        if request.auth_scheme is not None:
            request.auth_outcome = outcome_of(error)
        return self._challenge(error, request) if isinstance(error, Refused) else error_page(error)

    def _decode(self, request: Any) -> ICredentials | None:
        """Return the credentials in a request, None if there are none that count here."""
        values = request.fields.get(b"Authorization")
        if values is not None:
            if len(values) > 1:
                raise Problem(400, "The request has more than one Authorization field.")
            if len(values[0]) > AUTHORIZATION_MAX_BYTES:
                raise Problem(431, "The Authorization field is too large.")
            scheme, rest = _split_scheme(values[0])
            factory = self._by_scheme.get(scheme)
            if factory is not None:
                request.auth_scheme = scheme.decode("ascii")
                return self._decode_with(factory, rest, request)
        return None if self._session_challenge is None else self._decode_cookies(request)

    def _decode_cookies(self, request: Any) -> ICredentials | None:
        credentials = decode_session_cookies(request)
        if credentials is not None:
            request.auth_scheme = "session"
        return credentials

    def _decode_with(self, factory: CredentialFactory, response: bytes, request: Any) -> ICredentials:
        try:
            decoded: ICredentials = factory.decode(response, request)
        except Refused as refusal:
            log_refusal(factory.scheme.decode("ascii"), refusal, self._clients.address(request))
            raise
        return decoded

    def _challenge(self, refusal: Refused | None, request: Any) -> IResource:
        """Return what asks for credentials. Without any scheme that asks, it is the form that does."""
        if isinstance(refusal, InsufficientScopeError):
            return ViewResource(lambda asked: self._make_403(refusal, asked))
        if self._credentialFactories or is_api(request.path):
            return ViewResource(lambda asked: self._make_401(refusal, asked))
        return ViewResource(_redirect_to_form)

    async def _make_401(self, refusal: Refused | None, request: Any) -> Response:
        await _add_challenges(self._credentialFactories, refusal, request)
        if not self._credentialFactories:
            request.add_header(b"WWW-Authenticate", self._session_challenge)
        detail = "The credentials are not good." if refusal else "Credentials are needed."
        return make_problem_response(request.path, Problem(HTTPStatus.UNAUTHORIZED, detail))

    async def _make_403(self, refusal: InsufficientScopeError, request: Any) -> Response:
        request.username = refusal.username
        # The one 403 with a challenge, and only with that of its scheme (RFC 6750 §3.1).
        factories = [factory for factory in self._credentialFactories if factory.scheme == refusal.scheme]
        await _add_challenges(factories, refusal, request)
        return make_problem_response(
            request.path, Problem(HTTPStatus.FORBIDDEN, "The token is good, but not for this.")
        )


async def _add_challenges(factories: Sequence[CredentialFactory], refusal: Refused | None, request: Any) -> None:
    for factory in factories:
        for challenge in await factory.challenges(refusal, request):
            request.add_header(b"WWW-Authenticate", challenge)


def outcome_of(error: Exception) -> str:
    """Return what has become of credentials that did not let a request in, in a word for those who count."""
    for kinds, outcome in _OUTCOMES:
        if isinstance(error, kinds):
            return outcome
    return "unavailable"


_OUTCOMES: Sequence[tuple[type[Exception] | tuple[type[Exception], ...], str]] = (
    (StaleNonceError, "stale"),
    (InsufficientScopeError, "forbidden"),
    (Refused, "refused"),
    (TooManyFailuresError, "throttled"),
    (Problem, "refused"),
)
"""The first that fits. A problem is one of the request: more than one field, or a page of another site has sent it."""


def lasting(portal: Portal, request: Any) -> Lasting:
    """Return what tells later whether whoever has sent a request may still be here; who came in unasked, may."""
    # They are not kept for as long as the answer lasts: there may be a password among them.
    credentials, request.credentials = request.credentials, None
    if request.username is not None:
        for interface, checker in portal.checkers.items():
            if interface.providedBy(credentials) and isinstance(checker, Checker):
                return checker.lasting(credentials, request.username.encode())
    return always


async def _ask(checker: ICredentialsChecker, credentials: ICredentials) -> Any:
    return await maybeDeferred(checker.requestAvatarId, credentials)


def _split_scheme(value: bytes) -> tuple[bytes, bytes]:
    """Return the scheme's name in lower case, and what follows it."""
    scheme, _, rest = value.partition(b" ")
    if b"\t" in scheme:
        scheme, _, rest = value.partition(b"\t")
    return scheme.lower(), rest.strip(b" \t")


async def _respond_to_preflight(_request: Any) -> Response:
    # A preflight never has credentials (Fetch standard §4.8). Nothing is allowed by this answer.
    return make_no_content({b"Allow": b"GET, HEAD"})


async def _redirect_to_form(request: Any) -> Response:
    """Lead to the form (spec: `/home` without a valid cookie); a cookie that is of no use is taken away."""
    if decode_session_cookies(request) is not None:
        expire_session_cookie(request)
    return make_redirect(b"/")


class _Waiting(Resource):
    """Stands for a resource until credentials are checked."""

    isLeaf = True

    def __init__(self, guard: Guard, checking: Coroutine[Any, Any, bytes], waiting: Deferred[Any]) -> None:
        super().__init__()
        self._guard = guard
        self._checking = checking
        self._waiting = waiting

    def render(self, request: Any) -> Any:
        _Entering(self._guard, self._checking, request).wait(self._waiting)
        return NOT_DONE_YET


class _Entering(Steps):
    """A check under way; it goes on for a client that has gone, too."""

    __slots__ = ("_guard", "_request")

    def __init__(self, guard: Guard, checking: Coroutine[Any, Any, bytes], request: Any) -> None:
        super().__init__(checking)
        self._guard = guard
        self._request = request

    def returned(self, value: bytes) -> None:
        self._show(self._guard.admit(value, self._request))

    def raised(self, error: Exception) -> None:
        self._show(self._guard.refuse(error, self._request))

    def _show(self, resource: IResource) -> None:
        if self._request.channel is not None:  # else the connection is lost
            self._request.show(resource)

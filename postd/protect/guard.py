"""The guard of a protected resource: authenticates the client, or challenges it.

`Guard` is `HTTPAuthSessionWrapper` with these departures, for which stock Twisted has no hook:

- A login is one coroutine (`postd.auth.portal`), without a Deferred if it does not wait. It returns the client's
  identity beside the avatar.
- The portal's `mind` is the protected resource, so that one realm serves all resources. The coroutine of the login
  awaits the view of the avatar. No logout is called at the end of a response: no client stays logged in.
- A factory returns complete challenge lines, of which it may have several. The stock wrapper quotes every parameter,
  which RFC 7616 §3.3 forbids for `algorithm` and `stale`. The factory gets the reason of the refusal.
- Two `Authorization` fields are a bad request (RFC 9110 §5.3: it is not a list field). The stock wrapper uses the last
  one, while a proxy may have checked the first. A field of more than 8 KiB is refused (RFC 6585 §5).
- A tab may follow the scheme's name (RFC 9110 §11.4 has spaces; §5.6.3 asks for leniency with white space).
- 401 has a body in the format of other errors of the resource, must not be stored, and has the same length for HEAD
  (RFC 9110 §9.3.2). An unavailable store is 503 and too many failures are 429: with 401, clients would drop valid
  credentials.
- Without credentials there is no login, not even as `Anonymous`.
- Below another guard of the same portal, a Digest response is not checked again: its nonce count has been used.
- `OpenGuard` requires no credentials, and authenticates those that are sent.
- Where a rule has sessions, a browser that opens a page without a session is redirected to the form, also if the rule
  has schemes with challenges; programs get the challenges.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace
from twisted.cred.credentials import ICredentials
from twisted.cred.portal import IRealm
from twisted.web.resource import IResource
from zope.interface import Interface, implementer

from postd.auth.credentials import (
    BearerCredentials,
    InsufficientScopeError,
    Refused,
    StaleNonceError,
    TokenCredentials,
    UnprovenError,
    log_refusal,
)
from postd.auth.identity import AuthenticationResult, Identity
from postd.auth.portal import CoroutinePortal
from postd.errors import TooManyFailuresError
from postd.http.errors import Advice, Problem, make_problem_response
from postd.http.interface import Request
from postd.http.navigation import is_navigation
from postd.http.pages.template import wants_html
from postd.http.peer import PeerResolver
from postd.http.responses import Response, StreamedResponse, make_no_content
from postd.http.views import Responding, View, ViewResource, error_page, view_of
from postd.twisted_private import AuthSessionWrapper

AUTHORIZATION_MAX_BYTES = 8 * 1024
"""Size limit of the field `Authorization`."""


Resume = Callable[[Request, str, Mapping[str, list[str]]], Awaitable[Response]]
"""Returns the page with a form at a path, from the request that has signed in, the path and the form's fields."""


class ProtectedResource(Struct, frozen=True):
    """The properties of a protected resource that its credential factories need.

    Args:
        clients: resolves client and origin of its requests.
        path: its path, without a slash at the end; "" for the whole origin, or where it is not known.
        read_scope: the scope that a token needs here for safe methods, words separated by spaces; "" for its issuer's.
        write_scope: likewise for other methods.
        resume: shows a form again that was sent to a path, after its session had ended and its user has signed in.
    """

    clients: PeerResolver
    path: str = ""
    read_scope: str = ""
    write_scope: str = ""
    resume: "Resume | None" = None

    def scope(self, *, writing: bool) -> str:
        """Return the scope that a token needs here, "" for its issuer's."""
        return self.write_scope if writing else self.read_scope


class CredentialFactory(Protocol):
    """Credentials in the field `Authorization`: `twisted.web.iweb.ICredentialFactory`, with `challenges` for
    `getChallenge`.
    """

    @property
    def scheme(self) -> bytes:
        """The scheme's name, in lower case."""

    @property
    def ambient(self) -> bool:
        """Whether browsers send its credentials by themselves; then cross-site writes are refused (CSRF).

        Pages of named origins may write, because a page can have set the field itself (`PeerResolver`).
        """

    async def challenges(self, refusal: Refused | None, request: Request) -> Sequence[bytes]:
        """Return the values of `WWW-Authenticate`, one for each field line.

        `refusal` is why credentials of this scheme were refused; None if there were none.
        """

    def decode(self, response: bytes, request: Request) -> ICredentials:
        """Decode the credentials after the scheme's name.

        Raises:
            Refused: they are malformed.
            Problem: the request must be refused with this error, independent of its credentials.
        """


FactoryMaker = Callable[[ProtectedResource], Sequence[CredentialFactory]]
"""Makes the credential factories of a scheme for a resource."""


class CredentialReader(Protocol):
    """Credentials anywhere else in a request, such as a cookie. They count where `Authorization` has none.

    Attributes:
        scheme: the scheme's name in settings.
        field: the name of the header field that has them; None if it is not known, or they are in several places.
        ambient: whether browsers send them by themselves; then cross-site writes are refused (CSRF).
        challenge: the value of `WWW-Authenticate` where no other scheme of the rule has a challenge (RFC 9110 §15.5.2).
        form: the path of the sign-in page, None if there is none.
    """

    scheme: str
    field: bytes | None
    ambient: bool
    challenge: bytes
    form: str | None

    def read(self, request: Request) -> ICredentials | None:
        """Return the credentials in a request, None if there are none of this scheme.

        Raises:
            Refused: they are malformed.
        """

    def redirect_to_sign_in(self, request: Request, back: bytes) -> Response | None:
        """Return the redirect to the sign-in page, instead of a 401; None if there is none.

        `back` is the target to redirect to after the sign-in; empty for none.
        """

    def send_back(self, request: Request) -> Response | None:
        """Return the page that sends a browser back to the same address, if its request lacks the proof of a bound
        session; None for other requests, and if the browser was there a moment ago.
        """


class Protected(Struct, frozen=True):
    """A protected resource, as the realm's `mind`; `users` are the only accounts with access, empty for all."""

    resource: IResource
    users: frozenset[str] = frozenset()


def _no_logout() -> None:
    """Do nothing: no client stays logged in."""


@implementer(IRealm)
class Realm:
    """The realm of all resources: the avatar is the `mind`, a resource, if the account has access to it."""

    def requestAvatar(
        self, avatarId: bytes | tuple[()], mind: object, *_interfaces: type[Interface]
    ) -> tuple[type[Interface], object, Callable[[], None]]:
        assert isinstance(mind, Protected)
        is_allowed = not mind.users or bytes(avatarId).decode() in mind.users
        return IResource, mind.resource if is_allowed else FORBIDDEN, _no_logout


FORBIDDEN = error_page(Problem(403, "You are not authorized to access this resource."))


class Guard(AuthSessionWrapper):
    """Protects a resource and all below it, or each view that it is given (`enter`).

    The schemes are those of `factories`, in the order of their challenges, and of `readers`.

    Args:
        users: the only accounts with access; empty for all.
        leads_back: whether a sign-in that a redirect asks for leads back to the requested page.
    """

    def __init__(  # noqa: PLR0913 - all but three have their defaults
        self,
        portal: CoroutinePortal,
        factories: Sequence[CredentialFactory],
        resource: IResource,
        *,
        readers: Sequence[CredentialReader] = (),
        clients: PeerResolver | None = None,
        users: frozenset[str] = frozenset(),
        leads_back: bool = True,
    ) -> None:
        super().__init__(portal, factories)
        self._leads_back = leads_back
        self._cred = portal
        self._authenticate = portal.authenticate
        self.use(factories, readers)
        self._clients = clients or PeerResolver()
        self._protected = Protected(resource, users)
        self._guarded = ViewResource(partial(self.enter, view=view_of(resource)))

    def use(self, factories: Sequence[CredentialFactory], readers: Sequence[CredentialReader]) -> None:
        """Accept the credentials of these schemes from now on."""
        self._factories = factories
        self._by_scheme = {factory.scheme: factory for factory in factories}
        self._readers = readers
        self._advice = _advise(self._by_scheme, readers)

    def resource_for(self, _request: object) -> IResource:
        return self._guarded

    async def enter(  # noqa: C901, PLR0912 - each request takes these steps, which are one function for its speed
        self, request: Request, view: View
    ) -> Response | StreamedResponse | None:
        """Return the response of a view, if the client has access to it, or a challenge."""
        if request.method == b"OPTIONS" and is_preflight(request):
            return _PREFLIGHT
        # A login continues when the client disconnects: otherwise its failure would not be counted.
        request.is_shielded = True
        name, response = _split_authorization(request)
        factory = self._by_scheme.get(name)
        scheme, credentials, ambient = "", None, False
        try:
            if factory is not None:
                scheme = name.decode("ascii")
                ambient = factory.ambient
                credentials = factory.decode(response, request)
                if isinstance(credentials, TokenCredentials):
                    scheme = credentials.scheme
            else:
                for reader in self._readers:
                    scheme, ambient = reader.scheme, reader.ambient
                    credentials = reader.read(request)
                    if credentials is not None:
                        break
            if credentials is not None:
                if ambient:
                    self._clients.refuse_cross_site_write(request, except_named=factory is not None)
                above = request.authentication  # of a guard above this one
                request.authentication = AuthenticationResult(scheme, None)  # for the log, if the client disconnects
                if above is not None and above.portal is self._cred and above.scheme == scheme:
                    identity = await self._authenticate_below(above, credentials)
                else:
                    identity = await self._authenticate(credentials)
                avatar = await self._cred.find_avatar(identity, self._protected, IResource)
        except Exception as error:
            account = error.username if isinstance(error, InsufficientScopeError) else None
            request.authentication = AuthenticationResult(scheme, outcome_of(error), account)
            if isinstance(error, Refused):
                # The checker logs a refusal, if it is asked, but not of a session: most of those have expired.
                if credentials is None or isinstance(error, UnprovenError):
                    log_refusal(scheme, error, self._clients.address(request))
                return await self._turn_away(error, factory, request, view, ambient=ambient)
            raise
        if credentials is None:
            return await self._turn_away(None, None, request, view, ambient=False)
        outcome = "forbidden" if avatar is FORBIDDEN else "accepted"
        request.authentication = AuthenticationResult(scheme, outcome, identity.account, identity, self._cred)
        request.is_shielded = False
        return None if request.channel is None else await self._show(avatar, view, request)

    def _show(self, avatar: IResource, view: View, request: Request) -> Responding:
        """Return the coroutine of the view, or that of an avatar which is not the protected resource."""
        return view(request) if avatar is self._protected.resource else view_of(avatar)(request)

    async def _authenticate_below(self, above: AuthenticationResult, credentials: ICredentials) -> Identity:
        """Return the identity that credentials prove which a guard above this one has checked."""
        assert above.identity is not None
        if above.scheme == "digest":
            return above.identity
        if isinstance(credentials, BearerCredentials):
            credentials = replace(credentials, is_proven=True)
        return await self._authenticate(credentials)

    def redirect_to_sign_in(self, request: Request) -> Response | None:
        """Return the redirect of a request without credentials to the sign-in page; None for a 401.

        Where other schemes have challenges, programs get these.
        """
        is_browser = (request.method == b"POST" and wants_html(request)) or is_navigation(request)
        if request.is_api or not (self._readers and (not self._factories or is_browser)):
            return None
        back = request.uri if self._leads_back and request.method in {b"GET", b"HEAD"} else b""
        return next(filter(None, (reader.redirect_to_sign_in(request, back) for reader in self._readers)), None)

    async def _turn_away(
        self,
        refusal: Refused | None,
        factory: CredentialFactory | None,
        request: Request,
        view: View,  # noqa: ARG002 - for subclasses
        *,
        ambient: bool,  # noqa: ARG002 - for subclasses
    ) -> Response | StreamedResponse | None:
        """Return the response to a request without valid credentials; they may be `ambient`."""
        return await self._challenge(refusal, factory, request)

    async def _challenge(
        self, refusal: Refused | None, factory: CredentialFactory | None, request: Request
    ) -> Response:
        """Return the response that requests credentials, or a token with more scope.

        `factory` has decoded the refused credentials, if they were in `Authorization`.
        """
        if isinstance(refusal, InsufficientScopeError):
            # The one 403 with a challenge, and only with that of its scheme (RFC 6750 §3.1).
            await _add_challenges([factory] if factory is not None else [], factory, refusal, request)
            problem = Problem(HTTPStatus.FORBIDDEN, "The token lacks the scope that this resource needs.")
            return make_problem_response(request, problem)
        redirect = self.redirect_to_sign_in(request) if factory is None else None
        if redirect is not None:
            return redirect
        if not self._factories:
            for reader in self._readers:
                request.add_header(b"WWW-Authenticate", reader.challenge)
        await _add_challenges(self._factories, factory, refusal, request)
        detail = "The credentials are invalid." if refusal else "Credentials are required."
        return make_problem_response(request, Problem(HTTPStatus.UNAUTHORIZED, detail), self._advice)


class PrivateGuard(Guard):
    """A guard of resources that are not aware of authentication: their responses get `Cache-Control: private`."""

    def use(self, factories: Sequence[CredentialFactory], readers: Sequence[CredentialReader]) -> None:
        super().use(factories, readers)
        self._vary = b", ".join([b"Authorization"] * bool(factories) + [b"Cookie"] * bool(readers))

    async def enter(self, request: Request, view: View) -> Response | StreamedResponse | None:
        self._clients.refuse_other_hosts(request)
        return await super().enter(request, view)

    def _show(self, avatar: IResource, view: View, request: Request) -> Responding:
        if avatar is not FORBIDDEN:
            request.setHeader(b"Cache-Control", b"private")
            request.add_header(b"Vary", self._vary)
        return super()._show(avatar, view, request)


class OpenGuard(Guard):
    """A guard that requires no credentials (a rule with "open"): it authenticates those of a request that has any.

    Invalid credentials in `Authorization` are challenged: a client that sends them wants to be known. Invalid ones that
    browsers send by themselves elsewhere, such as the cookie of a session that has ended, count as none; but a browser
    without the proof of a bound session is sent back for it, once.
    """

    def use(self, factories: Sequence[CredentialFactory], readers: Sequence[CredentialReader]) -> None:
        super().use(factories, readers)
        names = [reader.field for reader in readers]
        self._fields = frozenset() if None in names else frozenset([b"Authorization", *filter(None, names)])

    def enter(self, request: Request, view: View) -> Responding:
        """Return the coroutine of the response of a view, or of a challenge."""
        # Not a coroutine itself: most requests have no credentials, and cost no more than this test.
        if self._fields and request.fields.keys().isdisjoint(self._fields):
            return view(request)
        return super().enter(request, view)

    async def _turn_away(
        self, refusal: Refused | None, factory: CredentialFactory | None, request: Request, view: View, *, ambient: bool
    ) -> Response | StreamedResponse | None:
        if refusal is not None and not (factory is None and ambient):
            return await self._challenge(refusal, factory, request)
        if isinstance(refusal, UnprovenError) and not request.is_api:
            sent_back = next(filter(None, (reader.send_back(request) for reader in self._readers)), None)
            if sent_back is not None:
                return sent_back
        request.authentication = None
        request.is_shielded = False
        return None if request.channel is None else await view(request)


def _advise(schemes: Collection[bytes], readers: Sequence[CredentialReader]) -> Advice:
    """Return how a person can sign in where the schemes of `Authorization` and the readers may be used."""
    sentence = ""
    if not {b"basic", b"digest"}.isdisjoint(schemes):
        sentence = "Reload this page, and enter your user name and password when the browser asks for them."
    elif not readers:
        sentence = "This page is for programs that send an access token."
    forms = [reader.form for reader in readers if reader.form is not None]
    return Advice(sentence, forms[0], "Sign in with the form") if forms else Advice(sentence)


async def _add_challenges(
    factories: Sequence[CredentialFactory], used: CredentialFactory | None, refusal: Refused | None, request: Request
) -> None:
    for factory in factories:
        for challenge in await factory.challenges(refusal if factory is used else None, request):
            request.add_header(b"WWW-Authenticate", challenge)


def is_preflight(request: Request) -> bool:
    """Return whether a request is a CORS preflight, which never has credentials."""
    fields = request.fields
    return request.method == b"OPTIONS" and b"Origin" in fields and b"Access-Control-Request-Method" in fields


# A preflight never has credentials (Fetch standard §4.8). Nothing is allowed by this answer.
_PREFLIGHT = make_no_content({b"Allow": b"GET, HEAD"})


def outcome_of(error: Exception) -> str:
    """Return the outcome of credentials that did not let a request in (`postd.auth.identity.AuthenticationResult`)."""
    match error:
        case StaleNonceError():
            return "stale"
        case UnprovenError():
            return "unproven"
        case InsufficientScopeError():
            return "forbidden"
        case Refused() | Problem():  # a `Problem` is about the request, such as credentials for another address
            return "refused"
        case TooManyFailuresError():
            return "throttled"
    return "unavailable"


def _split_authorization(request: Request) -> tuple[bytes, bytes]:
    """Return the scheme's name in lower case, and the rest of the field; both empty if there is no `Authorization`.

    Raises:
        Problem: there are two of them, or it is too large.
    """
    values = request.fields.get(b"Authorization")
    if values is None:
        return b"", b""
    if len(values) > 1:
        raise Problem(400, "The request has more than one Authorization field.")
    value = values[0]
    if len(value) > AUTHORIZATION_MAX_BYTES:
        raise Problem(431, "The Authorization field is too large.")
    scheme, _, rest = value.partition(b" ")
    if b"\t" in scheme:
        scheme, _, rest = value.partition(b"\t")
    return scheme.lower(), rest.strip(b" \t")

"""Sign-in at an OpenID provider: the pages below `login/<id>` (reference: Sign-in by OpenID Connect)."""

import re
from collections.abc import Mapping
from http import HTTPStatus

from msgspec.structs import replace
from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from postd.auth.credentials import Refused, log_refusal, run_to_completion
from postd.auth.identity import AuthenticationResult
from postd.auth.portal import CoroutinePortal
from postd.auth.sign_in import SCHEME, AuthorizationCode, CodeIdentity, Provider
from postd.errors import IssuerUnavailableError, PostdError
from postd.http.errors import (
    Advice,
    Problem,
    make_problem_document,
    make_problem_response,
    retry_after_text,
    to_problem,
)
from postd.http.interface import Request
from postd.http.pages.template import wants_html
from postd.http.peer import PeerResolver
from postd.http.responses import TEXT, Response, make_redirect, make_response
from postd.http.urlencoded import decode_form, decode_query
from postd.protect.cookie import below, expire_cookie, set_cookie
from postd.protect.guard import outcome_of
from postd.protect.login import LoginViews
from postd.protect.login_form import decode_next
from postd.protect.pages import Page
from postd.protocol.jwt import TokenError
from postd.protocol.sealing import seal, unseal
from postd.protocol.sign_in import (
    PENDING_MAX,
    PENDING_MAX_BYTES,
    PENDING_S,
    Callback,
    CallbackError,
    PendingSignIn,
    cookie_name_of,
    decode_callback,
)
from postd.store.interface import LoginStore

COOKIE_MAX_BYTES = 3800
"""The longest value of a cookie: browsers take 4,096 bytes with name and attributes."""

EXPIRED_MAX = 32
"""How many cookies a response expires."""

KEY = "sign-in"
"""The name of the key that seals cookies, in the store."""

_COOKIE = re.compile(rb"(?:^|;)[ \t]*+(sign-in-[A-Za-z0-9_-]{12})=([^;]*+)")

_log = Logger()


class SignInViews:
    """The pages of one provider.

    Args:
        provider: the provider.
        login: begins sessions, and shows the form again.
        portal: checks authorization codes.
        clients: resolves client and origin of requests.
        store: keeps which states and logout tokens were used.
        sign_in: the path of the form.
    """

    def __init__(  # noqa: PLR0913 - all that the pages need
        self,
        provider: Provider,
        login: LoginViews,
        portal: CoroutinePortal,
        clients: PeerResolver,
        store: LoginStore,
        *,
        sign_in: str,
    ) -> None:
        self._provider = provider
        self._login = login
        self._portal = portal
        self._clients = clients
        self._store = store
        self._path = below(sign_in, f"login/{provider.id}")
        # With the fingerprint, a code is not sent to another provider that has got the id since (mix-up).
        self._purpose = f"{provider.id} {provider.fingerprint.hex()}"
        self._again = Advice(path=self._path, link=f"Sign in with {provider.name}")

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by their names below the path of the form."""
        name = f"login/{self._provider.id}"
        return {
            name: Page({b"GET": self.begin}, self._clients),
            f"{name}/callback": Page({b"GET": self.finish}, self._clients),
            f"{name}/back-channel-logout": Page({b"POST": self.end_sessions}, self._clients),
        }

    async def begin(self, request: Request) -> Response:
        """Redirect to the provider; what the callback needs is in a cookie."""
        parameters = decode_query(request)
        back = decode_next(parameters)
        origin = self._clients.origin(request)
        if origin is None:
            raise Problem(400, "The request names no host, so that the provider could not lead back here.")
        uri, fresh = f"{origin}{self._path}/callback", parameters.get("fresh") == ["1"]
        pending = PendingSignIn.begin(uri, (back or b"").decode("ascii"), self._provider.now(), fresh=fresh)
        try:
            url = await self._provider.authorization_url(pending)
        except IssuerUnavailableError as error:
            return self._fail(request, error, pending)
        key = await self._store.key(KEY)
        sealed = seal(key, pending.encode(), self._purpose)
        if len(sealed) > COOKIE_MAX_BYTES:  # the path to redirect to is long
            pending = replace(pending, next="")
            sealed = seal(key, pending.encode(), self._purpose)
        name = cookie_name_of(pending.state)
        self._expire_oldest(request, key, len(name) + len(sealed))
        secure = self._login.is_secure(request)
        set_cookie(request, f"{name}={sealed}", path=self._path, max_age_s=int(PENDING_S), secure=secure)
        return make_redirect(url.encode("ascii"))

    async def finish(self, request: Request) -> Response:
        """Exchange the provider's code for a session."""
        request.authentication = AuthenticationResult(SCHEME, None)  # for the log, if the client disconnects
        pending = None
        try:
            answer = decode_callback(decode_query(request))
            pending = await self._find_pending(request, answer)
            user = await self._redeem(request, answer, pending)
            await self._login.begin_session(request, user, user.signed_in)
        except CancelledError:  # the client has disconnected; the check continues, and a refused code is counted
            raise
        except CallbackError as error:
            request.authentication = AuthenticationResult(SCHEME, "refused")
            refusal = Refused(f"{self._provider.id}: {error}")
            log_refusal(SCHEME, refusal, self._clients.address(request))
            why = "This sign-in was finished already, has taken too long, or was begun in another browser."
            return make_problem_response(request, Problem(400, why), self._again)
        except (PostdError, Refused) as error:
            request.authentication = AuthenticationResult(SCHEME, outcome_of(error))
            return self._fail(request, error, pending)
        return self._login.accept(
            request, user, pending.next.encode("ascii") or None, by=f"sign_in {self._provider.id}"
        )

    async def end_sessions(self, request: Request) -> Response:
        """End the sessions that a logout token names (OpenID Connect Back-Channel Logout 1.0 §2.5)."""
        try:
            count = await self._log_out(request)
        except (Problem, TokenError) as error:
            why = error.detail if isinstance(error, Problem) else str(error)
            refusal = Refused(f"{self._provider.id}: logout token: {why}")
            log_refusal(SCHEME, refusal, self._clients.address(request))
            return make_problem_document(Problem(400, "The logout token is not accepted; the log has the reason."))
        except PostdError as error:
            problem = to_problem(error)
            if problem is None:
                raise
            return make_problem_document(problem)
        _log.info("sign_in {id}: the provider has ended {count} sessions", id=self._provider.id, count=count)
        return make_response(HTTPStatus.OK, TEXT, b"", {b"Cache-Control": b"no-store"})

    async def _log_out(self, request: Request) -> int:
        tokens = decode_form(request).get("logout_token", [])
        if len(tokens) != 1:
            raise TokenError("logout_token is missing, or there twice")
        token = await self._provider.check_logout(tokens[0])
        if not await self._store.use_proof(token.id, expires=token.expires):
            raise TokenError("its jti was used before, or may have been")
        fingerprint = self._provider.fingerprint
        return await self._store.end_sessions_at(fingerprint, subject=token.subject, sid=token.sid)

    async def _find_pending(self, request: Request, answer: Callback) -> PendingSignIn:
        """Return the sign-in that an answer belongs to, which is used by that.

        Raises:
            CallbackError: it belongs to none, or is not the provider's.
            IssuerUnavailableError: the provider's metadata cannot be fetched, so that `iss` cannot be checked.
        """
        key, name = await self._store.key(KEY), cookie_name_of(answer.state)
        found = [self._open(key, value) for cookie, value in _cookies(request) if cookie == name]
        candidates = [one for one in found if one is not None and one.state == answer.state]
        pending = answer.check_state(candidates[0] if candidates else None, self._provider.now())
        metadata = await self._provider.keys.find_metadata()
        if not await self._store.use_proof(pending.id, expires=pending.expires):
            raise CallbackError("state was used before, or may have been")
        expire_cookie(request, name, path=self._path)
        answer.check_issuer(self._provider.url, metadata)
        return pending

    async def _redeem(self, request: Request, answer: Callback, pending: PendingSignIn) -> CodeIdentity:
        """Return the user whom the provider has signed in.

        Raises:
            Refused: it has signed nobody in.
        """
        address = self._clients.address(request)
        if answer.error:
            raise log_refusal(SCHEME, DeniedError(self._provider.id, answer.error), address)
        credentials = AuthorizationCode(self._provider.id, answer.code, pending, address)
        user = await run_to_completion(self._portal.authenticate(credentials))
        assert isinstance(user, CodeIdentity)
        return user

    def _fail(self, request: Request, error: Exception, pending: PendingSignIn | None) -> Response:
        """Return the response to a sign-in that has failed: the form with an alert, to a browser."""
        back = {} if pending is None or not pending.next else {"next": [pending.next]}
        name = self._provider.name
        if isinstance(error, Refused):
            is_denied = isinstance(error, DeniedError) and error.is_denied
            why = f"{name} did not sign you in: access was denied." if is_denied else f"{name} did not sign you in."
            return self._login.refuse(request, back, why, failed=False)
        problem = to_problem(error)
        assert problem is not None
        if isinstance(error, IssuerUnavailableError):
            problem = Problem(503, f"{name} cannot be reached.", headers=problem.headers)
        if not wants_html(request):
            return make_problem_response(request, problem)
        return self._login.show_alert(request, problem, back, f"{problem.detail} {retry_after_text(problem)}".strip())

    def _expire_oldest(self, request: Request, key: bytes, size: int) -> None:
        """Expire the oldest pending sign-ins of a browser, so that a new one of this size has room."""
        kept = []
        for name, value in _cookies(request):
            pending = self._open(key, value)
            kept.append((-1.0 if pending is None else pending.begun, name, len(name) + len(value)))
        for number, (begun, name, its_size) in enumerate(sorted(kept, reverse=True)):
            size += its_size
            if begun < 0 or number + 1 >= PENDING_MAX or size > PENDING_MAX_BYTES:
                if number >= PENDING_MAX + EXPIRED_MAX:
                    break
                expire_cookie(request, name, path=self._path)

    def _open(self, key: bytes, value: bytes) -> PendingSignIn | None:
        content = unseal(key, value, self._purpose)
        return None if content is None else PendingSignIn.decode(content)


class DeniedError(Refused):
    """An error in place of a code (RFC 6749 §4.1.2.1, OpenID Connect Core §3.1.2.6)."""

    def __init__(self, provider: str, error: str) -> None:
        shown = error if re.fullmatch(r"[a-z_]{1,40}", error) else f"an error of {len(error)} characters"
        super().__init__(f"{provider}: the provider answers {shown}")
        self.is_denied = error == "access_denied"


def _cookies(request: Request) -> list[tuple[str, bytes]]:
    """Return the cookies of pending sign-ins at this provider."""
    lines = b";".join(request.fields.get(b"Cookie", []))
    return [(name.decode("ascii"), value.rstrip()) for name, value in _COOKIE.findall(lines)]

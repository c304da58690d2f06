"""Form login as a client: one session for all requests."""

from http.cookiejar import CookieJar
from typing import Any, NoReturn
from urllib.parse import urljoin
from urllib.request import Request

from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.client import CookieAgent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IResponse

from postd.caching import SingleFlight
from postd.client.authenticator import Authenticator
from postd.client.errors import SignInError
from postd.net.http_client import drop, single_exchange
from postd.reactor import IReactor

SIGN_IN_TIMEOUT_S = 30.0
SIGN_OUT_TIMEOUT_S = 3.0

_LOGIN, _LOGOUT, _FORM_PAGE = "/login", "/logout", "/"


class FormAuthenticator(Authenticator):
    """Signs in when the first request needs a session (single flight), and signs out on `close`.

    A session that was accepted before and is refused has ended: the request is sent again with a new session.
    """

    def __init__(self, user: str, password: str, *, origin: str, agent: IAgent, reactor: IReactor) -> None:
        self._form = {"username": user, "password": password}
        self._origin = origin
        self._agent = agent
        self._reactor = reactor
        self._jar: CookieJar | None = None
        self._accepted: CookieJar | None = None
        self._refused: CookieJar | None = None
        self._sign_in_flight = SingleFlight[str, None]()

    async def authenticate(
        self,
        method: bytes,  # noqa: ARG002
        uri: bytes,
        headers: Headers,
        previous: CookieJar | None = None,  # noqa: ARG002
    ) -> CookieJar | None:
        if self._jar is None:
            await self._sign_in_flight.run("", self._sign_in)
        jar = self._jar
        if jar is not None:
            request = Request(uri.decode("ascii"))  # noqa: S310 - the argument type of a cookie jar
            jar.add_cookie_header(request)
            cookies = [*headers.getRawHeaders(b"Cookie", []), (request.get_header("Cookie") or "").encode()]
            headers.setRawHeaders(b"Cookie", [b"; ".join(filter(None, cookies))])
        return jar

    def should_retry(self, credentials: CookieJar | None, uri: bytes, response: IResponse) -> bool:
        if not self._is_unauthenticated(uri, response):
            if response.code < 400:
                self._accepted = credentials
            return False
        if credentials is not self._jar:
            return True
        self._jar, self._refused = None, credentials
        return self._accepted is credentials

    def _is_unauthenticated(self, uri: bytes, response: IResponse) -> bool:
        """Return whether a response reports a missing session: 401 by the API, a redirect to the form by a page."""
        location = response.headers.getRawHeaders(b"Location", [b""])[0].decode("latin-1")
        leads_to_form = urljoin(uri.decode("ascii"), location) == urljoin(self._origin, _FORM_PAGE)
        return response.code == 401 or (response.code in {302, 303} and leads_to_form)

    async def _sign_in(self) -> None:
        jar = CookieJar()
        response = await self._post(_LOGIN, jar, self._form, SIGN_IN_TIMEOUT_S)
        match response.code:
            case 302 | 303 if len(jar):
                self._jar = jar
            case 401:
                raise SignInError("user or password is wrong")
            case 429:
                raise SignInError("too many sign-ins have failed; try again later")
            case code:
                raise SignInError(f"the sign-in form answers {code}", temporary=code in {502, 503, 504})

    async def close(self) -> None:
        # A refused session may still be live: it may lack the right for one resource only.
        jars, self._jar, self._refused = (self._jar, self._refused), None, None
        for jar in filter(None, jars):
            try:
                await self._post(_LOGOUT, jar, {}, SIGN_OUT_TIMEOUT_S)
            except CancelledError:
                raise
            except Exception:  # noqa: BLE001, S110 - the session expires on the server anyway
                pass

    async def _post(self, path: str, jar: CookieJar, form: dict[str, str], timeout_s: float) -> Any:
        client = HTTPClient(CookieAgent(self._agent, jar))
        url = urljoin(self._origin, path)
        posting: Deferred[Any] = client.post(url, data=form, **single_exchange(self._reactor))
        response = await posting.addTimeout(timeout_s, self._reactor, _raise_timeout)
        drop(response)
        return response


def _raise_timeout(_: object, seconds: float) -> NoReturn:
    raise SignInError(f"the sign-in form: no response within {seconds:.0f} s", temporary=True)

"""Sign-in by form, and the cookies that come of it."""

from http.cookiejar import CookieJar
from typing import Any, NoReturn, cast
from urllib.parse import urljoin
from urllib.request import Request

from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.client import CookieAgent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent

from postd.caching import SingleFlight
from postd.client.errors import SignInError
from postd.client.signing import Signer
from postd.net.fetching import drop
from postd.reactor import IReactor

SIGN_IN_MAX_S = 30.0
SIGN_OUT_MAX_S = 3.0

_LOGIN, _LOGOUT, _START = "/login", "/logout", "/"


class FormSigner(Signer):
    """Signs in when a session is needed, once for all who wait for it, and signs out at the end.

    A session that worked and does so no more has ended: a new one is begun, and the request sent again.

    Args:
        user: the name.
        password: what goes with it.
        origin: of the server.
        agent: sends requests.
        reactor: the clock.
    """

    def __init__(self, user: str, password: str, *, origin: str, agent: IAgent, reactor: IReactor) -> None:
        self._form = {"username": user, "password": password}
        self._origin = origin
        self._agent = agent
        self._reactor = reactor
        self._jar: CookieJar | None = None
        self._worked: CookieJar | None = None
        self._refused: CookieJar | None = None
        self._sign_in_flight = SingleFlight[str, None]()

    async def sign(self, method: bytes, uri: bytes, headers: Headers) -> CookieJar | None:  # noqa: ARG002
        if self._jar is None:
            await self._sign_in_flight.run("", self._sign_in)
        jar = self._jar
        if jar is not None:
            request = Request(uri.decode("ascii"))  # noqa: S310 - what a cookie jar knows a request by
            jar.add_cookie_header(request)
            cookies = [*headers.getRawHeaders(b"Cookie", []), (request.get_header("Cookie") or "").encode()]
            headers.setRawHeaders(b"Cookie", [b"; ".join(filter(None, cookies))])
        return jar

    def is_wanted_again(self, signed: CookieJar | None, uri: bytes, answer: Any) -> bool:
        if not self._is_signed_out(uri, answer):
            if answer.code < 400:
                self._worked = signed
            return False
        if signed is not self._jar:
            return True
        self._jar, self._refused = None, signed
        return self._worked is signed

    def _is_signed_out(self, uri: bytes, answer: Any) -> bool:
        """Tell whether an answer is one to strangers: the API's, or a page's, which leads to the form."""
        location = answer.headers.getRawHeaders(b"Location", [b""])[0].decode("latin-1")
        leads_to_form = urljoin(uri.decode("ascii"), location) == urljoin(self._origin, _START)
        return answer.code == 401 or (answer.code in {302, 303} and leads_to_form)

    async def _sign_in(self) -> None:
        jar = CookieJar()
        answer = await self._post(_LOGIN, jar, self._form, SIGN_IN_MAX_S)
        match answer.code:
            case 302 | 303 if len(jar):
                self._jar = jar
            case 401:
                raise SignInError("user or password is wrong")
            case 429:
                raise SignInError("too many sign-ins have failed; try again later")
            case code:
                raise SignInError(f"the sign-in form answers {code}", passing=code in {502, 503, 504})

    async def close(self) -> None:
        # A session that is not good for what was asked may be one all the same.
        jars, self._jar, self._refused = (self._jar, self._refused), None, None
        for jar in filter(None, jars):
            try:
                await self._post(_LOGOUT, jar, {}, SIGN_OUT_MAX_S)
            except CancelledError:
                raise
            except Exception:  # noqa: BLE001, S110 - it ends by itself, too; that it did not end now harms nobody
                pass

    async def _post(self, path: str, jar: CookieJar, form: dict[str, str], most_s: float) -> Any:
        client = HTTPClient(CookieAgent(self._agent, jar))
        asking: Deferred[Any] = client.post(
            urljoin(self._origin, path),
            data=form,
            allow_redirects=False,
            unbuffered=True,
            reactor=cast("Any", self._reactor),
        )
        answer = await asking.addTimeout(most_s, self._reactor, _say_late)
        drop(answer)
        return answer


def _say_late(_: object, seconds: float) -> NoReturn:
    raise SignInError(f"the sign-in form has not answered within {seconds:.0f} s", passing=True)

"""The session cookie (spec: Session; reference: Sessions)."""

import re
from collections.abc import Callable
from urllib.parse import quote

from postd.auth.credentials import SessionCredentials
from postd.http.interface import Request
from postd.http.navigation import is_navigation
from postd.http.responses import Response, make_redirect
from postd.protect.login_form import LoginForm
from postd.protocol.local_path import LOCAL_PATH_MAX_BYTES
from postd.protocol.session import hash_session_id

_OPENING = frozenset({b"GET", b"HEAD"})
_SESSION = re.compile(rb"(?:^|;)[ \t]*+session=([^;]*+)")


def below(folder: str, name: str) -> str:
    """Return the path of a name below another path."""
    return f"{folder.rstrip('/')}/{name}"


def make_challenge(realm: str, sign_in: str) -> bytes:
    """Return a challenge that names the form below the path `sign_in`: a 401 must have one (RFC 9110 §15.5.2).

    No browser implements a scheme of this name: it shows the body of the response, without a prompt.
    """
    return f'Cookie realm="{realm}", form-action="{below(sign_in, "login")}", cookie-name=session'.encode("ascii")


SendBack = Callable[[Request, bytes], Response | None]
"""Returns the page that sends a browser back to the same address, with a challenge; None if it was there already."""


class SessionReader:
    """`postd.protect.guard.CredentialReader` of sessions."""

    scheme = "session"
    field: bytes | None = b"Cookie"
    ambient = True

    def __init__(self, realm: str, sign_in: str, page: LoginForm, send_back: SendBack | None = None) -> None:
        self.challenge = make_challenge(realm, sign_in)
        self.form: str | None = sign_in
        self._page = page
        self._send_back = send_back
        self._sign_in = sign_in.encode("ascii")
        self._to_form = make_redirect(self._sign_in)

    def read(self, request: Request) -> SessionCredentials | None:
        return decode_session_cookies(request)

    def send_back(self, request: Request) -> Response | None:
        if self._send_back is None or not is_unproven(request) or not _opens_page(request):
            return None
        return self._send_back(request, self.challenge)

    def redirect_to_sign_in(self, request: Request, back: bytes) -> Response | None:
        """Redirect to the form (spec: `/home` without a valid cookie); an invalid cookie is deleted.

        Where the request has a form of a browser, the sign-in page carries it. A session without a proof of the device
        that it is bound to keeps its cookie: the browser is sent back once, and other requests that a redirect would
        lead away get a 401 (None).
        """
        sent_back, unproven = self.send_back(request), is_unproven(request)
        if sent_back is not None:
            return sent_back
        if not unproven and decode_session_cookies(request) is not None:
            expire_session_cookie(request)
        carrying = self._page.carry(request, self.challenge)
        if carrying is not None:
            return carrying
        if unproven and not _opens_page(request) and (back or request.method not in _OPENING):
            return None
        if not back or len(back) > LOCAL_PATH_MAX_BYTES:
            return self._to_form
        return make_redirect(b"%b?next=%b" % (self._sign_in, quote(back, safe="/").encode("ascii")))


def _opens_page(request: Request) -> bool:
    return request.method in _OPENING and is_navigation(request)


def is_unproven(request: Request) -> bool:
    """Return whether a request has a live session, and no proof of the device that the session is bound to."""
    return request.authentication is not None and request.authentication.outcome == "unproven"


def decode_session_cookies(request: Request) -> SessionCredentials | None:
    """Return the distinct well-formed session identifiers among the cookies of our name, as hashes.

    Returns:
        Credentials, which have no hash if no value is well-formed; None if there is no cookie of that name.
    """
    field_lines = request.fields.get(b"Cookie")
    if field_lines is None:
        return None
    cookies = b";".join(field_lines)
    values = {value.rstrip() for value in _SESSION.findall(cookies)}
    if not values:
        return None
    hashes = (hash_session_id(value.decode("latin-1")) for value in values)
    return SessionCredentials(tuple(id_hash for id_hash in hashes if id_hash is not None), cookies)


def set_session_cookie(request: Request, session_id: str, *, secure: bool) -> None:
    set_cookie(request, f"session={session_id}", secure=secure)


def expire_session_cookie(request: Request) -> None:
    """Make the browser forget the cookie (spec: "an expired cookie is set")."""
    expire_cookie(request, "session")


def set_cookie(request: Request, pair: str, *, path: str = "/", max_age_s: int | None = None, secure: bool) -> None:
    """Set a cookie, which scripts do not see; without a `max_age_s` it ends with the browser."""
    # A header line of our own: Twisted's addCookie has another order and another spelling than spec: Session.
    age = "" if max_age_s is None else f"; Max-Age={max_age_s}"
    value = f"{pair}; Path={path}{age}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
    request.add_header(b"Set-Cookie", value.encode("ascii"))


def expire_cookie(request: Request, name: str, *, path: str = "/") -> None:
    """Make the browser forget a cookie."""
    value = f"{name}=; Path={path}; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=0"
    request.add_header(b"Set-Cookie", value.encode("ascii"))

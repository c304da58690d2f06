"""The page with the sign-in form, and forms that it carries: forms that were sent after their session had ended.

Without a script the page is the only place that has what the user typed. It is in a hidden field of the page, then of
the request that signs in, and never in a URL. It is not sent again by itself: the resource shows it
(`ProtectedResource.resume`), or the user presses a button.
"""

from collections.abc import Callable, Collection, Mapping
from html import escape
from http import HTTPStatus
from string import Template
from urllib.parse import quote, urlencode

from postd.http.errors import Problem
from postd.http.interface import Request
from postd.http.pages.template import make_html_response, read_file, wants_html
from postd.http.peer import PeerResolver
from postd.http.responses import PAGE_HEADERS, Response
from postd.http.urlencoded import FORM_MAX_BYTES, decode_fields, is_form
from postd.protect.passkey_form import SCRIPT, PasskeyForm
from postd.protocol.host import is_loopback
from postd.protocol.local_path import encode_local_path

CARRIED_FORM_MAX_BYTES = 32 * 1024
"""Size limit of a sign-in that carries a form: three bytes for each of the form's, a name and a password."""

ENDED = "Your session has ended. Sign in again: what you sent was not stored, and is kept."

_FORM = Template(read_file(__package__, "login.html"))
_BUTTON = Template('<a class="button" href="$href"$target>Sign in with $name</a>\n')
_SEND_AGAIN = Template(read_file(__package__, "send-again.html"))
_HIDDEN = Template('<input type="hidden" name="$name" value="$value">\n')
_NOTICE = Template('<div class="notice">\n$content</div>\n')
_ALERT = Template('<p class="alert" id="alert" role="alert">$why</p>\n')


class LoginForm:
    """Renders the page with the form.

    Args:
        clients: refuses cross-site requests.
        realm: the heading of the pages.
        login: the path that the form is sent to.
        below_form: HTML below the form.
        links: HTML between the two, for clients that prefer HTML.
        no_accounts: HTML above the form for these clients while there are no accounts: for those on this machine, and
            for all others.
        has_accounts: returns whether there are accounts.
        providers: the names of the OpenID providers by their ids, for which the page has buttons.
        passkeys: renders the button for passkeys, None for no such button.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        clients: PeerResolver,
        realm: str,
        *,
        login: str,
        below_form: str,
        links: str,
        no_accounts: tuple[str, str],
        has_accounts: Callable[[], bool],
        providers: Mapping[str, str],
        passkeys: PasskeyForm | None = None,
    ) -> None:
        self._clients = clients
        self._realm = realm
        self._login = login
        self._below_form = below_form
        self._links = links
        self._no_accounts = no_accounts
        self._has_accounts = has_accounts
        self._providers = providers
        self._passkeys = passkeys

    def make(  # noqa: PLR0913 - most have their defaults
        self,
        status: HTTPStatus,
        fields: Mapping[str, list[str]],
        why: str = "",
        headers: Mapping[bytes, bytes] = PAGE_HEADERS,
        *,
        browser: Request | None = None,
        failed: bool = True,
    ) -> Response:
        """Return the page with the form: empty, or with an alert (`why`).

        After a failure it has the user name of the fields sent. `next` and a carried form stay. `browser` is the
        request of a client that prefers HTML, None for another client. Browsers get buttons for passkeys and for the
        providers, and no fields where no account has a password.
        """
        back = decode_next(fields)
        user = fields.get("username", [""])[0]
        again = bool(why) and failed
        alert = make_alert(why) if why else ""
        hidden = {} if back is None else {"next": back.decode("ascii")}
        if back is not None and len(fields.get("form", ())) == 1:
            hidden["form"] = fields["form"][0]
        buttons = passkey = ""
        if browser is not None:
            buttons = self._make_buttons(fields, back)
            if self._passkeys is not None and (self._providers or self._has_accounts()):
                passkey = self._passkeys.make(browser, make_hidden(hidden))
        script = SCRIPT if passkey else None
        below = passkey + buttons + ("" if browser is None else self._links) + self._below_form
        if buttons and not self._has_accounts():
            content = alert + below
            return make_html_response(status, "Sign in", content, site_name=self._realm, headers=headers, script=script)
        notice = "" if browser is None else self._notice(browser)
        parts = {
            "login": escape(self._login),
            "next": make_hidden(hidden),
            "notice": notice,
            "alert": alert,
            "webauthn": " webauthn" if passkey else "",
            "username": f' value="{escape(user)}"' if again else "" if notice else " autofocus",
            "password": ' aria-describedby="alert" autofocus' if again else "",
            "below": below,
        }
        content = _FORM.substitute(parts)
        return make_html_response(status, "Sign in", content, site_name=self._realm, headers=headers, script=script)

    def _make_buttons(self, fields: Mapping[str, list[str]], back: bytes | None) -> str:
        """Return the links that begin a sign-in at a provider.

        A carried form does not come back from there: the links open another tab, and this page has a button that sends
        the form after the sign-in.
        """
        carried = decode_carried(fields) if back is not None and self._providers else {}
        target = ' target="_blank"' if carried else ""
        query = "" if back is None else f"?next={quote(back, safe='/')}"
        links = [
            _BUTTON.substitute(href=escape(f"{self._login}/{id}{query}"), target=target, name=escape(name))
            for id, name in self._providers.items()  # noqa: A001 - as in the settings
        ]
        if carried and back is not None:
            links.append(_send_again(back, carried))
        return "".join(links)

    def carry(self, request: Request, challenge: bytes, *, without: Collection[str] = ()) -> Response | None:
        """Return the page with the form that carries the form of a request, `without` some fields, a 401.

        None if the request is not the form of a browser, or too large, or was sent by a page of another site.
        """
        body = request.body
        if not (request.method == b"POST" and body and len(body) <= FORM_MAX_BYTES and is_form(request)):
            return None
        if not wants_html(request) or encode_local_path(request.uri.decode("latin-1")) is None:
            return None
        try:
            self._clients.refuse_cross_site(request)
        except Problem:
            return None
        if without:
            rest = {name: values for name, values in decode_fields(body).items() if name not in without}
            body = urlencode(rest, doseq=True).encode("ascii")
            if not rest:
                return None
        request.add_header(b"Vary", b"Accept")
        fields = {"next": [request.uri.decode("latin-1")], "form": [body.decode("latin-1")]}
        headers = {**PAGE_HEADERS, b"WWW-Authenticate": challenge}
        return self.make(HTTPStatus.UNAUTHORIZED, fields, ENDED, headers, browser=request, failed=False)

    def ask_to_send_again(self, path: bytes, form: Mapping[str, list[str]]) -> Response:
        """Return the page after a sign-in, with a button that sends a carried form to its path."""
        return make_html_response(HTTPStatus.OK, "Signed in", _send_again(path, form), site_name=self._realm)

    def _notice(self, request: Request) -> str:
        """Return the notice that there are no accounts, while there are none."""
        if self._has_accounts() or self._providers or not any(self._no_accounts):
            return ""
        here, elsewhere = self._no_accounts
        return _NOTICE.substitute(content=here if is_loopback(self._clients.address(request)) else elsewhere)


def _send_again(path: bytes, form: Mapping[str, list[str]]) -> str:
    fields = "".join(make_hidden({name: value}) for name, values in form.items() for value in values)
    return _SEND_AGAIN.substitute(path=escape(path.decode("ascii")), fields=fields)


def make_alert(why: str) -> str:
    """Return an alert, with the id `alert`."""
    return _ALERT.substitute(why=escape(why))


def make_hidden(fields: Mapping[str, str]) -> str:
    """Return hidden fields of a form."""
    return "".join(_HIDDEN.substitute(name=escape(name), value=escape(value)) for name, value in fields.items())


def decode_next(fields: Mapping[str, list[str]]) -> bytes | None:
    """Return where `next` leads to, None if it is absent, repeated or unsafe."""
    values = fields.get("next", [])
    return encode_local_path(values[0]) if len(values) == 1 else None


def decode_carried(fields: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
    """Return the fields of the form that a sign-in carries; none if it carries none, or no valid one."""
    values = fields.get("form", [])
    return decode_fields(values[0].encode("latin-1", "replace")) if len(values) == 1 else {}

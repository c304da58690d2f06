"""Protected pages (spec: Protected page): a text with the name of the user. `postd.web.folder` serves files."""

from functools import lru_cache
from http import HTTPStatus

from msgspec import Struct

from postd.auth.identity import Identity
from postd.http.errors import Problem, not_found
from postd.http.interface import Request
from postd.http.pages.template import make_html_response, wants_html
from postd.http.responses import PAGE_HEADERS, TEXT, Response, make_response


def check_method(request: Request) -> None:
    """Allow GET and HEAD only: unlike elsewhere, OPTIONS is 405 (reference: Digest).

    Raises:
        Problem: 405.
    """
    if request.method not in {b"GET", b"HEAD"}:
        raise Problem(405, "Allowed methods: GET, HEAD.", headers={b"Allow": b"GET, HEAD"})


async def show_name(request: Request) -> Response:
    """Return the page "Success" with the user's name; paths below it are 404. The spec gives no more of its body."""
    return _make_name_text(_identity_of(request).name, _PAGE_HEADERS)


BOARD_LINK = '<a href="/board">Board</a>'
DOCS_LINK = '<a href="/docs">API documentation</a>'


class Home(Struct, frozen=True):
    """`/home`: as `show_name`, with the account; a page for clients that prefer HTML, with links to board, if any,
    account, sign-out and `/docs`.

    Both forms have the link to the board as a header field (RFC 8288), too.
    """

    site_name: str
    has_board: bool

    async def show(self, request: Request) -> Response:
        identity = _identity_of(request)
        headers = _HOME_HEADERS_WITH_BOARD if self.has_board else _HOME_HEADERS
        if not wants_html(request):
            return _make_name_text(identity.account, headers)
        board = f"{BOARD_LINK}\n" if self.has_board else ""
        content = f'{board}<a href="/account">Account</a>\n<a href="/logout">Sign out</a>\n{DOCS_LINK}\n'
        title = f"Success: {identity.shown_name or identity.name}"
        return make_html_response(HTTPStatus.OK, title, content, site_name=self.site_name, headers=dict(headers))


_Headers = tuple[tuple[bytes, bytes], ...]

_PAGE_HEADERS: _Headers = (*PAGE_HEADERS.items(), (b"Vary", b"Authorization, Cookie"))
_HOME_HEADERS: _Headers = (*PAGE_HEADERS.items(), (b"Vary", b"Authorization, Cookie, Accept"))
_HOME_HEADERS_WITH_BOARD: _Headers = (*_HOME_HEADERS, (b"Link", b'</board>; rel="related"'))


def _identity_of(request: Request) -> Identity:
    """Return the client of a page that is one text.

    Raises:
        Problem: 404, the path is below the page; 405.
    """
    if request.postpath:
        raise not_found()
    check_method(request)
    result = request.authentication
    assert result is not None  # the guard has set it
    assert result.identity is not None
    return result.identity


@lru_cache(256)  # it takes a tenth of a request's time
def _make_name_text(name: str, headers: _Headers) -> Response:
    return make_response(HTTPStatus.OK, TEXT, f"Success: {name}\n".encode(), dict(headers))

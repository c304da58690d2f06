"""The page that sends a browser back to the same address, so that it proves which device it is on.

A browser does not renew its proof for a request that another site has caused, such as one of a link: neither a redirect
nor a reload changes that, but a page of this site does. An address is sent back to once; a short cookie remembers it.
"""

import re
from hashlib import sha256
from html import escape
from http import HTTPStatus
from string import Template

from postd.http.interface import Request
from postd.http.pages.template import make_html_response
from postd.http.responses import PAGE_HEADERS, Response
from postd.protocol.local_path import encode_local_path

COOKIE = "__Host-session-return"
"""The name of the cookie with the addresses, hashed."""

COOKIE_S = 60
"""How long they are remembered: a proof takes a second or two."""

ADDRESSES_MAX = 8
"""How many pages may be sent back to at the same time, as of several tabs."""

_CHARS = 12
_FOUND = re.compile(rb"(?:^|;)[ \t]*+" + COOKIE.encode() + rb"=((?:[0-9a-f]{12}\.?)*)")
_CONTENT = '<p>Your browser shows that it is the one that has signed in.</p>\n<p><a href="">Continue</a></p>\n'
_HEAD = Template('<meta http-equiv="refresh" content="0$target">\n')


def send_back(request: Request, challenge: bytes) -> Response | None:
    """Return the page, a 401; None if the browser was sent back to this address already."""
    seen = addresses_of(request)
    address = sha256(request.uri).hexdigest()[:_CHARS]
    if address in seen or len(seen) >= ADDRESSES_MAX:
        return None
    request.add_header(b"Set-Cookie", _encode_cookie(".".join([*seen, address]), COOKIE_S))
    # With the address, because a browser does not load a page again whose own address has a fragment. Another site's,
    # as of //other.example, is left out.
    path = encode_local_path(request.uri.decode("latin-1"))
    head = _HEAD.substitute(target="" if path is None else f"; url={escape(path.decode('ascii'))}")
    headers = {**PAGE_HEADERS, b"WWW-Authenticate": challenge}
    return make_html_response(
        HTTPStatus.UNAUTHORIZED, "One moment", _CONTENT, site_name=request.site_name, headers=headers, head=head
    )


def addresses_of(request: Request) -> list[str]:
    """Return the hashed addresses that a browser was sent back to a moment ago."""
    found = _FOUND.search(b";".join(request.fields.get(b"Cookie", ())))
    return [] if found is None else found[1].decode("ascii").split(".")


def forget_addresses(request: Request) -> None:
    """Make a browser forget the addresses, if it has any, once it has proved itself."""
    if addresses_of(request):
        request.add_header(b"Set-Cookie", _encode_cookie("", 0))


def _encode_cookie(value: str, max_age_s: int) -> bytes:
    return f"{COOKIE}={value}; Path=/; Max-Age={max_age_s}; Secure; HttpOnly; SameSite=Lax".encode("ascii")

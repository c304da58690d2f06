"""HTML pages: the common template, and the choice between HTML and plain text.

A page is a single response: style sheet and script are inline, and there are no images or fonts. Its content security
policy allows the style sheet, the script, and forms to this server.
"""

from base64 import b64encode
from collections.abc import Collection, Mapping
from hashlib import sha256
from html import escape
from http import HTTPStatus
from importlib.resources import files
from string import Template

from postd.http.interface import Request
from postd.http.responses import HTML, PAGE_HEADERS, Response, make_response
from postd.protocol.accept import prefers_html


def read_file(package: str, name: str) -> str:
    """Read a file of a package."""
    # As text: CRLF becomes LF, as in a browser before it computes the hash.
    return files(package).joinpath(name).read_text("utf-8")


def make_policy(style: str, script: str | None = None, targets: Collection[str] = ()) -> bytes:
    """Return the `Content-Security-Policy` of pages with this style sheet, and this script if any.

    The script may connect to this server only. Forms are sent to this server, whose redirect may lead to an origin
    among `targets`.
    """
    scripts = b"" if script is None else b"script-src %b; connect-src 'self'; " % _hash_source(script)
    forms = " ".join(["'self'", *targets]).encode("ascii")
    always = b"form-action %b; frame-ancestors 'none'; base-uri 'none'" % forms
    return b"default-src 'none'; style-src %b; %b%b" % (_hash_source(style), scripts, always)


def _hash_source(content: str) -> bytes:
    """Return the hash source of an inline element (Content Security Policy Level 3 §6.7.3.3)."""
    return b"'sha256-%b'" % b64encode(sha256(content.encode()).digest())


def fill_page(  # noqa: PLR0913 - two have their defaults
    title: str, content: str, *, site_name: str, style: str, head: str = "", heading: str = ""
) -> bytes:
    """Render a page, with plain text in its title, and HTML below its heading; UTF-8.

    The name of the site may be empty, where it is not known. `head` is HTML in the head, `heading` HTML in place of the
    name of the site and the title.
    """
    site = escape(site_name)
    above = f'<p class="site">{site}</p>\n' if site else ""
    parts = {
        "title": escape(title),
        "of_site": f" \N{EN DASH} {site}" if site else "",
        "head": head,
        "heading": heading or f"{above}<h1>{escape(title)}</h1>\n",
        "content": content,
        "style": style,
    }
    return _PAGE.substitute(parts).encode()


def make_html_response(  # noqa: PLR0913 - most have their defaults
    status: HTTPStatus,
    title: str,
    content: str,
    *,
    site_name: str = "",
    headers: Mapping[bytes, bytes] = PAGE_HEADERS,
    targets: Collection[str] = (),
    script: str | None = None,
    head: str = "",
) -> Response:
    """Return the response with a page in the common style (`fill_page`); `headers` are added as to a plain text.

    `targets` are those of `make_policy`, as is the script, which stands after the content; `head` is that of
    `fill_page`.
    """
    ending = "" if script is None else f"<script>{script}</script>\n"
    page = fill_page(title, content + ending, site_name=site_name, style=STYLE, head=head)
    policy = make_policy(STYLE, script, targets) if targets or script is not None else _POLICY
    return make_response(status, HTML, page, {**headers, b"Content-Security-Policy": policy})


def negotiate_html(request: Request) -> bool:
    """Return whether the client prefers HTML to plain text (`prefers_html`), and add `Vary: Accept` to the response."""
    request.add_header(b"Vary", b"Accept")
    return wants_html(request)


def wants_html(request: Request) -> bool:
    """Return whether the client prefers HTML to plain text, as browsers do for pages, and programs do not."""
    accept = request.fields.get(b"Accept")
    return accept is not None and prefers_html(b",".join(accept))


_PAGE = Template(read_file(__package__, "page.html"))
COLORS = read_file(__package__, "colors.css")
STYLE = COLORS + read_file(__package__, "style.css")
_POLICY = make_policy(STYLE)

"""The HTML pages: what they consist of, and those of the form login, which are made once at start.

Each carries our style sheet, and its script if it has one, within itself, and there are no images or fonts: a page is a
single answer, and its policy allows the browser nothing but those and a form sent back to us. The board's are in
`postd.web.pages.board`.
"""

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template


def read(name: str) -> str:
    """Return a file of this folder."""
    # As text: CRLF becomes LF, as a browser reads it before it computes the hash.
    return files(__name__).joinpath(name).read_text("utf-8")


def make_policy(style: str, script: str | None = None) -> bytes:
    """Return the value of Content-Security-Policy for pages with this style sheet, and this script or none.

    A script may ask us, and nobody else (contract 3).
    """
    scripts = [] if script is None else [b"script-src %b" % _hash_source(script), b"connect-src 'self'"]
    return b"; ".join(
        [
            b"default-src 'none'",
            b"style-src %b" % _hash_source(style),
            *scripts,
            b"form-action 'self'",
            b"frame-ancestors 'none'",
            b"base-uri 'none'",
        ]
    )


def _hash_source(content: str) -> bytes:
    """Name what stands between the tags, to the byte (Content Security Policy Level 3 §6.7.3.3)."""
    return b"'sha256-%b'" % b64encode(sha256(content.encode()).digest())


def fill_page(title: str, content: str, *, site_name: str, style: str) -> bytes:
    """Return a page; UTF-8.

    Args:
        title: text, the page's heading, too.
        content: HTML, what is below the heading.
        site_name: text, what stands above it.
        style: the style sheet.
    """
    parts = {"title": escape(title), "content": content, "site_name": escape(site_name), "style": style}
    return _PAGE.substitute(parts).encode()


_PAGE = Template(read("page.html"))
COLORS = read("colors.css")
STYLE = COLORS + read("style.css")

SECURITY_POLICY = make_policy(STYLE)
"""The policy of the pages of the form login."""


def make_login_page(site_name: str) -> bytes:
    """Return the page with the form of spec, "Login form"; UTF-8."""
    return fill_page("Sign in", read("login.html"), site_name=site_name, style=STYLE)


def make_logout_page(site_name: str) -> bytes:
    """Return the page whose one button signs out; UTF-8."""
    return fill_page("Sign out", read("logout.html"), site_name=site_name, style=STYLE)

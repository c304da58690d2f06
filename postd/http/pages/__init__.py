"""HTML pages: the template, and what pages share.

A page is a single response: style sheet and script are inline, and there are no images or fonts. Its content security
policy allows only these and forms to this server.
"""

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template


def read_file(package: str, name: str) -> str:
    """Read a file of a package."""
    # As text: CRLF becomes LF, as in a browser before it computes the hash.
    return files(package).joinpath(name).read_text("utf-8")


def make_policy(style: str, script: str | None = None) -> bytes:
    """Return the `Content-Security-Policy` of pages with this style sheet, and this script if any.

    The script may connect to this server only.
    """
    scripts = b"" if script is None else b"script-src %b; connect-src 'self'; " % _hash_source(script)
    always = b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    return b"default-src 'none'; style-src %b; %b%b" % (_hash_source(style), scripts, always)


def _hash_source(content: str) -> bytes:
    """Return the hash source of an inline element (Content Security Policy Level 3 §6.7.3.3)."""
    return b"'sha256-%b'" % b64encode(sha256(content.encode()).digest())


def fill_page(title: str, content: str, *, site_name: str, style: str) -> bytes:
    """Render a page, with plain text in its heading and above it, and HTML below; UTF-8."""
    parts = {"title": escape(title), "content": content, "site_name": escape(site_name), "style": style}
    return _PAGE.substitute(parts).encode()


_PAGE = Template(read_file(__name__, "page.html"))
COLORS = read_file(__name__, "colors.css")
STYLE = COLORS + read_file(__name__, "style.css")

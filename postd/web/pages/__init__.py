"""The two HTML pages of the form login, made once at start.

Each carries our one style sheet within itself, and there are no scripts, images or fonts: a page is a single answer,
and its policy allows the browser nothing but that sheet and a form sent back to us.
"""

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template


def _read(name: str) -> str:
    # As text: CRLF becomes LF, as a browser reads it before it computes the hash.
    return files(__name__).joinpath(name).read_text("utf-8")


_STYLE = _read("style.css")

SECURITY_POLICY = b"; ".join(
    [
        b"default-src 'none'",
        # Content Security Policy Level 3 §6.7.3.3: the hash of what stands between <style> and </style>, to the byte.
        b"style-src 'sha256-%s'" % b64encode(sha256(_STYLE.encode()).digest()),
        b"form-action 'self'",
        b"frame-ancestors 'none'",
        b"base-uri 'none'",
    ]
)
"""The value of Content-Security-Policy that both pages are to be sent with (contract 3)."""


def make_login_page(site_name: str) -> bytes:
    """Return the page with the form of spec, "Login form"; UTF-8."""
    return _fill("Sign in", "login.html", site_name)


def make_logout_page(site_name: str) -> bytes:
    """Return the page whose one button signs out; UTF-8."""
    return _fill("Sign out", "logout.html", site_name)


def _fill(title: str, content: str, site_name: str) -> bytes:
    parts = {"title": title, "content": _read(content), "site_name": escape(site_name), "style": _STYLE}
    return Template(_read("page.html")).substitute(parts).encode()

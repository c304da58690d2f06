"""Browsers in words, by the field `User-Agent` (RFC 9110 §10.1.5).

Clients may send anything there: only the words below are ever shown, never a part of the field.
"""

import re
from collections.abc import Mapping

UNKNOWN = "unknown browser"
"""The words for a browser that is not known."""

_READ_MAX_BYTES = 512

# In order: most browsers name those before them, too. Chromium names itself Chrome, and so do its smaller relatives.
_BROWSERS: Mapping[bytes, str] = {
    rb"(?:Edg|EdgA|EdgiOS)/": "Edge",
    rb"(?:OPR|OPT|OPiOS)/": "Opera",
    rb"SamsungBrowser/": "Samsung Internet",
    rb"Vivaldi/": "Vivaldi",
    rb"(?:Firefox|FxiOS)/": "Firefox",
    rb"(?:Chrome|HeadlessChrome|CriOS)/": "Chrome",
    rb"Version/.*Safari/": "Safari",
    rb"curl/": "curl",
    rb"Wget/": "Wget",
    rb"HTTPie/": "HTTPie",
    rb"python-requests/": "requests",
    rb"python-httpx/": "httpx",
}
_SYSTEMS: Mapping[bytes, str] = {
    rb"Windows": "Windows",
    rb"Android": "Android",
    rb"iPhone": "iPhone",
    rb"iPad": "iPad",
    rb"Macintosh": "macOS",
    rb"CrOS": "ChromeOS",
    rb"Linux": "Linux",
    rb"FreeBSD": "FreeBSD",
}


def describe_browser(user_agent: bytes) -> str:
    """Return the browser and its system, such as "Firefox on Windows"."""
    read = user_agent[:_READ_MAX_BYTES]
    browser = _find(_BROWSERS, read)
    system = _find(_SYSTEMS, read)
    return f"{browser} on {system}" if browser and system else browser or UNKNOWN


def _find(names: Mapping[bytes, str], read: bytes) -> str:
    return next((name for pattern, name in names.items() if re.search(rb"\b" + pattern, read)), "")

"""Links in the texts of posts: what a text shows as a link, as HTML. `board.js` does the same, by the same pattern.

A link begins with `http://` or `https://`, and is shown exactly as written. It has no user name: in
`https://bank.example@evil.example/` the host is the part after the `@`. The ASCII form of a host with other letters
(`xn--...`) is shown beside the link (`data-host`), because letters of several scripts look the same.
"""

import re
from html import escape

from hyperlink import URL

URL_PATTERN = (
    "(?<![0-9A-Za-z_+])([Hh][Tt][Tt][Pp][Ss]?://)"
    # Not in a URL: white space, controls, format characters, quotation marks and dashes; punctuation of CJK.
    r'([^\x00-\x20\x7f-\xa0\xab\xad\xbb<>"\\^`{|}\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f'
    r"\u2000-\u206f\u3000-\u303f\u3164\ufe00-\ufe0f\ufeff\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\uffa0"
    "\ufff0-\uffff\U000e0000-\U000e0fff]+)"
)
"""The scheme and the rest of a URL in a text; a regular expression of Python, and of JavaScript with the flag `u`."""

HOST_PATTERN = (
    r"^(\[[0-9A-Fa-f:.]+\]|[^\x00-,/:-@\[-^`{-\x7f]*[^\x00-/:-@\[-^`{-\x7f])"
    r"(?::[0-9]{1,5})?(?=[/?#]|$)"
)
"""The host at the beginning of the rest of a URL: an address of IPv6, or a name, before the end of the authority."""

_URL = re.compile(URL_PATTERN)
_HOST = re.compile(HOST_PATTERN)
_NAME = re.compile("[0-9a-z._-]+")
_TRAILING = frozenset("?!.,:;*_~'")
_OPENING = {")": "(", "]": "["}
_LINK = '<a href="{target}" rel="nofollow ugc noopener"{host}>{shown}</a>'


def link_urls(text: str) -> str:
    """Return a text as HTML, in which its URLs are links. The work is proportional to the length of the text."""
    if "://" not in text:
        return escape(text)
    parts = []
    end = 0
    for found in _URL.finditer(text):
        scheme, rest = found[1], found[2][: _length(found[2])]
        host = _HOST.match(rest)
        shown_host = host and _to_ascii(host[1])
        if host and shown_host:
            parts.append(escape(text[end : found.start()]))
            end = found.start() + len(scheme) + len(rest)
            is_ascii = host[1].isascii()
            link = _LINK.format(
                target=escape(scheme + (rest if is_ascii else shown_host + rest[len(host[1]) :])),
                host="" if is_ascii else f' data-host="{escape(shown_host)}"',
                shown=escape(text[found.start() : end]),
            )
            parts.append(link)
    return "".join([*parts, escape(text[end:])])


def _length(rest: str) -> int:
    """Return the length of the rest of a URL without the punctuation of the sentence around it."""
    extra = {closing: rest.count(closing) - rest.count(opening) for closing, opening in _OPENING.items()}
    length = len(rest)
    while length:
        last = rest[length - 1]
        if extra.get(last, 0) > 0:
            extra[last] -= 1
        elif last not in _TRAILING:
            break
        length -= 1
    return length


def _to_ascii(host: str) -> str:
    """Return the ASCII form of a host, "" if it has none."""
    if host.isascii():
        return host
    try:
        encoded = URL(host=host).to_uri().host
    except ValueError:
        return ""
    return encoded if _NAME.fullmatch(encoded) else ""

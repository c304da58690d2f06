"""Redaction of requests for the log, by allow-list (reference: Log).

Clients put passwords and tokens anywhere, in any encoding. So a part of a request is logged only if it is a route, a
number or an existing file, or if it matches a pattern (an origin, a product of `User-Agent`). The rest of a
field becomes one `~N`, where N is its length in bytes as sent.

The path of a 404 is what an operator searches for, so it is logged without the segments that look like secrets.
"""

import re
from functools import lru_cache
from urllib.parse import quote

from postd.protocol.percent import percent_decode

METHODS = frozenset(
    b"ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY "
    b"MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PRI PROPFIND PROPPATCH PUT "
    b"QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL".split()
)
"""The methods of the IANA registry (RFC 9110 §16.1)."""

FILE_MAX_BYTES = 512
"""Length limit of a logged file path."""

USER_MAX_CHARS = 512
"""Length limit of a logged user name, after escaping."""

MISSING_PATH_MAX_CHARS, MISSING_SEGMENT_MAX_BYTES = 128, 32
"""Length limits of the logged path of a 404, and of one of its segments: a longer segment could be a token."""

EXAMINED_PARAMETERS_MAX = 8
"""Limit on the query parameters that are examined."""

PRODUCTS_MAX, AGENT_MAX_BYTES = 8, 512
"""Limits on the logged products of a `User-Agent`, and on the part of the field that is examined."""

ORIGIN_MAX_BYTES = 160
"""Length limit of the logged origin of a `Referer`."""

_CACHED_MAX = 1024
"""Limit on the cached patterns of routes, and on the cached user names, which are logged in full."""

_PARAMETER = re.compile(rb"(?:after|before|limit)=[0-9]{1,16}")
# A label of 25 characters or more could be a token, and is rare in host names.
_LABEL = rb"[a-z0-9-]{1,24}"
_ORIGIN = re.compile(rb"https?://(?:%b(?:\.%b){0,5}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?" % (_LABEL, _LABEL))
# postd's own client sends no version.
_PRODUCT = re.compile(rb"postd|[A-Za-z-]{1,24}/[0-9]{1,8}(?:\.[0-9]{1,8}){0,4}")
# What could end the quoted request line of a log, or be taken for an escape or a space.
_UNPRINTABLE = re.compile(rb"[^!#-\[\]-~]")
# Credentials in a URL or a parameter; the beginning of a token; a hash or a key.
_SECRET = re.compile(rb"[@=:]|(?:\A|/)(?:eyJ|postd_)|[0-9A-Fa-f]{16}")
_RANDOM_MIN = 20
_LETTERS_AND_DIGITS = re.compile(rb"[0-9A-Za-z]+")


def show_method(method: bytes) -> str:
    return method.decode("ascii") if method in METHODS else _count(len(method))


def show_target(target: bytes, path: bytes, route: str | None, file: bytes | None, *, missing: bool = False) -> str:
    """Return the redacted path and query of a request target, without white space: `/private/~7`, `/post?limit=20&~37`.

    Kept are the segments of the route, numeric ids, the path of an existing file, numeric paging parameters, and the
    segments of a path that is `missing` (404) if they do not look like secrets.
    """
    if file is not None and len(file) <= FILE_MAX_BYTES:
        shown = _printable(file)
    elif missing and not _shape(route or "").fullmatch(path):
        shown = _show_missing_path(path)
    else:
        shown = _show_path(path, route or "")
    # `partition` returns the target itself where there is no query.
    return shown if path is target else shown + _show_query(target)


def _show_missing_path(path: bytes) -> str:
    shown, seen = "", 0  # how much of the path is shown, or counted
    for segment in path[1:].split(b"/"):
        is_secret = _is_secret(segment)
        word = "/" + (_count(len(segment)) if is_secret else _printable(segment))
        left = MISSING_PATH_MAX_CHARS - len(shown)
        if len(word) > left:
            part = b"" if is_secret else path[seen : seen + left]
            while len(_printable(part)) > left:
                part = part[:-1]
            return shown + _printable(part) + _count(len(path) - seen - len(part))
        shown += word
        seen += 1 + len(segment)
    return shown


def _is_secret(segment: bytes) -> bool:
    """Return whether a segment may be a secret, by its length or by what it is after percent-decoding."""
    if len(segment) > MISSING_SEGMENT_MAX_BYTES:
        return True
    while (decoded := percent_decode(segment)) != segment:
        segment = decoded
    if _SECRET.search(segment):
        return True
    words = _LETTERS_AND_DIGITS.findall(segment)
    # The words of a readable name are letters or digits, those of a random text are mixed.
    return sum(map(len, words)) >= _RANDOM_MIN and any(not word.isalpha() and not word.isdigit() for word in words)


def _printable(part: bytes) -> str:
    """Return a part of a target; what breaks a line of the log is percent-encoded."""
    return _UNPRINTABLE.sub(lambda found: b"%%%02X" % found[0][0], part).decode("ascii")


def _show_path(path: bytes, route: str) -> str:
    if path == b"*" or _shape(route).fullmatch(path):
        return path.decode("ascii")
    known = 0  # length of the part of the path that matches the route
    for segment in route.split("/")[1:]:
        sent = path[known + 1 :].partition(b"/")[0]
        if not _shape(segment).fullmatch(sent):
            break
        known += 1 + len(sent)
    rest = len(path) - known - 1  # without the slash
    return f"{path[:known].decode('ascii')}/{_count(rest) if rest else ''}"


@lru_cache(_CACHED_MAX)
def _shape(route: str) -> re.Pattern[bytes]:
    """Return the pattern of a route or a segment of one, with numbers for its variables."""
    return re.compile(re.sub("<[^>]*>", "[0-9]{1,16}", re.escape(route)).encode("ascii"))


def _show_query(target: bytes) -> str:
    _, question, query = target.partition(b"?")
    if not question:  # a target in absolute form
        return ""
    shown = [part for part in query.split(b"&", EXAMINED_PARAMETERS_MAX) if _PARAMETER.fullmatch(part)]
    rest = len(query) - sum(len(part) + 1 for part in shown)
    return "?" + "&".join([part.decode("ascii") for part in shown] + [_count(rest)] * (rest >= 0))


def show_referer(referer: bytes) -> str:
    """Return the origin of a `Referer` and the length of its path; only the length if the value is unusual."""
    match = _ORIGIN.match(referer[:ORIGIN_MAX_BYTES])
    origin, rest = (match[0], referer[match.end() :]) if match else (b"", referer)
    if not match or (rest and not rest.startswith(b"/")):
        return _count(len(referer))
    return origin.decode("ascii") + (f"/{_count(len(rest) - 1)}" if len(rest) > 1 else rest.decode("ascii"))


def show_agent(agent: bytes) -> str:
    """Return the products of a `User-Agent` (RFC 9110 §10.1.5: `curl/8.14.1`, `postd`) and the length of the rest."""
    words = agent[:AGENT_MAX_BYTES].split(b" ")
    if len(agent) > AGENT_MAX_BYTES:
        words.pop()  # it may be truncated
    shown = [word for word in words if _PRODUCT.fullmatch(word)][:PRODUCTS_MAX]
    rest = len(agent) - sum(len(word) + 1 for word in shown)
    return " ".join([word.decode("ascii") for word in shown] + [_count(rest)] * (rest >= 0))


@lru_cache(_CACHED_MAX)
def show_user(username: str) -> str:
    """Return the name of an authenticated user, percent-encoded, without white space."""
    return shorten(quote(username, safe="@+:/#"), USER_MAX_CHARS)


def shorten(text: str, most: int) -> str:
    """Truncate a text to `most` characters, followed by `...`."""
    return text if len(text) <= most else text[:most] + "..."


def _count(length: int) -> str:
    return f"~{length}"

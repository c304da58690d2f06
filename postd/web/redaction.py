"""What the log shows of a request: chosen by what postd knows, never what was sent and looks harmless.

Clients put passwords and tokens anywhere, in any encoding. So a part of a request is shown only if postd knows it (a
route, a number, a file that was found) or if its form is one of a few (an origin, a product of `User-Agent`). All else
of a field is one `[N bytes]`, N being its length as it was sent.
"""

import re
from functools import lru_cache
from typing import Any
from urllib.parse import quote

METHODS = frozenset(
    b"ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY "
    b"MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PRI PROPFIND PROPPATCH PUT "
    b"QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL".split()
)
"""The methods of the IANA registry (RFC 9110 §16.1)."""

FILE_MAX_BYTES = 512
"""The longest path of a file that is shown."""

USER_MAX_CHARS = 512
"""The longest name of a user that is shown, after escaping."""

PARAMETERS_MAX = 8
"""The parameters of a query that are looked at."""

PRODUCTS_MAX, AGENT_MAX_BYTES = 8, 512
"""The products of a `User-Agent` that are shown, and how much of the field is searched for them."""

ORIGIN_MAX_BYTES = 160
"""The longest origin of a `Referer` that is shown."""

_CACHED_MAX, _CACHED_MAX_BYTES = 1024, 256
"""How many fields of a kind are cached, and up to which length: clients repeat themselves."""

_PARAMETER = re.compile(rb"(?:after|before|limit)=[0-9]{1,16}")
# A label of 25 characters or more could be a token; a name of a host seldom has one.
_LABEL = rb"[a-z0-9-]{1,24}"
_ORIGIN = re.compile(rb"https?://(?:%b(?:\.%b){0,5}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?" % (_LABEL, _LABEL))
_PRODUCT = re.compile(rb"[A-Za-z-]{1,24}/[0-9]{1,8}(?:\.[0-9]{1,8}){0,4}")
_ODD = re.compile(r'["\\]')


def show_method(method: bytes) -> str:
    return method.decode("ascii") if method in METHODS else _count(len(method))


def show_target(request: Any) -> str:
    """Return path and query of a request target; what is not known of them as lengths.

    Shown are the segments of the route, ids that are numbers, a file that was found, and numbers of pages: for example
    `/post/[7 bytes]`, `/post?limit=20&[37 bytes]`.
    """
    target: bytes = request.uri
    path: bytes = request.path
    file: bytes | None = request.file
    if file is not None and len(file) <= FILE_MAX_BYTES:
        shown = file.decode("ascii")
    else:
        shown = _show_path(path, request.route or "")
    # `partition` returns the target itself where there is no query.
    return shown if path is target else shown + _show_query(target)


def _show_path(path: bytes, route: str) -> str:
    if path == b"*" or _shape(route).fullmatch(path):
        return path.decode("ascii")
    known = 0  # up to where the path is
    for segment in route.split("/")[1:]:
        sent = path[known + 1 :].partition(b"/")[0]
        if not _shape(segment).fullmatch(sent):
            break
        known += 1 + len(sent)
    rest = len(path) - known - 1  # without the slash
    return f"{path[:known].decode('ascii')}/{_count(rest) if rest else ''}"


@lru_cache(_CACHED_MAX)
def _shape(route: str) -> re.Pattern[bytes]:
    """Return what matches a route, or a segment of one, whose variables are numbers."""
    return re.compile(re.sub("<[^>]*>", "[0-9]{1,16}", re.escape(route)).encode("ascii"))


def _show_query(target: bytes) -> str:
    _, question, query = target.partition(b"?")
    if not question:  # a target in absolute form
        return ""
    shown = [one for one in query.split(b"&", PARAMETERS_MAX) if _PARAMETER.fullmatch(one)]
    rest = len(query) - sum(len(one) + 1 for one in shown)
    return "?" + "&".join([one.decode("ascii") for one in shown] + [_count(rest)] * (rest >= 0))


def show_referer(referer: bytes) -> str:
    """Return the origin of a `Referer`, and the length of what follows; the length alone where that is not plain."""
    return _cached_referer(referer) if len(referer) <= _CACHED_MAX_BYTES else _show_referer(referer)


def _show_referer(referer: bytes) -> str:
    match = _ORIGIN.match(referer[:ORIGIN_MAX_BYTES])
    origin, rest = (match[0], referer[match.end() :]) if match else (b"", referer)
    if not match or (rest and not rest.startswith(b"/")):
        return _count(len(referer))
    return origin.decode("ascii") + (f"/{_count(len(rest) - 1)}" if len(rest) > 1 else rest.decode("ascii"))


_cached_referer = lru_cache(_CACHED_MAX)(_show_referer)


def show_agent(agent: bytes) -> str:
    """Return the products of a `User-Agent` (RFC 9110 §10.1.5: `curl/8.14.1`), and the length of all else in it."""
    return _cached_agent(agent) if len(agent) <= _CACHED_MAX_BYTES else _show_agent(agent)


def _show_agent(agent: bytes) -> str:
    words = agent[:AGENT_MAX_BYTES].split(b" ")
    if len(agent) > AGENT_MAX_BYTES:
        words.pop()  # it may be cut
    shown = [word for word in words if _PRODUCT.fullmatch(word)][:PRODUCTS_MAX]
    rest = len(agent) - sum(len(word) + 1 for word in shown)
    return " ".join([word.decode("ascii") for word in shown] + [_count(rest)] * (rest >= 0))


_cached_agent = lru_cache(_CACHED_MAX)(_show_agent)


@lru_cache(_CACHED_MAX)
def show_user(username: str) -> str:
    """Return the name of an authenticated user, percent-encoded so that it is one word."""
    return shorten(quote(username, safe="@+:/#"), USER_MAX_CHARS)


def shorten(text: str, most: int) -> str:
    """Return a text with at most so many characters, and `...` behind it if it was longer."""
    return text if len(text) <= most else text[:most] + "..."


def escape(shown: str) -> str:
    """Return what is shown so that it can stand between quotes."""
    return _ODD.sub(r"\\\g<0>", shown) if '"' in shown or "\\" in shown else shown


def _count(length: int) -> str:
    return f"[{length} bytes]"

"""Forward authentication: a proxy asks whether another server's request may pass (reference: Gateway).

A proxy (nginx with `auth_request`, Caddy with `forward_auth`, Envoy with `ext_authz`) sends a request of its own to a
page with `forward = true`. The guard judges the request that its fields describe; the proxy passes that on if the
answer is 200.
"""

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import quote

from twisted.logger import Logger

from postd.auth.identity import AuthenticationResult
from postd.http.errors import NOT_OUR_HOST, Problem, not_found
from postd.http.interface import NativeRequest, Request
from postd.http.navigation import is_navigation
from postd.http.responses import TEXT, Response, StreamedResponse, make_response
from postd.http.views import View
from postd.protect.guard import Guard
from postd.protocol.host import normalize_host
from postd.protocol.http1.head import Fields, is_host
from postd.protocol.http1.syntax import TOKEN

_FORWARDED = (b"X-Forwarded-Method", b"X-Forwarded-Uri")  # of proxies that pass redirects on
_ORIGINAL = (b"X-Original-Method", b"X-Original-Uri")  # of nginx, whose `auth_request` does not
_SINGLE_FIELDS = (*_FORWARDED, *_ORIGINAL, b"X-Forwarded-Host", b"X-Forwarded-Proto", b"X-Forwarded-For")
_URI = re.compile(rb"/[!-~\x80-\xff]*")

_normalize = lru_cache(maxsize=64)(normalize_host)

_log = Logger()

_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""The characters of a field's value that stand for themselves."""


class DescribedRequest(NativeRequest):
    """The request that a proxy describes, with the interface of `postd.http.interface.Request`.

    Response, connection and authentication result belong to the proxy's own request.

    Attributes:
        method, uri, path: method and target of the described request; octets over 127 are percent-encoded.
        fields: the fields of the proxy's request, which the client has sent, with the `Host` that the client sent.

    Raises:
        Problem: 400, the description is absent, ambiguous or malformed.
    """

    is_described = True
    route: str | None = None
    file: bytes | None = None
    client_certificate = None  # that of the connection is the proxy's own

    def __init__(self, request: Request) -> None:
        sent = request.fields
        for name in _SINGLE_FIELDS:
            if len(sent.get(name, ())) > 1:
                raise Problem(400, f"The request has more than one {name.decode('ascii')} field.")
        forwarded, original = (tuple(sent.get(name, [None])[0] for name in pair) for pair in (_FORWARDED, _ORIGINAL))
        described = {pair for pair in (forwarded, original) if any(value is not None for value in pair)}
        method, uri = described.pop() if len(described) == 1 else (None, None)
        if method is None or uri is None:
            raise Problem(
                400,
                "The request needs X-Forwarded-Method and X-Forwarded-Uri, or X-Original-Method and X-Original-URI.",
            )
        host = sent.get(b"X-Forwarded-Host", [None])[0]
        if not TOKEN.fullmatch(method) or not _URI.fullmatch(uri) or not (host is None or is_host(host)):
            raise Problem(400, "The method, the URI or the host of the forwarded request is malformed.")
        if not uri.isascii():  # proxies pass it on so; equivalent by RFC 3986 §6.2.2, and as browsers send it
            uri = quote(uri, safe=_VISIBLE + "%").encode("ascii")
        self._request = request
        self.method, self.uri, self.path = method, uri, uri.partition(b"?")[0]
        fields = dict(sent)
        if host is not None:
            fields[b"Host"] = [host]
        # A preflight is authenticated like any other request, because it would reach the other server.
        fields.pop(b"Access-Control-Request-Method", None)
        self.fields: Fields = fields

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def authentication(self) -> AuthenticationResult | None:
        return self._request.authentication

    @authentication.setter
    def authentication(self, result: AuthenticationResult | None) -> None:
        self._request.authentication = result

    @property
    def is_shielded(self) -> bool:
        return self._request.is_shielded

    @is_shielded.setter
    def is_shielded(self, is_shielded: bool) -> None:
        self._request.is_shielded = is_shielded

    @property
    def accepts_redirect(self) -> bool:
        """Whether a redirect to the form works: a browser opens a page, and the proxy passes redirects on."""
        if _FORWARDED[1] not in self.fields or self.method not in {b"GET", b"HEAD"}:
            return False
        return is_navigation(self)

    def isSecure(self) -> bool:
        """Return whether the client uses TLS, as far as the connection shows; `X-Forwarded-Proto` has precedence."""
        return b"X-Forwarded-Proto" not in self.fields and self._request.isSecure()


class ForwardAuth(Guard):
    """The guard of a page that authenticates requests to other servers, for trusted proxies only.

    Args:
        hosts: the normalized hosts that requests may be for; None for any. A request that names none passes.
    """

    def __init__(self, *arguments: Any, hosts: frozenset[str] | None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._hosts = hosts
        self._is_refusal_logged = False

    async def enter(self, request: Any, view: View) -> Response | StreamedResponse | None:
        if not self._clients.trusts(request.getClientAddress()):
            raise Problem(403, "Only trusted proxies may use this resource.")
        if request.postpath:
            raise not_found()
        described = request.described = DescribedRequest(request)
        for host in described.fields.get(b"Host", ()):
            if self._hosts is not None and _normalize(host.decode("ascii")) not in self._hosts:
                self._refuse_host(host, described)
        return await super().enter(described, view)

    def _refuse_host(self, host: bytes, request: Request) -> NoReturn:
        if not self._is_refusal_logged:
            self._is_refusal_logged = True
            _log.warn(
                "request described by {peer}: 421, its host ({count} bytes) is not allowed. If the proxy serves that "
                "name, add it to hosts. Further refusals are in the access log only",
                peer=getattr(request.getClientAddress(), "host", "a UNIX socket"),
                count=len(host),
            )
        raise Problem(421, NOT_OUR_HOST)

    def redirect_to_sign_in(self, request: Request) -> Response | None:
        """Redirect browsers that open a page to the form, where the proxy passes redirects on."""
        assert isinstance(request, DescribedRequest)
        return super().redirect_to_sign_in(request) if request.accepts_redirect else None


async def admit(request: Request) -> Response:
    """Return the response that allows a request, with its identity."""
    identity = request.identity
    assert identity is not None  # the guard has set it
    scopes = identity.scopes if identity.is_token else None
    return _make_admission(identity.account, identity.scheme, scopes, identity.shown_name)


@lru_cache(256)
def _make_admission(account: str, scheme: str, scopes: frozenset[str] | None, shown_name: str) -> Response:
    headers = {
        b"Cache-Control": b"no-store",
        b"Remote-User": encode_name(account),
        b"Remote-Scheme": scheme.encode("ascii"),
    }
    if shown_name:
        headers[b"Remote-Name"] = encode_name(shown_name)
    if scopes is not None:
        headers[b"Remote-Scopes"] = encode_scopes(scopes)
    return make_response(HTTPStatus.OK, TEXT, b"", headers)


def encode_name(name: str) -> bytes:
    """Return a name as a field's value: UTF-8, percent-encoded but for printable ASCII without the percent sign.

    A space at either end is encoded, too: it would be no part of the value (RFC 9110 §5.5).
    """
    encoded = quote(name, safe=_VISIBLE + " ")
    if encoded.startswith(" "):
        encoded = "%20" + encoded[1:]
    if encoded.endswith(" "):
        encoded = encoded[:-1] + "%20"
    return encoded.encode("ascii")


def encode_scopes(scopes: frozenset[str]) -> bytes:
    """Return scopes as words in order, separated by spaces, each encoded as a name, with spaces in it."""
    words = (quote(scope, safe=_VISIBLE, errors="surrogatepass") for scope in sorted(scopes) if scope)
    return " ".join(words).encode("ascii")

"""Decodes an issuer's metadata (OpenID Connect Discovery 1.0 §4, RFC 8414 §3), and the freshness of its keys."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from postd.protocol.host import is_loopback
from postd.protocol.members import decode_object, member

OPENID_PATH = "/.well-known/openid-configuration"
OAUTH_PATH = "/.well-known/oauth-authorization-server"

USUAL_PATHS = ("/o", "/api/auth", "/api/oidc", "/oauth2", "/oauth", "/oidc", "/dex")
"""Paths of issuers that users forget: those of django-oauth-toolkit, better-auth, glewlwyd, and of others."""

FRESH_DEFAULT_S = 300.0
"""The freshness lifetime without a `max-age`, in seconds."""

FRESH_MIN_S, FRESH_MAX_S = 60.0, 86_400.0

_PRINTABLE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # no space, no quote, no backslash
_SHOWN_ISSUER = re.compile(r"https?://[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_DIRECTIVE = re.compile(r'([a-z-]+)(?:=(?:"([^"]*)"|([^\s",]*)))?')


class MetadataError(ValueError):
    """A document that is not valid metadata of the issuer; `str()` gives the reason."""


class NoMetadataError(MetadataError):
    """A document that is no metadata, or metadata without the member that is needed."""


def check_url(url: str) -> str:
    """Return a URL if it is safe to fetch: https, or http to a loopback host.

    Raises:
        ValueError: it is not, or its host is an IPv6 address.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    plain = _PRINTABLE.fullmatch(url) and _AUTHORITY.fullmatch(parts.netloc) and "#" not in url
    if not plain or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(str(host)))):
        raise ValueError(f"{url!r} is not an https URL (http is allowed for loopback only)")
    if "[" in parts.netloc:
        raise ValueError(f"{url!r} has an IPv6 address, which treq does not support: use a host name")
    return url


def check_issuer(url: str) -> str:
    """Return an issuer's identifier, which `iss` must equal to the byte (RFC 8414 §2), if it is valid.

    Raises:
        ValueError: it is not an https URL, or it has a query.
    """
    if "?" in check_url(url):
        raise ValueError(f"{url!r} is not an issuer: it has a query")
    return url


def metadata_urls(issuer: str) -> tuple[str, str]:
    """Return the URLs of an issuer's metadata by OpenID Connect Discovery §4.1, and by RFC 8414 §3.1."""
    base = issuer.removesuffix("/")
    parts = urlsplit(base)
    return base + OPENID_PATH, f"{parts.scheme}://{parts.netloc}{OAUTH_PATH}{parts.path}"


def decode_document(content: bytes, issuer: str) -> Mapping[str, object]:
    """Decode an issuer's metadata document.

    Raises:
        MetadataError: it is not JSON, or another issuer's (OpenID Connect Discovery §4.3, RFC 8414 §3.3).
    """
    document = decode_object(content)
    if document is None:
        raise NoMetadataError("the document is not a JSON object")
    if document.get("issuer") != issuer:
        found = named_issuer(document)
        named = f'"{found}", ' if found else ""
        raise MetadataError(f'the document is not this issuer\'s: its issuer is {named}not "{issuer}"')
    return document


def named_issuer(document: Mapping[str, object]) -> str:
    """Return the issuer of a metadata document if it looks like a URL, which is safe to show; otherwise ""."""
    issuer = document.get("issuer")
    return issuer if isinstance(issuer, str) and _SHOWN_ISSUER.fullmatch(issuer) else ""


def endpoint_of(document: Mapping[str, object], name: str) -> str:
    """Return an endpoint's URL by its name in a metadata document.

    Raises:
        MetadataError: it is missing, or `check_url` refuses it.
    """
    value = member(document, name)
    try:
        uri = check_url(str(value))
    except ValueError:
        uri = ""
    # A remote issuer must not direct requests to this machine.
    if not uri or (str(document["issuer"]).startswith("https:") and not uri.startswith("https:")):
        kind = NoMetadataError if value is None else MetadataError
        raise kind(f"the document has no {name} with an https URL (http is allowed for loopback only)")
    return uri


def freshness_s(cache_control: Sequence[str], age: str = "0") -> float:
    """Return how long an answer stays fresh, in seconds, from its `Cache-Control` and `Age` (RFC 9111 §4.2).

    It is limited to `FRESH_MIN_S` to `FRESH_MAX_S`.
    """
    for name, quoted, bare in _DIRECTIVE.findall(",".join(cache_control).lower()):
        seconds = _decode_seconds(quoted or bare)
        if name == "max-age" and seconds is not None:
            return min(max(seconds - (_decode_seconds(age) or 0.0), FRESH_MIN_S), FRESH_MAX_S)
    return FRESH_DEFAULT_S


def _decode_seconds(text: str) -> float | None:
    return float(text[:12]) if text.isascii() and text.isdecimal() else None

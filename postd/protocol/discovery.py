"""Where an issuer's keys are (OpenID Connect Discovery 1.0 §4, RFC 8414 §3), and for how long they are fresh."""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

OPENID_PATH = "/.well-known/openid-configuration"
OAUTH_PATH = "/.well-known/oauth-authorization-server"

FRESH_S = 300.0
"""How long keys are fresh whose issuer does not say, in seconds."""

FRESH_MIN_S, FRESH_MAX_S = 60.0, 86_400.0

_PRINTABLE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # no space, no quote, no backslash
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_DIRECTIVE = re.compile(r'([a-z-]+)(?:=(?:"([^"]*)"|([^\s",]*)))?')


class MetadataError(ValueError):
    """A document that does not describe the issuer; `str()` of it says why."""


def check_url(url: str) -> str:
    """Return the URL of something that we ask, if it is one to be trusted.

    Raises:
        ValueError: it is not https, or http to this machine itself; or it has an IPv6 address for a host.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    plain = _PRINTABLE.fullmatch(url) and _AUTHORITY.fullmatch(parts.netloc) and "#" not in url
    if not plain or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(str(host)))):
        raise ValueError(f"{url!r} is not an https URL (http is for loopback only)")
    if "[" in parts.netloc:
        raise ValueError(f"{url!r} has an IPv6 address, and treq cannot ask one: give it a name")
    return url


def check_issuer(url: str) -> str:
    """Return an issuer's identifier, which is the text that `iss` has, to the byte (RFC 8414 §2).

    Raises:
        ValueError: it cannot be one.
    """
    if "?" in check_url(url):
        raise ValueError(f"{url!r} is no issuer: it has a query")
    return url


def is_loopback(host: str) -> bool:
    """Tell whether a host of a URL is this machine, by an address or as `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def metadata_urls(issuer: str) -> tuple[str, str]:
    """Return where an issuer describes itself by OpenID Connect Discovery §4.1, and by RFC 8414 §3.1."""
    base = issuer.removesuffix("/")
    parts = urlsplit(base)
    return base + OPENID_PATH, f"{parts.scheme}://{parts.netloc}{OAUTH_PATH}{parts.path}"


def decode_metadata(content: bytes, issuer: str) -> str:
    """Return the `jwks_uri` of a document.

    Raises:
        MetadataError: as `decode_document` and `endpoint_of`.
    """
    return endpoint_of(decode_document(content, issuer), "jwks_uri")


def decode_document(content: bytes, issuer: str) -> Mapping[str, Any]:
    """Return what an issuer says of itself.

    Raises:
        MetadataError: it is none, or another issuer's (OpenID Connect Discovery §4.3, RFC 8414 §3.3).
    """
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise MetadataError("the document is not JSON") from None
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise MetadataError("the document is not this issuer's: its issuer has to be the same to the byte")
    return document


def endpoint_of(document: Mapping[str, Any], name: str) -> str:
    """Return a URL of a document by its name there.

    Raises:
        MetadataError: it is not there, or not to be trusted.
    """
    try:
        uri = check_url(str(document.get(name)))
    except ValueError:
        uri = ""
    # Whoever is not on this machine has no business to send us to what is.
    if not uri or (document["issuer"].startswith("https:") and not uri.startswith("https:")):
        raise MetadataError(f"the document has no {name} that is https (http is for loopback only)")
    return uri


def freshness_s(cache_control: Sequence[str], age: str = "0") -> float:
    """Return for how long an answer is fresh, in seconds, from its `Cache-Control` and `Age` (RFC 9111 §4.2).

    It is at least `FRESH_MIN_S`, whatever the issuer says, and at most `FRESH_MAX_S`.
    """
    for name, quoted, bare in _DIRECTIVE.findall(",".join(cache_control).lower()):
        seconds = _decode_seconds(quoted or bare)
        if name == "max-age" and seconds is not None:
            return min(max(seconds - (_decode_seconds(age) or 0.0), FRESH_MIN_S), FRESH_MAX_S)
    return FRESH_S


def _decode_seconds(text: str) -> float | None:
    return float(text[:12]) if text.isascii() and text.isdecimal() else None

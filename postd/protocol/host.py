"""Normalizes hosts for comparison: of `Host` fields (RFC 9110 §7.2), of URLs, of settings and of clients."""

import ipaddress
import re
from functools import lru_cache

HOST_MAX_BYTES = 253 + len(".:65535")
"""The longest `Host` field with a DNS name (RFC 1035 §2.3.4), its final dot and a port."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
# A name whose last label is a number is an address to browsers (https://url.spec.whatwg.org/#ends-in-a-number-checker).
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*(?!(?:[0-9]+|0x[0-9a-f]*)\Z){_LABEL}")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_APP_ORIGIN = re.compile(r"(?!(?i:https?):)[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._~:\[\]-]+")
_WITH_PORT = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]+):[0-9]*")


def normalize_host(authority: str) -> str:
    """Return the host of an authority: without port and brackets, in lower case, without a final dot.

    Addresses are in their canonical form, IPv4-mapped ones as IPv4. `127.1` and `0x7f.1` count as names: browsers send
    `127.0.0.1` for them.
    """
    bracketed = authority.startswith("[")
    host = authority[1:].partition("]")[0] if bracketed else authority.partition(":")[0].lower().removesuffix(".")
    try:
        return normalize_address(host)
    except ValueError:
        return host


def normalize_address(text: str) -> str:
    """Return an IP address in its canonical form (RFC 5952), an IPv4-mapped one as IPv4, without a zone.

    Raises:
        ValueError: it is no address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])  # a zone may be any text
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_host(host: str) -> bool:
    """Return whether a normalized host is `localhost`, a subdomain of it (RFC 6761 §6.3), or a loopback address."""
    return host.endswith(".localhost") or is_loopback(host)


def check_host(value: str) -> str:
    """Return a DNS name or an IP address, with or without brackets, as `normalize_host` has it.

    Raises:
        ValueError: it is neither, or has a port.
    """
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if ":" in bare and is_address(bare):
        return normalize_host(f"[{bare}]")
    if not value.isascii():
        raise ValueError(f"{value!r} is not ASCII; write an internationalized name in its A-labels (xn--...)")
    if _WITH_PORT.fullmatch(value):
        raise ValueError(f"{value!r} has a port; hosts are compared without ports")
    host = value.lower().removesuffix(".")
    if not (is_address(value) or _NAME.fullmatch(host)):
        raise ValueError(f"{value!r} is neither a host name, such as posts.example, nor an IP address")
    return host


def check_origin(value: str) -> str:
    """Return an origin as browsers serialize it, in lower case without a default port (RFC 6454 §6.2), or "".

    Raises:
        ValueError: it is no origin of HTTP.
    """
    origin = value.lower().removesuffix("/")
    if origin and not _ORIGIN.fullmatch(origin):
        raise ValueError(f"{value!r} is not an origin, such as https://posts.example")
    return origin.removesuffix(":443") if origin.startswith("https:") else origin.removesuffix(":80")


def origin_of(url: str) -> str:
    """Return the origin of a URL of HTTP, as `check_origin` has it."""
    scheme, _, rest = url.partition("://")
    return check_origin(f"{scheme}://{re.split('[/?]', rest, maxsplit=1)[0]}")


def check_page_origin(value: str) -> str:
    """Return the origin of a page, which may have any scheme: `capacitor://localhost`, `chrome-extension://ID`.

    Only origins of HTTP are normalized (`check_origin`): how a browser serializes another one is its own matter.

    Raises:
        ValueError: it is no origin with a host, such as `null`, which any page can have.
    """
    if not value:
        raise ValueError("'' is not an origin, such as https://app.example")
    return value if _APP_ORIGIN.fullmatch(value) else check_origin(value)


def is_address(text: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address, without a zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def client_network(address: str) -> str:
    """Return the network by which an address is counted: for IPv6 its /64, the smallest that a client is assigned.

    Another text is returned as it is.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return str(ipaddress.IPv6Network((ip, 64), strict=False))
    return str(ip)


@lru_cache(maxsize=4096)
def client_site(network: str) -> str:
    """Return the site of a client's network: for IPv6 the /48, which one customer may have; else the network itself."""
    if not network.endswith("/64"):
        return network
    return str(ipaddress.IPv6Network(network).supernet(new_prefix=48))


def check_proxy(text: str) -> str:
    """Return an IP address or network, normalized as clients are (`normalize_address`), or `"unix"`: a UNIX socket's.

    Raises:
        ValueError: it is neither an address nor a network.
    """
    if text == "unix":
        return text
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither an address or a network, such as 10.0.0.0/8, nor unix") from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    return str(network) if mapped is None else f"{mapped}/{network.prefixlen - 96}"

"""Types of settings that are written as strings: durations, sizes, origins, hosts, paths.

Each class has `decode`, which raises `ValueError` with the reason; some have `ALLOWED`, for error messages.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Self

from postd.protocol.bearer import decode_scope
from postd.protocol.digest import check_realm
from postd.protocol.discovery import check_issuer, check_url
from postd.protocol.host import check_host
from postd.scheme_names import SCHEMES


class ByteCount(int):
    """A size in bytes, written `"16KiB"` or `"1MiB"`."""

    ALLOWED = 'a size of at least one byte and at most 1024MiB, such as "16KiB" or "1MiB"'

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(_decode_quantity(value, {"KiB": 1024, "MiB": 1024**2}, 1, 1024**3, cls.ALLOWED))


class Seconds(float):
    """A duration in seconds, written `"500ms"`, `"10s"`, `"5m"`, `"12h"` or `"365d"`."""

    LEAST = 0.001
    ALLOWED = 'a duration of at least 1ms and at most 3650d, such as "500ms", "10s", "5m", "12h" or "365d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
        return cls(_decode_quantity(value, units, cls.LEAST, 3650 * 86400, cls.ALLOWED))


class Leeway(Seconds):
    """A duration that may be 0."""

    LEAST = 0.0
    ALLOWED = 'a duration of at most 3650d, such as "30s" or "0s"'


def _decode_quantity(value: str, units: Mapping[str, float], least: float, most: float, wanted: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([A-Za-z]+)", value)
    unit = units.get(match[2]) if match else None
    amount = float(match[1]) * unit if match and unit else None
    if amount is None or not least <= amount <= most:
        raise ValueError(f"{value!r} is not {wanted}")
    return amount


class Text(str):
    """A string with a meaning: `check` returns it in the form that is kept, or raises `ValueError`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(cls.check(value))

    @staticmethod
    def check(value: str, /) -> str:
        raise NotImplementedError


class MaxAge(Text):
    """A duration as the decimal text of whole seconds, written `"365d"`; or empty."""

    ALLOWED = '"", or a duration of at most 3650d, such as "365d"'

    @staticmethod
    def check(value: str) -> str:
        try:
            return f"{Leeway.decode(value):.0f}" if value else ""
        except ValueError:
            raise ValueError(f"{value!r} is not {MaxAge.ALLOWED}") from None


class Realm(Text):
    """The text of a protection realm, in characters that every client can quote (`postd.protocol.digest`)."""

    check = staticmethod(check_realm)


class TrustedProxy(Text):
    """An IP address or network, normalized, or `"unix"`."""

    @staticmethod
    def check(value: str) -> str:
        try:
            return value if value == "unix" else str(ipaddress.ip_network(value))
        except ValueError:
            raise ValueError(f"{value!r} is neither an address or a network, such as 10.0.0.0/8, nor unix") from None


class Origin(Text):
    """An origin as browsers serialize it, in lower case without a default port (RFC 6454 §6.2), or empty."""

    @staticmethod
    def check(value: str) -> str:
        origin = value.lower().removesuffix("/")
        if origin and not re.fullmatch(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", origin):
            raise ValueError(f"{value!r} is not an origin, such as https://posts.example")
        return origin.removesuffix(":443") if origin.startswith("https:") else origin.removesuffix(":80")


class CorsOrigin(Text):
    """An origin that CORS allows, or `"*"`."""

    @staticmethod
    def check(value: str) -> str:
        if not value:
            raise ValueError("'' is not an origin, such as https://app.example")
        return value if value == "*" else Origin.check(value)


class HostName(Text):
    """A host name or IP address, normalized (`postd.protocol.host`), or `"*"`."""

    @staticmethod
    def check(value: str) -> str:
        return value if value == "*" else check_host(value)


class PagePath(Text):
    """The path of a page, whose first segment is not reserved."""

    @staticmethod
    def check(value: str) -> str:
        segments = value.split("/")[1:]
        plain = re.fullmatch(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+", value) and not {".", ".."} & set(segments)
        if not plain:
            raise ValueError(f"{value!r} is not a path such as /reports: plain segments, each after a slash")
        if segments[0] in RESERVED_SEGMENTS:
            raise ValueError(f"{value!r} is reserved for postd: {', '.join(f'/{one}' for one in RESERVED_SEGMENTS)}")
        return value


RESERVED_SEGMENTS = ("post", "login", "home", "logout", "board", "docs", "openapi.json", ".well-known")
"""First segments of postd's own paths, some of them for later versions, which no page may have."""


class IssuerUrl(Text):
    """An issuer's identifier, the value of `iss` in its tokens."""

    check = staticmethod(check_issuer)


class OptionalUrl(Text):
    """The URL of an issuer's endpoint, or empty."""

    @staticmethod
    def check(value: str) -> str:
        return check_url(value) if value else ""


class ScopeText(Text):
    """Scope tokens, separated by spaces, or empty."""

    @staticmethod
    def check(value: str) -> str:
        decode_scope(value)
        return value


class SchemeName(Text):
    """The name of an authentication scheme."""

    @staticmethod
    def check(value: str) -> str:
        if value not in SCHEMES:
            raise ValueError(f"{value!r} is not the name of a scheme")
        return value


class Permission(Text):
    """The name of a scheme that gives access, or `"open"`: access without credentials."""

    @staticmethod
    def check(value: str) -> str:
        return value if value == "open" else SchemeName.check(value)


def decode_value(kind: Any, value: object) -> object:
    """Decode a string into one of the types above (`dec_hook` of msgspec)."""
    if not isinstance(value, str):
        wanted = getattr(kind, "ALLOWED", "a string")
        raise ValueError(f"{value!r} is not {wanted}")  # noqa: TRY004 - msgspec takes a ValueError
    return kind.decode(value)

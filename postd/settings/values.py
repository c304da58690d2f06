"""Types of settings that are written as strings: durations, sizes, origins, hosts, paths.

Each class has `decode(value)`, which raises `ValueError` with the reason; some have `ALLOWED`, for error messages.
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

    __slots__ = ()
    LEAST = 0.001
    ALLOWED = 'a duration of at least 1ms and at most 3650d, such as "500ms", "10s", "5m", "12h" or "365d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
        return cls(_decode_quantity(value, units, cls.LEAST, 3650 * 86400, cls.ALLOWED))


class Leeway(Seconds):
    """A duration that may be 0."""

    __slots__ = ()
    LEAST = 0.0
    ALLOWED = 'a duration of at most 3650d, such as "30s" or "0s"'


class MaxAge(str):
    """A duration as the decimal text of whole seconds, written `"365d"`; or empty."""

    __slots__ = ()
    ALLOWED = '"", or a duration of at most 3650d, such as "365d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        try:
            return cls(f"{Leeway.decode(value):.0f}" if value else "")
        except ValueError:
            raise ValueError(f"{value!r} is not {cls.ALLOWED}") from None


def _decode_quantity(value: str, units: Mapping[str, float], least: float, most: float, wanted: str) -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([A-Za-z]+)", value)
    unit = units.get(match[2]) if match else None
    amount = float(match[1]) * unit if match and unit else None
    if amount is None or not least <= amount <= most:
        raise ValueError(f"{value!r} is not {wanted}")
    return amount


class Realm(str):
    """The text of a protection realm, in characters that every client can quote (`postd.protocol.digest`)."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(check_realm(value))


class TrustedProxy(str):
    """An IP address or network, normalized, or `"unix"`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        try:
            return cls(value if value == "unix" else ipaddress.ip_network(value))
        except ValueError:
            raise ValueError(f"{value!r} is neither an address or a network, such as 10.0.0.0/8, nor unix") from None


class Origin(str):
    """An origin as browsers serialize it, in lower case without a default port (RFC 6454 §6.2), or empty."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        origin = value.lower().removesuffix("/")
        if origin and not re.fullmatch(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", origin):
            raise ValueError(f"{value!r} is not an origin, such as https://posts.example")
        return cls(origin.removesuffix(":443") if origin.startswith("https:") else origin.removesuffix(":80"))


class CorsOrigin(Origin):
    """An origin that CORS allows, or `"*"`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        if not value:
            raise ValueError("'' is not an origin, such as https://app.example")
        return cls(value) if value == "*" else super().decode(value)


class HostName(str):
    """A host name or IP address, normalized (`postd.protocol.host`), or `"*"`."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(value if value == "*" else check_host(value))


class PagePath(str):
    """The path of a page, whose first segment is not reserved."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        segments = value.split("/")[1:]
        plain = re.fullmatch(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+", value) and not {".", ".."} & set(segments)
        if not plain:
            raise ValueError(f"{value!r} is not a path such as /reports: plain segments, each after a slash")
        if segments[0] in RESERVED_SEGMENTS:
            raise ValueError(f"{value!r} is reserved for postd: {', '.join(f'/{one}' for one in RESERVED_SEGMENTS)}")
        return cls(value)


class IssuerUrl(str):
    """An issuer's identifier, the value of `iss` in its tokens."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(check_issuer(value))


class OptionalUrl(str):
    """The URL of an issuer's endpoint, or empty."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(check_url(value) if value else "")


class ScopeText(str):
    """Scope tokens, separated by spaces, or empty."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        decode_scope(value)
        return cls(value)


RESERVED_SEGMENTS = ("post", "login", "home", "logout", "board", "docs", "openapi.json", ".well-known")
"""First segments of postd's own paths, some of them for later versions, which no page may have."""


class SchemeName(str):
    """The name of an authentication scheme."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        if value not in SCHEMES:
            raise ValueError(f"{value!r} is not the name of a scheme")
        return cls(value)


class Permission(SchemeName):
    """The name of a scheme that gives access, or `"open"`: access without credentials."""

    __slots__ = ()

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(value) if value == "open" else super().decode(value)


def decode_value(kind: Any, value: object) -> object:
    """Decode a string into one of the types above (`dec_hook` of msgspec)."""
    if not isinstance(value, str):
        wanted = getattr(kind, "ALLOWED", "a string")
        raise ValueError(f"{value!r} is not {wanted}")  # noqa: TRY004 - msgspec takes a ValueError
    return kind.decode(value)

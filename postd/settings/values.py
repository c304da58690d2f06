"""Types of settings that are written as strings: durations, sizes, origins, hosts, paths.

Each class has `decode`, which raises `ValueError` with the reason; some have `ALLOWED`, for error messages.
"""

import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, Self

from postd.protocol.bearer import decode_scope
from postd.protocol.digest import check_realm
from postd.protocol.discovery import check_issuer, check_url
from postd.protocol.host import check_host, check_origin, check_page_origin, check_proxy
from postd.protocol.quantity import DURATION_MAX_S, DURATION_UNITS, decode_quantity
from postd.protocol.sign_in import check_button, check_id
from postd.scheme_names import SCHEMES


class ByteCount(int):
    """A size in bytes, written `"16KiB"` or `"1MiB"`."""

    ALLOWED = 'a size of at least one byte and at most 1024MiB, such as "16KiB" or "1MiB"'

    @classmethod
    def decode(cls, value: str) -> Self:
        units = {"KiB": 1024, "MiB": 1024**2}
        return cls(decode_quantity(value, units, least=1, most=1024**3, wanted=cls.ALLOWED))


class Seconds(float):
    """A duration in seconds, written `"500ms"`, `"10s"`, `"5m"`, `"12h"` or `"365d"`."""

    LEAST = 0.001
    ALLOWED = 'a duration of at least 1ms and at most 3650d, such as "500ms", "10s", "5m", "12h" or "365d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(decode_quantity(value, DURATION_UNITS, least=cls.LEAST, most=DURATION_MAX_S, wanted=cls.ALLOWED))


class Leeway(Seconds):
    """A duration that may be 0."""

    LEAST = 0.0
    ALLOWED = 'a duration of at most 3650d, such as "30s" or "0s"'


class Lifetime(Seconds):
    """A duration, or `""` for no bound."""

    ALLOWED = '"" for no bound, or a duration of at least 1ms and at most 3650d, such as "90d"'

    @classmethod
    def decode(cls, value: str) -> Self:
        return super().decode(value) if value else cls(math.inf)


class Text(str):
    """A string with a meaning: the `check` of its class returns it in the form that is kept, or raises `ValueError`."""

    __slots__ = ()
    check: ClassVar[Callable[[str], str]]

    def __init_subclass__(cls, *, check: Callable[[str], str]) -> None:
        cls.check = staticmethod(check)

    @classmethod
    def decode(cls, value: str) -> Self:
        return cls(cls.check(value))


def _check_max_age(value: str) -> str:
    try:
        return f"{Leeway.decode(value):.0f}" if value else ""
    except ValueError:
        raise ValueError(f"{value!r} is not {MaxAge.ALLOWED}") from None


def _check_page_path(value: str) -> str:
    segments = value.split("/")[1:]
    plain = re.fullmatch(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+", value) and not {".", ".."} & set(segments)
    if not plain:
        raise ValueError(f"{value!r} is not a path such as /reports: plain segments, each after a slash")
    if segments[0] in RESERVED_SEGMENTS:
        raise ValueError(f"{value!r} is reserved for postd: /{', /'.join(RESERVED_SEGMENTS)}")
    return value


RESERVED_SEGMENTS = (
    *("post", "login", "home", "logout", "account", "board", "feed.atom", "docs", "openapi.json", ".well-known"),
)
"""First segments of postd's own paths, which pages must not have; some are reserved for later versions."""


def _check_scope(value: str) -> str:
    decode_scope(value)
    return value


def _check_scheme(value: str) -> str:
    if value not in SCHEMES:
        raise ValueError(f"{value!r} is not the name of a scheme")
    return value


class MaxAge(Text, check=_check_max_age):
    """A duration as the decimal text of whole seconds, written `"365d"`; or empty."""

    ALLOWED = '"", or a duration of at most 3650d, such as "365d"'


class Realm(Text, check=check_realm):
    """The text of a protection realm, in characters that every client can quote (`postd.protocol.digest`)."""


class TrustedProxy(Text, check=check_proxy):
    """An IP address or network, normalized, or `"unix"`."""


class Origin(Text, check=check_origin):
    """An origin as browsers serialize it, in lower case without a default port (RFC 6454 §6.2), or empty."""


class CorsOrigin(Text, check=lambda value: value if value == "*" else check_page_origin(value)):
    """An origin that CORS allows, of any scheme, or `"*"`."""


class HostName(Text, check=lambda value: value if value == "*" else check_host(value)):
    """A host name or IP address, normalized (`postd.protocol.host`), or `"*"`."""


class PagePath(Text, check=_check_page_path):
    """The path of a page, whose first segment is not reserved."""


class IssuerUrl(Text, check=check_issuer):
    """An issuer's identifier, the value of `iss` in its tokens."""


class OptionalUrl(Text, check=lambda value: check_url(value) if value else ""):
    """The URL of an issuer's endpoint, or empty."""


class ProviderId(Text, check=check_id):
    """The id of an OpenID provider, in URLs."""


class ProviderName(Text, check=check_button):
    """The name of an OpenID provider, on its button."""


class ScopeText(Text, check=_check_scope):
    """Scope tokens, separated by spaces, or empty."""


class SchemeName(Text, check=_check_scheme):
    """The name of an authentication scheme."""


class Permission(Text, check=lambda value: value if value == "open" else _check_scheme(value)):
    """The name of a scheme that gives access, or `"open"`: access without credentials."""


def decode_value(kind: Any, value: object) -> object:
    """Decode a string into a type of this module (`dec_hook` of msgspec)."""
    if not isinstance(value, str):
        wanted = getattr(kind, "ALLOWED", "a string")
        raise ValueError(f"{value!r} is not {wanted}")  # noqa: TRY004 - msgspec takes a ValueError
    return kind.decode(value)

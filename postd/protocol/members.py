"""Reads JSON documents of other programs, where an empty member is an absent one.

Serializers of whole objects write each member that they know, as null or as an empty text, list or object, also where
the standard says that an optional member is omitted (RFC 7517 §4, RFC 7519 §4.1, RFC 7662 §2.2, RFC 8414 §2).
"""

import codecs
from collections.abc import Mapping
from typing import Any

import orjson

_EMPTY: tuple[object, ...] = (None, "", [], {})


def member(document: Mapping[str, object], name: str, default: object = None) -> Any:
    """Return a member of an object, the default if it is absent, null or empty."""
    value = document.get(name)
    return default if value in _EMPTY else value


def present(document: Mapping[str, object]) -> dict[str, Any]:
    """Return the members of an object that are neither null nor empty."""
    return {name: value for name, value in document.items() if value not in _EMPTY}


def decode_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a document, which may begin with a byte order mark; None if it has none."""
    try:
        document = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None

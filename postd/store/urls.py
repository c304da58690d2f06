"""Relative paths in store URLs."""

import re
from pathlib import Path
from urllib.parse import quote, unquote


def absolute_store(url: str, folder: Path) -> str:
    """Return a store URL with absolute paths; an invalid URL is returned unchanged, and refused when it is opened."""
    kind, _, path = url.partition(":")
    if kind == "sqlite":
        return url if path in {"", ":memory:"} else f"sqlite:{folder / path}"
    if not kind.startswith("redis"):
        return url
    place, question, query = url.partition("?")
    if kind == "redis+unix":
        place = re.sub(r"(?<=://)((?:[^/@]*@)?)(.+)", lambda found: found[1] + _joined(folder, found[2]), place)
    return place + question + re.sub(r"(?<=_file=)[^&]+", lambda found: _joined(folder, found[0]), query)


def _joined(folder: Path, path: str) -> str:
    """Join a folder and a percent-encoded path."""
    return quote(str(folder / unquote(path)))

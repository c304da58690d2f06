"""Make the paths in settings absolute, those in store URLs and endpoint strings included."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from postd.net.endpoint_strings import absolute_endpoint
from postd.scheme_names import SCHEMES
from postd.store.urls import absolute_store


def make_absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return settings, as values of TOML, with all paths made absolute, also those in store URLs and endpoints."""
    made = dict(values)
    if values.get("users"):
        made["users"] = str(folder / values["users"])
    if values.get("log", {}).get("file"):
        made["log"] = {**values["log"], "file": str(folder / values["log"]["file"])}
    if "page" in values:
        made["page"] = [
            {**page, "files": str(folder / page["files"])} if page.get("files") else page for page in values["page"]
        ]
    for name in SCHEMES:
        if isinstance(values.get(name), dict):
            made[name] = {
                key: str(folder / value) if key.endswith("_file") and value and isinstance(value, str) else value
                for key, value in values[name].items()
            }
    if "bearer" in values:
        made["bearer"] = [
            {**issuer, **{key: str(folder / issuer[key]) for key in _ISSUER_FILES if issuer.get(key)}}
            for issuer in values["bearer"]
        ]
    if isinstance(values.get("store"), str):
        made["store"] = absolute_store(values["store"], folder)
    if "listen" in values:
        made["listen"] = _absolute_endpoints(values["listen"], folder)
    if values.get("admin", {}).get("listen"):
        made["admin"] = {**values["admin"], "listen": _absolute_endpoints(values["admin"]["listen"], folder)}
    return made


def _absolute_endpoints(descriptions: Sequence[str], folder: Path) -> list[str]:
    return [absolute_endpoint(description, folder) for description in descriptions]


_ISSUER_FILES = ("ca_file", "client_secret_file")

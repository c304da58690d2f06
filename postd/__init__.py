"""postd keeps short text posts behind a JSON API."""

from typing import TYPE_CHECKING

__version__: str
"""The installed version, derived from the git tag (pyproject.toml); `unknown` if postd is not installed."""

if not TYPE_CHECKING:  # else mypy would accept any attribute of this module

    def __getattr__(name: str) -> str:
        # On demand: importing importlib.metadata would delay the start of each process.
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            found = version("postd")
        except PackageNotFoundError:
            found = "unknown"
        globals()["__version__"] = found
        return found

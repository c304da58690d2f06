"""postd keeps short text posts behind a JSON API."""

__version__ = "0.1.0.dev0"

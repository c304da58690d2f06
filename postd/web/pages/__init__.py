"""The HTML pages of the board and of the API's description."""

from postd.http.pages import read_file


def read(name: str) -> str:
    """Read a file of this package."""
    return read_file(__name__, name)

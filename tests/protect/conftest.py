"""Fixtures of the tests of `postd.protect`."""

from tests.web.conftest import make

__all__ = ["make"]

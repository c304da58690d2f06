"""Fixtures of the tests of `postd.protect`, which run on the front of postd.

`tests/http/test_requests.py` has what requests of a stock site are to do likewise; `test_protection.py` runs on one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import InMemoryApi
from tests.web.clients import account


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., InMemoryApi]]:
    """A function that makes a server from settings and the text of its user file; it is closed after the test."""
    made = []

    def make(settings: str, users: str = account("alice") + account("bob")) -> InMemoryApi:
        (tmp_path / "users").write_text(users)
        made.append(InMemoryApi(tmp_path, settings))
        return made[-1]

    yield make
    for api in made:
        api.close()

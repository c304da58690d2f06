"""Fixtures of the web tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import InMemoryApi
from tests.web.clients import make_api


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., InMemoryApi]]:
    """A function that makes a server from settings and the arguments of `make_api`; it is closed after the test."""
    made = []

    def make(settings: str, **more: str) -> InMemoryApi:
        made.append(make_api(tmp_path, settings, **more))
        return made[-1]

    yield make
    for api in made:
        api.close()

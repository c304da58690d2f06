"""What tests of several pages and schemes need."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import InMemoryApi
from tests.web.clients import make_api


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., InMemoryApi]]:
    """Make a server with some settings, and with users as `make_api` takes them; it is closed at the end."""
    made = []

    def make(settings: str, **more: str) -> InMemoryApi:
        made.append(make_api(tmp_path, settings, **more))
        return made[-1]

    yield make
    for api in made:
        api.close()

from collections.abc import Iterator

import pytest

from postd.client import posts
from tests.client.server import open_resources


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Check that closed clients leave no connections or timers."""
    before = open_resources()
    yield
    assert [one for one in open_resources() if one not in before] == []


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts, "_FIRST_DELAY_S", 0.005)

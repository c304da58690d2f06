from collections.abc import Iterator

import pytest

from postd.client import posts
from tests.client.server import left_behind


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing is left of a client that was closed."""
    before = left_behind()
    yield
    assert [one for one in left_behind() if one not in before] == []


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts, "_FIRST_DELAY_S", 0.005)

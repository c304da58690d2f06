"""Fixtures of the tests of `postd.protect`: tests that make a server run on both fronts (`tests.protect.fronts`)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers import InMemoryApi
from tests.protect.fronts import FRONTS, Front
from tests.web.clients import account


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "front" in metafunc.fixturenames:
        is_own = metafunc.definition.get_closest_marker("postd_front") is not None
        fronts = [front for front in FRONTS if front.name == "postd" or not is_own]
        metafunc.parametrize("front", fronts, ids=[front.name for front in fronts], scope="session")


@pytest.fixture
def make(tmp_path: Path, front: Front) -> Iterator[Callable[..., InMemoryApi]]:
    """A function that makes a server from settings and the text of its user file; it is closed after the test."""
    made = []

    def make(settings: str, users: str = account("alice") + account("bob")) -> InMemoryApi:
        (tmp_path / "users").write_text(users)
        made.append(front.make_api(tmp_path, settings))
        return made[-1]

    yield make
    for api in made:
        api.close()

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer
from tests.store.contract import store as store  # noqa: PLC0414 - a fixture
from tests.store.failing import log as log  # noqa: PLC0414 - a fixture


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests that leave it as it was, but for its data."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server

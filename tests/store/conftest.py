from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests that leave it as it was, but for its data."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_server import RedisServer
from tests.store.failing import patient as patient  # noqa: PLC0414 - a fixture


@pytest.fixture
def lasting(shared_server: RedisServer) -> RedisServer:
    """An empty server, for tests that restore its settings."""
    shared_server.ask("FLUSHALL")
    return shared_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a password."""
    with RedisServer(tmp_path / "redis", "requirepass right", password="right") as server:
        yield server

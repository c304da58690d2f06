from pathlib import Path
from typing import cast

import pytest
from twisted.internet import reactor

from postd.reactor import IReactor
from postd.store.sqlite.store import SqliteStore
from tests.store.contract import MakeStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a file that does not exist yet."""
    return tmp_path / "posts.db"


@pytest.fixture
def make_store(path: Path) -> MakeStore:
    return lambda: SqliteStore(str(path), reactor=cast(IReactor, reactor))

"""Opening stores and login stores by URL."""

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from twisted.internet import reactor as global_reactor

from postd.errors import ConfigError
from postd.reactor import IReactor
from postd.store.opening import STORE_URLS, open_login_store, open_store
from postd.store.redis.store import RedisStore
from postd.store.sqlite.store import MemoryStore, SqliteStore
from tests.cases import each
from tests.helpers import PATIENCE_S

reactor = cast(IReactor, global_reactor)

OPEN = """
import sys
from twisted.internet.task import Clock
from postd.store.opening import open_login_store
store = open_login_store("memory:", reactor=Clock())
store.prepare()
assert store.description == "memory:"
others = ("sqlite3", "txredisapi", "postd.store.sqlite", "postd.store.redis")
print([name for name in sys.modules if name.startswith(others)])
"""


def test_login_store_in_memory_imports_no_other_store() -> None:
    result = subprocess.run(
        [sys.executable, "-c", OPEN], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert result.stdout == "[]\n"


def test_memory_store_of_a_server_has_posts() -> None:
    assert isinstance(open_store("memory:", where="store", reactor=reactor), MemoryStore)


@each("url", ["redis://app@host/1", "rediss://host", "redis+unix:///r.sock", "redis+sentinel://a,b/main"])
def test_login_store_of_a_redis_url_is_the_whole_store(url: str) -> None:
    store = open_login_store(url, reactor=reactor)
    assert isinstance(store, RedisStore)
    assert store.description == open_store(url, where="store", reactor=reactor).description


def test_login_store_of_an_sqlite_path_is_the_whole_store(tmp_path: Path) -> None:
    store = open_login_store(f"sqlite:{tmp_path}/posts.db", reactor=reactor)
    assert isinstance(store, SqliteStore)
    assert store.description == f"sqlite:{tmp_path}/posts.db"


@each(
    "url",
    [
        "",
        "memory",
        "memory:x",
        "sqlite:",
        "sqlite::memory:",
        "sqlite:a\0b",
        "redis://:S3CRET@",
        "mysql://a:S3CRET@host",
    ],
)
def test_invalid_url_is_the_same_error_for_both(url: str) -> None:
    errors = []
    for opening in (
        lambda: open_login_store(url, reactor=reactor),
        lambda: open_store(url, where="store", reactor=reactor),
    ):
        with pytest.raises(ConfigError) as caught:
            opening()
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert errors[0].startswith("store: ")
    assert STORE_URLS in errors[0]
    assert "S3CRET" not in errors[0]

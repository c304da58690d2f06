"""The SQLite stores: the contract."""

from pathlib import Path
from typing import cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor

from postd.reactor import IReactor
from postd.store.interface import Store
from postd.store.sqlite.store import MemoryStore, SqliteStore
from tests.store.contract import (
    LastingStoreContract,
    MakeStore,
    StoreContract,
    check_text_comes_back,
    open_store,
    with_any_text,
)

reactor = cast(IReactor, global_reactor)


class SqliteStoreTests(LastingStoreContract):
    @pytest.fixture
    def make_store(self, path: Path) -> MakeStore:
        return lambda: SqliteStore(str(path), reactor=reactor)

    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)


class MemoryStoreTests(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return lambda: MemoryStore(reactor=reactor)

    @with_any_text
    @ensureDeferred
    async def test_text_is_stored_exactly(self, store: Store, text: str) -> None:
        await check_text_comes_back(store, text)

    @ensureDeferred
    async def test_memory_store_leaves_no_file_behind(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        store = await open_store(lambda: MemoryStore(reactor=reactor))
        assert await store.add_post("x") == 1
        assert (await store.get_post(1)).post == "x"
        assert list(tmp_path.iterdir()) == []  # not even while it runs, so that kill -9 leaves nothing either
        await store.stop()

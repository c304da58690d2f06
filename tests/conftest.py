from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import InMemoryApi, make_certificate


@pytest.fixture
def api() -> Iterator[InMemoryApi]:
    api = InMemoryApi()
    yield api
    api.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a private key and of a certificate for localhost and 127.0.0.1."""
    return make_certificate(tmp_path_factory.mktemp("tls"))

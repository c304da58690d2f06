"""Pages of issuers that take too long to install for the second suite; `python -m tests.field` runs these tests."""

import tempfile
from pathlib import Path

import pytest

from tests.pages import Reader, read_blocks
from tests.system.test_pages import ENVIRONMENT


@pytest.mark.parametrize("page", ["canaille", "lemonldap-ng"])
def test_page(page: str) -> None:
    """In a folder that other users can enter, as the issuer is one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with Reader(Path(folder), ENVIRONMENT) as reader:
            reader.follow(read_blocks(f"docs/how-to/providers/{page}.md"))

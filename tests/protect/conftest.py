"""Fixtures of the tests of `postd.protect`, which run on the front of postd.

`tests/http/test_requests.py` has what requests of a stock site are to do likewise; `test_protection.py` runs on one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import InMemoryApi
from tests.protect.program import MakeProgram, Program
from tests.web.clients import account


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., InMemoryApi]]:
    """A function that makes a server from settings and the text of its user file; it is closed after the test."""
    made = []

    def make(settings: str, users: str = account("alice") + account("bob")) -> InMemoryApi:
        (tmp_path / "users").write_text(users)
        made.append(InMemoryApi(tmp_path, settings))
        return made[-1]

    yield make
    for api in made:
        api.close()


@pytest.fixture
def make_program(tmp_path: Path) -> Iterator[MakeProgram]:
    """A function that makes and starts a program with a user file, unless the arguments have other users."""
    (tmp_path / "users").write_text(account("alice") + account("bob"))
    (tmp_path / "others").write_text(account("bob"))
    made = []

    def make_program(**arguments: Any) -> Program:
        made.append(Program(**{"users": tmp_path / "users", **arguments}))
        made[-1].start()
        return made[-1]

    yield make_program
    for program in made:
        program.stop()

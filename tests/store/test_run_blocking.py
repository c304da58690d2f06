from pathlib import Path
from typing import Any

from postd.reactor import IReactor
from postd.store.run_blocking import run_blocking

DESCRIPTORS = Path("/proc/self/fd")


async def answer(_reactor: IReactor) -> Any:
    return "answer"


def test_reactor_is_closed_with_its_descriptors() -> None:
    before = {fd.name for fd in DESCRIPTORS.iterdir()}
    assert run_blocking(answer) == "answer"
    assert {fd.name for fd in DESCRIPTORS.iterdir()} == before

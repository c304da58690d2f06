"""A wall clock that a test sets, for the processes of a daemon."""

from pathlib import Path

from tests.integration.forking import ForkServer

_SITECUSTOMIZE = """
import time

_read = time.time


def shifted():
    try:
        with open({file!r}) as file:
            return _read() + float(file.read())
    except (OSError, ValueError):  # it is being written
        return _read()


time.time = shifted  # before Twisted is imported
"""


class ShiftedClock:
    """A wall clock that differs from that of the machine.

    Args:
        folder: a new folder, for a module that Python imports at its start.
        environment: of the processes, in addition to that of this process.

    Attributes:
        forks: starts processes that have this clock, as have their workers.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        folder.mkdir()
        self._file = folder / "ahead"
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(file=str(self._file)))
        self.forks = ForkServer({"PYTHONPATH": str(folder), **environment})

    def set(self, ahead_s: float) -> None:
        """Set the clock of all processes, running ones too."""
        self._file.write_text(str(ahead_s))

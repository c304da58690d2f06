"""A wall clock that a test sets, for the processes of a daemon."""

from collections.abc import Sequence
from pathlib import Path

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
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._file = folder, folder / "ahead"
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(file=str(self._file)))

    @property
    def through(self) -> Sequence[str]:
        """The words before the command of a process, which then has this clock, as have its workers."""
        return "env", f"PYTHONPATH={self._folder}"

    def set(self, ahead_s: float) -> None:
        """Set the clock of all processes, running ones too."""
        self._file.write_text(str(ahead_s))

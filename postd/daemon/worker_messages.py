"""Messages between a worker and its parent: lines of JSON over pipes.

- To standard input: one line with all that the worker starts with (`WorkerPool`); later `{"reload": SETTINGS}`,
  `{"ticket_key": HEX}` each hour, and `{"health": NUMBER, "full": BOOL}` each second. End of file is the request to
  stop, so that workers do not outlive a parent that was killed. SIGTERM does the same.
- From standard output: `{"log": [LEVEL, NAMESPACE, TEXT]}`, as the parent alone writes the log; `{"accepting": true}`
  once the worker accepts connections, `{"ready": true}` once its store answers; `{"health": [NUMBER, STATES, METRICS]}`
  in answer to a request; and `{"failed": WHY}` before it exits because it can never serve with its settings.
- From standard error: all other output of the worker and of Python.
"""

from collections.abc import Iterator

LINE_MAX_BYTES = 1024 * 1024
"""The longest line; a longer one is split."""


class LineBuffer:
    """Split a stream of bytes into lines.

    Args:
        max_bytes: a longer line is split there, so that no more than that is buffered.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete now, without their line feeds."""
        *complete, partial = data.split(b"\n")
        for line in complete:
            yield bytes(self._partial) + line
            self._partial.clear()
        self._partial += partial
        while len(self._partial) > self._max_bytes:
            yield bytes(self._partial[: self._max_bytes])
            del self._partial[: self._max_bytes]

    def flush(self) -> Iterator[bytes]:
        """Yield the last line if it has no line feed."""
        if self._partial:
            yield bytes(self._partial)
            self._partial.clear()

"""The server's log, checked as it grows for secrets, tracebacks and unexpected lines."""

import re
from pathlib import Path

from bench.soaking.findings import Findings
from bench.soaking.ledger import HIDDEN_TEXT
from bench.soaking.secrets_used import USED
from bench.soaking.server import PASSWORD

LINE_MAX_BYTES = 4096
"""The longest line, with its line feed."""

_EXPECTED = (
    r"\[postd\.access#info\]",
    r'"[^"]*" \d{3} (\d+|-) "',  # a further line of the access log, after the first of a bundle
    r"postd ready: ",
    r" answers requests for ",
    r"SIGHUP: reloading",
    r"users: \d+ users?$",
    r"bearer http://127\.0\.0\.1:\d+: (\d+ keys?$|keys not refreshed: )",
    r"login refused: ",
    r"signed in: ",
    r"possible attack: Digest credentials ",
    r"#warn\] .*\bconnections\b",
    r": 421, its host ",
    r"#warn\] dpop of http://127\.0\.0\.1:\d+: proofs are checked against the Host ",
    r"\[twisted\.|\[-\]|\[twisted#|\[stdout#|\[postd\.\S+#info\] (Starting|Stopping) ",
    r"Received SIGTERM|Main loop terminated|Server Shut Down|Port \d+ Closed",
)
_expected = re.compile("|".join(_EXPECTED))
_WRONG = {
    "Traceback": "no traceback is logged",
    "Unhandled": "no traceback is logged",
    PASSWORD: "no secret is logged",
    f'"{HIDDEN_TEXT}"': "nothing of a body is logged",
}


class LogReader:
    """Reads a log as it grows.

    Args:
        file: the log.
        findings: collects the broken conditions.
    """

    def __init__(self, file: Path, findings: Findings) -> None:
        self._file = file
        self._findings = findings
        self._place = 0
        self._rest = b""
        self._failing = False
        self.lines = 0

    def read(self) -> None:
        """Check the lines written since the last call."""
        with self._file.open("rb") as log:
            log.seek(self._place)
            data = log.read()
        self._place += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._look_at(line.decode(errors="replace"))

    def check_whole(self) -> None:
        """Check all lines again, for all secrets of the run. Takes some seconds for 100 MB."""
        with self._file.open("rb") as log:
            for line in log:
                if len(line) > LINE_MAX_BYTES:
                    example = f"{len(line)} bytes: {line[:200]!r}"
                    self._findings.broke(f"no line of the log has more than {LINE_MAX_BYTES:,} bytes", example)
                if USED.found_in(line):
                    self._findings.broke("no secret is logged", repr(line[:300]))

    def _look_at(self, line: str) -> None:
        self.lines += 1
        for words, promise in _WRONG.items():
            if words in line:
                self._findings.broke(promise, line.strip()[:300])
                self._failing = True
                return
        if _expected.search(line):
            self._failing = False
        elif line.strip() and not self._failing:  # lines after a traceback are a part of it
            self._findings.broke("each line of the log is expected", line.strip()[:300])

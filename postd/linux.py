"""What only Linux has; on other systems this module exits with one line, and all modules that need Linux import it.

The server, its stores and the commands need it; `postd.client` and `postd.protocol` do not. docs/reference/limits.md
lists the features of Linux that are used.
"""

import os
import sys

if sys.platform != "linux":
    raise SystemExit(f"postd: runs on Linux only (this is {sys.platform}; reasons: docs/reference/limits.md)")

SOCKET_PATH_MAX_BYTES = 107
"""The longest path of a UNIX socket (unix(7))."""


def check_socket_path(path: str) -> None:
    """Check that a path is short enough for a UNIX socket.

    Raises:
        ValueError: it is too long. Python's own error lacks the lengths, and Twisted has none when it connects.
    """
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_MAX_BYTES:
        raise ValueError(f"a path of {size} bytes, more than the {SOCKET_PATH_MAX_BYTES} of a UNIX socket")

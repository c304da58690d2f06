"""Exits with one line on systems other than Linux; imported by all modules that need Linux.

The server, its stores and the commands need it; `postd.client` and `postd.protocol` do not. docs/reference/limits.md
lists the features of Linux that are used.
"""

import sys

if sys.platform != "linux":
    raise SystemExit(f"postd: runs on Linux only (this is {sys.platform}; reasons: docs/reference/limits.md)")

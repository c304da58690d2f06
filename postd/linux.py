"""Ends the process with one line where the system is not Linux: imported by what cannot do without it.

That is the server, its store and the commands. `postd.client` and `postd.protocol` use nothing of Linux's own. The
README lists what is needed of it, under Limits.
"""

import sys

if sys.platform != "linux":
    raise SystemExit(f"postd: runs on Linux only (this is {sys.platform}; README.md, Limits, says why)")

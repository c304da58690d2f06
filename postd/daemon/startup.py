"""The first steps of a process, which make the rest of its start shorter."""

import gc
import sys


def begin_startup() -> None:
    """Turn garbage collection off until `postd.daemon.resources.freeze_startup_objects`, and leave HTTP/2 out.

    To be called before anything imports `twisted.web`. What is imported stays: automatic collections of it take some
    50 ms and free next to nothing. `twisted.web.http` imports HTTP/2 if `h2` is installed, which takes as long: postd's
    own front has HTTP/1.1 alone. After this call `h2` can be imported as before.
    """
    gc.disable()
    if "h2" in sys.modules or "twisted.web.http" in sys.modules:
        return
    sys.modules["h2"] = None  # type: ignore[assignment] # Python's way to make an import fail
    try:
        import twisted.web.http  # noqa: F401, PLC0415 - see above
    finally:
        del sys.modules["h2"]

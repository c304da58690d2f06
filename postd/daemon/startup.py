"""Imports at the start of a process, limited to the modules that its settings need."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from postd.net.endpoint_strings import kinds_of
from postd.settings.schema import Settings

PLAIN_KINDS = {"tcp", "unix"}
"""The kinds of endpoints without TLS that Twisted decodes itself. The others are plugins, which import
`twisted.internet.endpoints` again: with `systemd:` the sockets that systemd has passed would be unknown there."""


def needs_tls(settings: Settings) -> bool:
    """Return whether a listener, the store or an issuer may use TLS, or needs modules that import it."""
    endpoints = (*settings.listen, *settings.admin.listen)
    return (
        any(kinds_of(one)[-1] not in PLAIN_KINDS for one in endpoints)
        or bool(settings.bearer)
        or settings.store.startswith("redis")
    )


@contextmanager
def startup_imports(settings: Settings) -> Iterator[None]:
    """Import what a server needs: the reactor, then `postd.daemon.service`, in the body of a `with` statement.

    This takes two fifths off the start, and a fifth off the memory of an idle server:

    - Garbage collection is off during the imports, and skips the imported objects afterwards.
    - Twisted is imported as if `h2` were not installed: the server has HTTP/1.1 alone.
    - Unless `needs_tls`, likewise without pyOpenSSL, which Twisted can do without (its extra `tls`).

    Both can be imported afterwards, for an issuer that comes with a reload. Of the modules of Twisted that were
    imported without them, only `twisted.internet.endpoints` matters to a client, and is imported anew then. Where the
    reactor's modules are imported already, such as by `twistd --reactor`, nothing is different from other imports.
    """
    if "twisted.internet.tcp" in sys.modules:
        yield
        return
    names = {"h2"} if needs_tls(settings) else {"h2", "OpenSSL"}
    left_out = names - sys.modules.keys()
    sys.modules |= dict.fromkeys(left_out)  # type: ignore[arg-type] # None: an import raises ModuleNotFoundError
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        for name in left_out:
            del sys.modules[name]
        if "OpenSSL" in left_out and sys.modules.pop("twisted.internet.endpoints", None) is not None:
            del sys.modules["twisted.internet"].endpoints

"""One server process and its reloads, on a reactor that does not run."""

import gc
import weakref
from pathlib import Path
from typing import cast

from postd.config import load_settings
from postd.serving import Parts, PostdService
from postd.workers import Started
from twisted.internet.testing import MemoryReactorClock

from postd.reactor import IReactor


def test_reload_frees_the_replaced_resource_tree(tmp_path: Path) -> None:
    reactor = cast(IReactor, MemoryReactorClock())
    loaded = load_settings(None, {}, tmp_path)
    parts = Parts(loaded, reactor=reactor)
    started = Started(serving=lambda: None, ready=lambda: None, refused=lambda _: None)
    service = PostdService(parts, [], started=started, reactor=reactor)
    parts.logins.start()
    replaced = [weakref.ref(parts.site.resource), weakref.ref(parts.logins)]
    gc.disable()
    try:
        service.reload(loaded)
        assert [one() for one in replaced] == [None, None]
    finally:
        gc.enable()
        parts.logins.stop()

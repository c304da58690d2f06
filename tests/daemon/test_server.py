"""One server process and its reloads, on a reactor that does not run."""

import gc
import weakref
from pathlib import Path
from typing import cast

from twisted.internet.testing import MemoryReactorClock

from postd.daemon.server import Server, ServerParts, StartCallbacks
from postd.reactor import IReactor, ServiceClock
from postd.settings.loading import load_settings


def test_bodies_are_not_read_at_pages_with_forward(tmp_path: Path) -> None:
    pages = (
        '[[page]]\npath = "/gate"\nschemes = ["basic"]\nforward = true\n[[page]]\npath = "/x"\nschemes = ["basic"]\n'
    )
    (tmp_path / "postd.toml").write_text(f'users = "users"\ntrusted_proxies = ["unix"]\n{pages}')
    reactor = cast(IReactor, MemoryReactorClock())
    loaded = load_settings(str(tmp_path / "postd.toml"), {}, tmp_path)
    parts = ServerParts(loaded, clock=ServiceClock(reactor), reactor=reactor)
    assert set(parts.site.bodiless_paths) == {b"/gate"}


def test_reload_frees_the_replaced_resource_tree(tmp_path: Path) -> None:
    reactor = cast(IReactor, MemoryReactorClock())
    loaded = load_settings(None, {}, tmp_path)
    parts = ServerParts(loaded, clock=ServiceClock(reactor), reactor=reactor)
    started = StartCallbacks(accepting=lambda: None, ready=lambda: None, failed=lambda _: None)
    service = Server(parts, [], callbacks=started, reactor=reactor)
    parts.authentication.start()
    replaced = [weakref.ref(parts.site.resource), weakref.ref(parts.authentication)]
    gc.disable()
    try:
        service.reload(loaded)
        assert [one() for one in replaced] == [None, None]
    finally:
        gc.enable()
        parts.authentication.stop()

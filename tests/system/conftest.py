from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.daemon import Daemon

if TYPE_CHECKING:
    from tests.system.browser import Browser, OpenBrowser

LONGEST = (
    "test_board.py",
    "test_bench.py",
    "test_balancers.py",
    "test_browser.py",
    "test_pages.py",
    "test_error_pages.py",
    "test_redis.py",
    "test_schemathesis.py",
    "test_worst_input.py",
    "test_gateway.py",
    "test_soak.py",
    "test_packaging.py",
    "test_provider.py",
    "test_client_certificates.py",
    "test_systemd.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first: each runs in one process, so that a long last one would run alone."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def open_browser(request: pytest.FixtureRequest) -> "OpenBrowser":
    """Return a function that opens a browser for a URL, with a folder for its files; tests run with each browser."""
    # The tests of Redis are run without the extra `system`, too, which has what these import.
    from tests.system.chromium import open_chromium  # noqa: PLC0415
    from tests.system.firefox import open_firefox  # noqa: PLC0415

    return open_chromium if request.param == "chromium" else open_firefox


@pytest.fixture(scope="module")
def one_browser(
    open_browser: "OpenBrowser", daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[Browser]":
    """One browser for all tests of a module; tests call `begin_anew` first."""
    with open_browser(daemon.url, tmp_path_factory.mktemp("profile")) as browser:
        yield browser

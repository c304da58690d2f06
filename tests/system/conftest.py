import pytest

LONGEST = (
    "test_balancers.py",
    "test_board.py",
    "test_schemathesis.py",
    "test_readme.py",
    "test_packaging.py",
    "test_browser.py",
    "test_bench.py",
    "test_provider.py",
    "test_redis.py",
    "test_soak.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: each is one process's, and the last one ends when nobody else works."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))

"""Who imports whom: not to police, only so that the picture in CONTRIBUTING stays true."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "postd"

MAY_IMPORT = {
    "__init__": set(),
    "errors": set(),
    "model": {"errors"},
    "config": {"errors"},
    "reactor": set(),
    "store": {"errors", "model", "reactor", "store"},
    "web": {"errors", "model", "store", "web"},
    "listeners": {"errors", "reactor"},
    "service": {"config", "errors", "listeners", "reactor", "store", "web"},
    "tap": {"__init__", "config", "errors", "reactor", "service"},
}
WITHOUT_TWISTED = {"__init__", "errors", "model", "config"}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file: Path) -> None:
    layer = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    names = imported(file)
    ours = {[*name.split("."), "__init__"][1] for name in names if name.split(".")[0] == "postd"}
    assert ours <= MAY_IMPORT[layer]
    if layer in WITHOUT_TWISTED:
        assert not any(name.startswith(("twisted", "klein")) for name in names)
    if layer == "web":
        assert {name for name in names if name.startswith("postd.store")} <= {"postd.store.interface"}

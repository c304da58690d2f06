"""Who imports whom: not to police, only so that the picture in CONTRIBUTING stays true."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "postd"

MAY_IMPORT = {
    "__init__": set(),
    "errors": set(),
    "linux": set(),
    "model": {"errors"},
    "protocol": {"model", "protocol"},
    "config": {"errors", "model", "protocol"},
    "reactor": set(),
    "store": {"errors", "linux", "model", "reactor", "store"},
    "auth": {"auth", "errors", "model", "protocol", "reactor", "store"},
    "web": {"auth", "errors", "linux", "metrics", "model", "protocol", "report", "store", "web"},
    "listeners": {"certificates", "errors", "linux", "proxied", "reactor"},
    "proxied": set(),
    "process": set(),
    "log": set(),
    "review": {"auth", "config", "model", "protocol"},
    "issuers": {"auth", "config", "errors", "protocol", "reactor"},
    "logins": {"auth", "config", "errors", "issuers", "metrics", "reactor", "report", "review", "store", "web"},
    "workers": {"config", "listeners", "log", "metrics", "process", "reactor", "report"},
    "metrics": {"metrics"},
    "report": {"metrics"},
    "notify": {"errors"},
    "certificates": set(),
    "serving": {
        "config",
        "errors",
        "listeners",
        "logins",
        "metrics",
        "process",
        "reactor",
        "report",
        "review",
        "store",
        "web",
        "workers",
    },
    "supervisor": {"__init__", "config", "errors", "listeners", "notify", "reactor", "report", "review", "web"},
    "service": {
        "config",
        "errors",
        "listeners",
        "log",
        "notify",
        "reactor",
        "report",
        "review",
        "serving",
        "store",
        "supervisor",
        "web",
        "workers",
    },
    "worker": {"config", "errors", "listeners", "metrics", "reactor", "service", "workers"},
    "tap": {"__init__", "config", "errors", "linux", "log", "reactor", "service"},
    "client": {"auth", "client", "errors", "model", "protocol", "reactor"},
    "cli": {
        "__init__",
        "auth",
        "cli",
        "client",
        "config",
        "errors",
        "issuers",
        "linux",
        "listeners",
        "log",
        "model",
        "protocol",
        "reactor",
        "review",
        "store",
    },
}
WITHOUT_TWISTED = {"__init__", "errors", "linux", "model", "protocol", "config", "review"}


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
    if layer == "auth":
        # It serves nothing; what it fetches from issuers, it fetches in one place.
        assert file.name == "fetching.py" or not any(name.startswith(("treq", "twisted.web")) for name in names)
    ours = {[*name.split("."), "__init__"][1] for name in names if name.split(".")[0] == "postd"}
    assert ours <= MAY_IMPORT[layer]
    if layer in WITHOUT_TWISTED:
        assert not any(name.startswith(("twisted", "klein")) for name in names)
    if layer == "client":
        # It is for programs that have no server: of what the server knows about clients it takes nothing.
        used = {name for name in names if name.startswith("postd.auth")}
        assert used <= {"postd.auth.fetching", "postd.auth.once"}
    if layer in {"auth", "web"}:
        assert {name for name in names if name.startswith("postd.store")} <= {"postd.store.interface"}

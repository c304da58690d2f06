"""Imports between the packages of `postd` go one way, as the floor plan in docs/explanation/architecture.md has it."""

import ast
import pkgutil
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from docs.drawings import FLOORS
from docs.drawings import WITHOUT_TWISTED as DRAWN_WITHOUT_TWISTED

PACKAGE = Path(__file__).parent.parent / "postd"

MAY_IMPORT = {
    "__init__": set(),
    "credential_files": set(),
    "defaults": set(),
    "errors": set(),
    "linux": set(),
    "reactor": set(),
    "scheme_names": set(),
    "model": {"errors"},
    "caching": set(),
    "fair_queue": {"errors", "protocol"},
    "twisted_private": set(),
    "protocol": {"protocol"},
    "monitoring": {"monitoring"},
    "net": {"credential_files", "errors", "linux", "net", "protocol", "reactor", "twisted_private"},
    "store": {"credential_files", "defaults", "errors", "linux", "model", "protocol", "reactor", "store"},
    "settings": {"defaults", "errors", "net", "protocol", "scheme_names", "settings"},
    "auth": {
        "auth",
        "caching",
        "credential_files",
        "defaults",
        "errors",
        "fair_queue",
        "net",
        "protocol",
        "reactor",
        "store",
    },
    "http": {"auth", "errors", "http", "protocol"},
    "front": {
        "auth",
        "errors",
        "fair_queue",
        "front",
        "http",
        "linux",
        "monitoring",
        "protocol",
        "twisted_private",
    },
    "protect": {
        "auth",
        "defaults",
        "errors",
        "http",
        "monitoring",
        "net",
        "protect",
        "protocol",
        "reactor",
        "scheme_names",
        "store",
        "twisted_private",
    },
    "web": {
        "auth",
        "caching",
        "errors",
        "fair_queue",
        "http",
        "model",
        "monitoring",
        "protect",
        "protocol",
        "store",
        "web",
    },
    "daemon": {
        "__init__",
        "auth",
        "daemon",
        "errors",
        "front",
        "http",
        "linux",
        "monitoring",
        "net",
        "protect",
        "protocol",
        "reactor",
        "scheme_names",
        "settings",
        "store",
        "twisted_private",
        "web",
    },
    "client": {"caching", "client", "credential_files", "errors", "model", "net", "protocol", "reactor"},
    "testing": {"auth", "client", "daemon", "errors", "protect", "protocol", "reactor", "settings", "testing"},
    "cli": {
        "auth",
        "cli",
        "client",
        "daemon",
        "errors",
        "linux",
        "model",
        "net",
        "protect",
        "protocol",
        "reactor",
        "settings",
        "store",
    },
}
"""What each package, or module beside them, may import of the others."""

ONLY_MODULES = {
    ("settings", "net"): {"postd.net.endpoint_strings"},
    ("auth", "net"): {"postd.net.fetching"},
    ("client", "net"): {"postd.net.fetching", "postd.net.http_client"},
    ("auth", "store"): {"postd.store.interface"},
    ("store", "protocol"): {
        "postd.protocol.passkey",
        "postd.protocol.password_reset",
        "postd.protocol.personal_token",
        "postd.protocol.session",
    },
    ("http", "auth"): {"postd.auth.identity"},
    ("front", "auth"): {"postd.auth.identity"},
    ("protect", "net"): {"postd.net.fetching"},
    ("protect", "store"): {"postd.store.interface", "postd.store.opening"},
    ("web", "store"): {"postd.store.interface"},
    ("testing", "auth"): {"postd.auth.user_file"},
    ("testing", "daemon"): {"postd.daemon.server"},
    ("testing", "protect"): {"postd.protect"},
    ("cli", "protect"): {"postd.protect.schemes.interface"},
    ("cli", "daemon"): {"postd.daemon.log", "postd.daemon.schemes", "postd.daemon.settings_checks", "postd.daemon.tap"},
}
"""Where a package may import only some modules of another: the importing package, the other, the modules."""

WITHOUT_TWISTED = ("__init__", "defaults", "errors", "linux", "model", "protocol", "scheme_names", "settings")
"""The packages and modules that do not import Twisted."""

FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def package_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def importers_of(files: list[Path], *prefixes: str) -> list[str]:
    """Return which files import a name that begins so."""
    return [name_of(file) for file in files if any(name.startswith(prefixes) for name in imported(file))]


def packages_of(names: set[str]) -> set[str]:
    """Return the packages of postd, or modules beside them, that are among imported names."""
    return {[*name.split("."), "__init__"][1] for name in names if name.split(".")[0] == "postd"}


def test_packages_import_only_the_packages_below_them() -> None:
    wrong = []
    for file in FILES:
        package, names = package_of(file), imported(file)
        wrong += [(name_of(file), other) for other in sorted(packages_of(names) - MAY_IMPORT[package])]
        for (importer, other), modules in ONLY_MODULES.items():
            if importer == package:
                found = {name for name in names if name.startswith(f"postd.{other}")}
                wrong += [(name_of(file), name) for name in sorted(found - modules)]
    assert wrong == []


def test_packages_without_twisted_import_no_twisted() -> None:
    files = [file for file in FILES if package_of(file) in WITHOUT_TWISTED]
    assert importers_of(files, "twisted", "klein") == []


def test_authentication_imports_no_http() -> None:
    assert importers_of([file for file in FILES if package_of(file) == "auth"], "treq", "twisted.web") == []


def test_table_has_no_import_too_many() -> None:
    for package, others in MAY_IMPORT.items():
        used = {other for file in FILES if package_of(file) == package for other in packages_of(imported(file))}
        assert others - {package} <= used, package


def test_floor_plan_has_each_package_above_what_it_imports() -> None:
    floors = {name: floor for floor, boxes in enumerate(FLOORS) for name, _ in boxes}
    assert floors.keys() == MAY_IMPORT.keys() - {"__init__"}
    for package, others in MAY_IMPORT.items():
        for other in others - {package, "__init__"}:
            assert floors[package] < floors[other], f"{package} imports {other}"


def test_floor_plan_marks_the_packages_without_twisted() -> None:
    assert {*WITHOUT_TWISTED} - {"__init__"} == DRAWN_WITHOUT_TWISTED


def test_imports_of_packages_have_no_cycles() -> None:
    left = {package: others - {package} for package, others in MAY_IMPORT.items()}
    while left:
        free = {package for package, others in left.items() if not others & left.keys()}
        assert free, f"a cycle among {sorted(left)}"
        left = {package: others for package, others in left.items() if package not in free}


def test_imports_of_modules_have_no_cycles() -> None:
    """Nor do those for type checking alone."""
    modules = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): imported(file) for file in FILES}
    graph = {name: {other for other in names if other in modules} for name, names in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_docstrings_cite_names_that_exist() -> None:
    missing = []
    for file in FILES:
        for cited in re.findall(r"`(postd\.\w+(?:\.\w+)+)", file.read_text()):
            try:
                pkgutil.resolve_name(cited)
            except (AttributeError, ImportError):
                missing.append((name_of(file), cited))
    assert missing == []

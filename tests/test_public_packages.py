"""The public packages: the errors that they raise, and the examples in their docstrings."""

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor as global_reactor
from twisted.web.resource import Resource

import postd.client
import postd.testing
from postd.client import DPoPKey
from postd.protect import Protection
from postd.reactor import IReactor
from postd.testing import Issuer, PostServer, write_users

REACTOR = cast(IReactor, global_reactor)
PACKAGES = (postd.client, postd.testing)
WITHOUT_EXAMPLE = {"Auth", "Change", "ChangeKind", "Post", "Reset", "SeenPost"}
"""Names of values without behavior of their own, beside errors."""

_EXAMPLE = re.compile(r"^Example::\n\n((?:    .*\n|\n)+)", re.MULTILINE)
_PRINTED = re.compile(r"print\(.*\)  # (.*)")


def examples(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each name of a package with the examples in its docstring."""
    for name in package.__all__:
        text = inspect.cleandoc(getattr(package, name).__doc__ or "") + "\n"
        yield name, "".join(textwrap.dedent(found) for found in _EXAMPLE.findall(text))


EXAMPLES = [(name, text) for package in PACKAGES for name, text in examples(package) if text]


def raised_names(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield module and class of each error that a package raises by a call."""
    for file in sorted(Path(str(package.__file__)).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=name))) if name.endswith("Error"):
                    yield file.name, name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_raised_errors_are_exported(package: ModuleType) -> None:
    raised = list(raised_names(package))
    assert raised
    assert [found for found in raised if found[1] not in package.__all__ and not hasattr(builtins, found[1])] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_public_name_has_an_example(package: ModuleType) -> None:
    def is_error(name: str) -> bool:
        value = getattr(package, name)
        return isinstance(value, type) and issubclass(value, Exception)

    missing = [name for name, text in examples(package) if not text and name not in WITHOUT_EXAMPLE]
    assert [name for name in missing if not is_error(name)] == []


class Hello(Resource):
    isLeaf = True

    def render_GET(self, _request: object) -> bytes:
        return b"Hello"


@pytest.mark.parametrize("example", EXAMPLES, ids=[name for name, _ in EXAMPLES])
@ensureDeferred
async def test_example_prints_what_it_says(
    example: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key.pem").write_bytes(DPoPKey.generate().encode_pem())
    users = write_users(tmp_path / "passwords", {"alice": "wonderland"})
    async with Issuer(REACTOR) as issuer:
        (tmp_path / "token").write_text(issuer.sign())
        bearer = [{"issuer": issuer.url, "audience": issuer.audience}]
        rules = {"read": ["basic", "digest", "bearer"], "write": ["digest"]}
        async with PostServer(REACTOR, on_port=True, users=users, api=rules, bearer=bearer) as server:
            text = example[1].replace("http://127.0.0.1:8080", server.url)
            printed: list[str] = []
            names: dict[str, Any] = {
                **{name: getattr(package, name) for package in PACKAGES for name in package.__all__},
                "Protection": Protection,
                "reactor": REACTOR,
                "resource": Hello(),
                "print": lambda *values: printed.append(" ".join(map(str, values)).rstrip()),
            }
            exec("async def run():\n" + textwrap.indent(text, "    "), names)
            await names["run"]()
    assert printed == _PRINTED.findall(text)

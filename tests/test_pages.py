"""README, the tutorial and the how-to pages, without running them; `tests/system/test_pages.py` runs them."""

import ast
from pathlib import Path

from postd.settings.loading import load_settings
from tests.cases import each
from tests.pages import ROOT, Block, read_blocks

PAGES = [
    "README.md",
    "docs/tutorial.md",
    *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/how-to/**/*.md"))),
]
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
SKIPPED = 58
"""Blocks that cannot be run where the tests run: they need root, systemd, a container engine or an account."""


def test_first_two_blocks_of_readme_are_one_line_each() -> None:
    for block in read_blocks("README.md")[:2]:
        assert (block.language, block.words, block.text.count("\n")) == ("sh", (), 1)


def test_skipped_blocks_have_a_reason_and_are_counted() -> None:
    skipped = [block for block in BLOCKS if block.skipped]
    assert [str(block) for block in skipped if len(block.words) < 3] == []
    assert len(skipped) == SKIPPED


def test_blocks_are_of_a_known_kind() -> None:
    """A command in another language would not be run."""
    kinds = {"console", "python", "sh", "text", "toml", "yaml", "bash", "{toctree}"}
    assert {block.language for block in BLOCKS} <= kinds
    shown = [block for block in BLOCKS if not block.words and block.language in {"bash", "yaml", "text"}]
    assert [str(block) for block in shown if "\n$ " in f"\n{block.text}"] == []


@each("block", [block for block in BLOCKS if block.language == "python"])
def test_python_can_be_parsed(block: Block) -> None:
    ast.parse(block.text)


@each("block", [block for block in BLOCKS if block.language == "toml"])
def test_settings_are_valid(block: Block, tmp_path: Path) -> None:
    (tmp_path / "postd.toml").write_text(block.text)
    load_settings("postd.toml", {}, tmp_path)

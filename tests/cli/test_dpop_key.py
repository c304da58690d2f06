"""`postd dpop-key`: the file that it makes, and its thumbprint."""

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postd.cli.main import main
from postd.client import load_dpop_key


def make(file: Path | str) -> Result:
    return CliRunner().invoke(main, ["dpop-key", str(file)], prog_name="postd")


def refusal(file: Path | str) -> str:
    result = make(file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("postd: ").removesuffix("\n")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377], ids=oct)
def test_key_has_mode_0600_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    before = os.umask(umask)
    try:
        result = make(file)
    finally:
        os.umask(before)
    assert (result.exit_code, result.stderr) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert result.stdout == f"{load_dpop_key(str(file)).thumbprint}\n"


def test_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    file, link = tmp_path / "key.pem", tmp_path / "link"
    make(file)
    content = file.read_bytes()
    link.symlink_to(tmp_path / "nowhere")
    for one in (file, link, tmp_path):
        assert refusal(one) == f"{one}: exists already, and is not overwritten"
    assert file.read_bytes() == content
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("file", "why"), [("missing/key.pem", "No such file or directory"), ("", "No such file")])
def test_unusable_path_is_one_line(file: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(file).startswith(f"{file}: cannot be written: {why}")
    assert list(tmp_path.iterdir()) == []


def test_key_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    assert refusal(tmp_path / "key.pem").endswith("key.pem: cannot be written: No space left on device")
    assert list(tmp_path.iterdir()) == []

"""`postd user`, run by root in folders of other users."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from postd.auth.user_file import Account, set_account
from postd.auth.user_file_editing import edit_user_file, find_write_problem, load_user_file
from postd.errors import ConfigError

ALICE, BOB = 12345, 12346
HASH = "$2y$04$mF26YK5AdHGdKINZAtCtbem9/3DyeDuCVS9YmRZjN3.FhmBqkgzMm"
BEFORE = f"root:{HASH}\n"
EDITS = 300
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _as_root() -> None:
    assert os.geteuid() == 0, "needs root"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder with `etc/users` of root, `bobs/users` of Bob, and Alice's empty `home`."""
    for folder, owner in (("etc", 0), ("bobs", BOB)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "users").write_text(BEFORE)
        give(tmp_path / folder, owner)
        give(tmp_path / folder / "users", owner)
    (tmp_path / "home").mkdir()
    give(tmp_path / "home", ALICE)
    return tmp_path


def give(path: Path, owner: int) -> None:
    os.chown(path, owner, owner, follow_symlinks=False)


def link(path: Path, target: Path | str, owner: int) -> Path:
    path.symlink_to(target)
    give(path, owner)
    return path


def add(path: Path, while_locked: Callable[[], object] = lambda: None) -> None:
    def change(content: bytes, _: Mapping[str, Account]) -> bytes:
        while_locked()
        return set_account(content, Account("new", HASH))

    edit_user_file(path, change)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as read:
        load_user_file(path)
    with pytest.raises(ConfigError) as edited:
        add(path)
    assert str(read.value) == str(edited.value)
    return str(edited.value)


def test_file_that_is_mounted_by_itself_cannot_be_replaced(top: Path) -> None:
    """As a container has it that gets a file in place of its folder."""
    file, other = top / "etc/users", top / "bobs/users"
    assert find_write_problem(file) is None
    subprocess.run(["mount", "--bind", other, file], check=True)
    try:
        assert find_write_problem(file) == (
            "is mounted by itself, so that no other file can take its place; mount its folder"
        )
        assert refusal_to_write(file) == f"{file}: cannot be written: Device or resource busy"
    finally:
        subprocess.run(["umount", file], check=True)


def refusal_to_write(path: Path) -> str:
    with pytest.raises(ConfigError) as edited:
        add(path)
    return str(edited.value)


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _link_to_file(top: Path) -> Path:
    return link(top / "home/users", "../etc/users", ALICE)


def _link_to_new_file(top: Path) -> Path:
    return link(top / "home/users", "../etc/new", ALICE)


def _link_to_folder(top: Path) -> Path:
    return link(top / "home/conf", top / "etc", ALICE) / "users"


def _link_behind_a_link_of_root(top: Path) -> Path:
    _link_to_folder(top)
    return link(top / "users", "home/conf/users", 0)


def _link_to_anothers_file(top: Path) -> Path:
    return link(top / "home/users", top / "bobs/users", ALICE)


def _link_to_a_link_of_the_owner(top: Path) -> Path:
    link(top / "bobs/link", "users", BOB)
    return link(top / "home/users", top / "bobs/link", ALICE)


@pytest.mark.parametrize(
    "make",
    [
        _link_to_file,
        _link_to_new_file,
        _link_to_folder,
        _link_behind_a_link_of_root,
        _link_to_anothers_file,
        _link_to_a_link_of_the_owner,
    ],
)
def test_link_of_another_user_is_refused_and_named(top: Path, make: Callable[[Path], Path]) -> None:
    path = make(top)
    line = refusal(path)
    assert line.startswith(f"{path}: the symbolic link {top}/home/")
    assert f"belongs to user {ALICE}" in line
    for folder, owner in (("etc", 0), ("bobs", BOB)):
        file = top / folder / "users"
        assert file.read_text() == BEFORE
        assert file.stat().st_uid == owner
        assert file.stat().st_mode & 0o777 == 0o644
        assert "new" not in files(file.parent)


def test_command_refuses_the_link_in_one_line(top: Path) -> None:
    path = _link_to_file(top)
    for command in (["add", "new", "--password-stdin"], ["passwd", "root", "--password-stdin"], ["list"]):
        postd = str(Path(sys.executable).parent / "postd")
        given = [postd, "user", *command, "-u", str(path)]
        done = subprocess.run(given, input="secret", capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert f"the symbolic link {path} belongs to user {ALICE}, its target to root" in done.stderr


@pytest.mark.parametrize("maker", [0, ALICE])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("through", ["file", "folder"])
def test_link_of_root_or_owner_is_followed(top: Path, through: str, maker: int, *, there: bool) -> None:
    (top / "home/conf").mkdir()
    file = top / "home/conf/users"
    give(file.parent, ALICE)
    if there:
        file.write_text(BEFORE)
        give(file, ALICE)
    path = link(top / "link", file if through == "file" else file.parent, maker)
    path = path if through == "file" else path / "users"
    add(path)
    assert b"new:" in (load_user_file(path) or b"")
    assert (top / "link").is_symlink()
    assert (file.stat().st_uid, file.stat().st_gid) == (ALICE, ALICE)
    assert file.stat().st_mode & 0o777 == 0o600
    assert files(file.parent) == ["users"]


def test_other_users_follow_any_link(top: Path) -> None:
    file = top / "home/users"
    file.write_text(BEFORE)
    give(file, ALICE)
    top.chmod(0o755)
    path = link(top / "link", "home/users", BOB)
    script = (
        "import os, sys; from pathlib import Path; from postd.auth.user_file_editing import edit_user_file; "
        f"os.chdir(sys.argv[1]); os.setuid({ALICE}); edit_user_file(Path('link'), lambda *_: b'#\\n')"
    )
    subprocess.run([sys.executable, "-c", script, str(path.parent)], check=True)
    assert file.read_text() == "#\n"


def test_folder_replaced_by_a_link_changes_no_other_file(top: Path) -> None:
    conf = top / "home/conf"
    conf.mkdir()
    give(conf, ALICE)

    def replace() -> None:
        conf.rename(top / "home/was")
        link(conf, top / "etc", ALICE)

    add(conf / "users", replace)
    assert (top / "etc/users").read_text() == BEFORE
    assert files(top / "etc") == ["users"]
    assert "new:" in (top / "home/was/users").read_text()


def test_file_replaced_by_a_link_is_written_as_a_file(top: Path) -> None:
    add(top / "home/users")

    def replace() -> None:
        (top / "home/users").unlink()
        link(top / "home/users", top / "etc/users", ALICE)

    add(top / "home/users", replace)
    assert (top / "etc/users").read_text() == BEFORE
    assert not (top / "home/users").is_symlink()


def test_hard_link_is_replaced_and_its_target_stays(top: Path) -> None:
    """Linux lets Alice create such a link only if fs.protected_hardlinks is off."""
    (top / "home/users").hardlink_to(top / "etc/users")
    add(top / "home/users")
    assert (top / "etc/users").read_text() == BEFORE
    assert (top / "home/users").stat().st_uid == 0
    assert (top / "home/users").stat().st_mode & 0o777 == 0o600


SWAPPING = """
import os
while os.getppid() == {parent}:
    for name in ("real", "fake"):
        os.rename(name, "conf")
        os.rename("conf", name)
"""


@pytest.fixture
def swapping(top: Path) -> Iterator[Path]:
    """A folder of Alice that another process keeps swapping with a link to a folder of root."""
    real, fake = top / "home/real", top / "home/fake"
    real.mkdir()
    give(real, ALICE)
    link(fake, top / "etc", ALICE)
    script = SWAPPING.format(parent=os.getpid())
    with subprocess.Popen([sys.executable, "-c", script], cwd=top / "home") as process:
        yield top / "home/conf"
        assert process.poll() is None
        process.kill()


def test_racing_folder_swap_changes_no_other_file(top: Path, swapping: Path) -> None:
    """An edit meets the folder, the link or neither by chance: edits go on until each was met."""
    outcomes: Counter[str] = Counter()
    deadline = time.monotonic() + PATIENCE
    while outcomes.total() < EDITS or (len(outcomes) < 3 and time.monotonic() < deadline):
        try:
            add(swapping / "users")
        except ConfigError as error:
            outcomes[str(error).partition(": ")[2].partition(" /")[0]] += 1
        else:
            outcomes["done"] += 1
    assert (top / "etc/users").read_text() == BEFORE
    assert files(top / "etc") == ["users"]
    assert outcomes.keys() >= {"done", "the symbolic link"}

"""A full file system and unwritable folders; needs root, to mount one."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import TWISTD, Daemon
from tests.store.sqlite.older import NEWEST, make_older, tables_of

UNPRIVILEGED = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_refuses_writes_until_space_returns(tmp_path: Path, small_disk: Path) -> None:
    with Daemon(tmp_path, "--store", f"sqlite:{small_disk}/posts.db") as daemon, httpx.Client() as client:
        url = f"{daemon.url}/post"
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 1_000_000)
        stored = 0
        while (answer := client.post(url, json={"post": "x" * 140})).status_code == 201:
            stored += 1
        assert answer.status_code in {503, 507}
        assert answer.headers["Retry-After"]
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert client.post(url, json={"post": "still full" + "x" * 120}).status_code in {503, 507}
        assert len(client.get(url).json()) == stored
        ballast.unlink()
        assert client.post(url, json={"post": "room again"}).status_code == 201
        posts = client.get(url).json()
        assert (len(posts), posts[-1]["post"]) == (stored + 1, "room again")
        assert daemon.log.count("writing fails") >= 1
        assert "writing works again" in daemon.log
        assert "Traceback" not in daemon.log
    with Daemon(tmp_path, "--store", f"sqlite:{small_disk}/posts.db") as daemon:
        assert len(httpx.get(f"{daemon.url}/post").json()) == stored + 1


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o644, 0o555)])
def test_unwritable_store_ends_the_start(tmp_path: Path, file_mode: int, folder_mode: int) -> None:
    with Daemon(tmp_path):
        pass
    (tmp_path / "postd.db").chmod(file_mode)
    tmp_path.chmod(folder_mode)
    # Root without the capability to pass over file modes is a user like others.
    powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    daemon = [TWISTD, "-n", "--pidfile=", "postd", "--listen=tcp:0:interface=127.0.0.1"]
    result = subprocess.run(
        [*powerless, *daemon], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("postd: store (default): ")
    assert "not writable" in result.stderr


def test_upgrade_waits_for_space_for_its_copy(tmp_path: Path, small_disk: Path) -> None:
    path = small_disk / "posts.db"
    before = make_older(path, 3, posts=6000)
    assert tables_of(path) == before
    small_disk.chmod(0o755)  # Linux keeps even root from others' files in a folder for everybody
    os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (2 * 2**20 - 2 * path.stat().st_size))
    command = [TWISTD, "-n", "--pidfile=", "postd", "--listen=tcp:0:interface=127.0.0.1", f"--store=sqlite:{path}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "cannot be made: No space left on device; it takes 1 MiB in a folder" in result.stderr
    assert {file.name for file in small_disk.iterdir()} == {"posts.db", "ballast"}
    assert tables_of(path) == before
    ballast.unlink()
    with Daemon(tmp_path, "--store", f"sqlite:{path}") as daemon:
        upgraded = f"was upgraded from schema 3 to {NEWEST}; a copy of the old file, which has texts of deleted posts,"
        assert f"{upgraded} is {path}.schema-3" in daemon.log
    copy = small_disk / "posts.db.schema-3"
    # The owner of the copy can put it in the place of the file.
    assert (copy.stat().st_uid, copy.stat().st_gid) == (UNPRIVILEGED, UNPRIVILEGED)
    assert tables_of(copy) == before

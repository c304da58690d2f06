"""Build the image of etc/Containerfile without a registry or a container engine, start it and send it requests.

Its base is Debian 13 with its own Python, in place of the base in the Containerfile, which only a registry has. Needs
root on Linux, debootstrap, and buildah, which builds and runs in chroots. docs/development/tests.md has the command.
"""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.platforms.matrix import FOLDER, ROOT, SYSTEMS, MatrixError, debootstrap, run

IMAGE = "localhost/postd"
VERSION = "1.2.0"
START_MAX_S = 60

SYSTEM = next(system for system in SYSTEMS if system.suite == "trixie")
BASE = "localhost/python"


class Builder:
    """Buildah, with its images in a folder.

    Args:
        folder: for images and systems.
        binds: files and folders of this machine that containers have at the same path.
    """

    def __init__(self, folder: Path, binds: Sequence[Path]) -> None:
        self._folder = folder
        self._buildah = [
            "buildah", "--storage-driver=vfs", f"--root={folder / 'images'}", f"--runroot={folder / 'images-run'}"
        ]  # fmt: skip
        self._volumes = [f"--volume={path}:{path}:ro" for path in binds]

    def ask(self, *arguments: str) -> str:
        return run([*self._buildah, *arguments])

    def make_base(self) -> None:
        system = self._folder / "systems" / SYSTEM.suite
        debootstrap(SYSTEM, system)
        container = self.ask("from", "scratch").strip()
        self.ask("add", "--quiet", container, str(system), "/")
        self.ask("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        install = "apt-get install -y -qq --no-install-recommends python3-pip"
        prepare = (
            f"apt-get update -qq -o Acquire::Check-Valid-Until=false && {install} && ln -s python3 /usr/bin/python"
        )
        self.ask("run", "--isolation=chroot", container, "--", "sh", "-c", prepare)
        self.ask("commit", "--quiet", "--rm", container, BASE)

    def build(self, sources: Path) -> None:
        options = ["--isolation=chroot", "--pull-never", "--format=docker", *self._volumes]
        file = sources / "etc" / "Containerfile"
        given = [f"--build-arg=BASE={BASE}", f"--build-arg=VERSION={VERSION}"]
        self.ask("build", *options, *given, f"--file={file}", f"--tag={IMAGE}", str(sources))

    def command(self, container: str, etc: Path, *command: str) -> list[str]:
        options = ["--isolation=chroot", f"--volume={etc}:/etc/postd:ro"]
        return [*self._buildah, "run", *options, container, "--", *command]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def try_image(builder: Builder, etc: Path) -> None:
    """Start the image with its own settings, which it refuses, and with `insecure = ["open-writes"]`.

    Raises:
        MatrixError: it behaves otherwise.
    """
    container = builder.ask("from", "--pull-never", IMAGE).strip()
    about = json.loads(builder.ask("inspect", "--type=image", IMAGE))["Docker"]["config"]
    serve, health = about["Cmd"], about["Healthcheck"]["Test"][1:]
    port, admin = free_port(), free_port()
    sample = (etc / "postd.toml").read_text().replace("tcp:8080:", f"tcp:{port}:").replace("tcp:9180:", f"tcp:{admin}:")
    (etc / "postd.toml").write_text(sample)
    refused = subprocess.run(builder.command(container, etc, *serve), capture_output=True, text=True, check=False)
    _expect(
        refused.returncode == 1 and "writes are open to other machines" in refused.stdout + refused.stderr,
        refused.stderr,
    )
    (etc / "postd.toml").write_text(sample.replace('#   insecure = ["open-writes"]', 'insecure = ["open-writes"]'))
    daemon = subprocess.Popen(builder.command(container, etc, *serve), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/post", daemon)
        added = urllib.request.Request(
            f"http://127.0.0.1:{port}/post", b'{"post": "From an image"}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(added, timeout=10) as answer:
            _expect(answer.status == 201, f"POST /post: {answer.status}")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/post", timeout=10) as answer:
            _expect(json.load(answer)[-1]["post"] == "From an image", "the post is not in the list")
        run(builder.command(container, etc, "env", f"POSTD_ADMIN=127.0.0.1:{admin}", *health))
        version = run(builder.command(container, etc, "postd", "--version")).strip()
        _expect(version == f"postd {VERSION}", version)
        _expect(run(builder.command(container, etc, "id", "-u")).strip() == "10001", "it runs as another user")
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(START_MAX_S)


def _expect(holds: object, why: str) -> None:
    if not holds:
        raise MatrixError(why)


def _wait_for(url: str, daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_MAX_S
    while time.monotonic() < deadline and daemon.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise MatrixError(f"{url} is not served: {daemon.communicate()[0].decode()[-500:] if daemon.poll() else ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the image of etc/Containerfile, start it and ask it.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="%(default)s")
    parser.add_argument("--bind", type=Path, action="append", default=[], help="a file or folder that builds find, too")
    options = parser.parse_args()
    builder = Builder(options.folder, options.bind)
    work = options.folder / "image"
    shutil.rmtree(work, ignore_errors=True)
    try:
        run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(work / "sources")])
        etc = work / "etc"
        etc.mkdir()
        shutil.copy(work / "sources" / "etc" / "container.toml.example", etc / "postd.toml")
        if BASE not in builder.ask("images", "--format={{.Name}}").split():
            builder.make_base()
        builder.build(work / "sources")
        try_image(builder, etc)
        size = builder.ask("images", "--format={{.Size}}", IMAGE).strip()
    except MatrixError as error:
        sys.exit(f"image: {error}")
    print(f"built, started and asked on {SYSTEM.name}: {size}")


if __name__ == "__main__":
    main()

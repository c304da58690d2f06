"""Packaging: source archive, wheel, version and image, and an installation of them."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import postd
from postd.daemon.schemes import make_schemes
from postd.daemon.settings_checks import exposure_problem
from postd.settings.loading import load_settings
from tests.helpers import PATIENCE_S
from tests.integration.daemon import TWISTD, Daemon, refuse_here
from tests.redis_server import free_port

ROOT = Path(__file__).parent.parent.parent
POWERLESS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""A command prefix under which root respects permissions."""


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Run a command that must succeed; return its output."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """The files of the project."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT)
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    (top,) = folder.iterdir()
    return top


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=unpacked)
    (file,) = folder.iterdir()
    return file


def test_sdist_has_all_sources(unpacked: Path, sources: set[str]) -> None:
    files = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    assert files - sources == {"PKG-INFO"}
    assert sources - files == set()


def test_wheel_has_package_plugin_and_examples(unpacked: Path, wheel: Path, sources: set[str]) -> None:
    with zipfile.ZipFile(wheel) as opened:
        files = set(opened.namelist())
    about = unpacked.name  # the version goes along, where there is no git
    assert wheel.name.startswith(f"{about}-")
    wanted = {name for name in sources if name.startswith(("postd/", "twisted/"))}
    wanted |= {
        f"{about}.data/data/share/postd/{name.removeprefix('etc/')}" for name in sources if name.startswith("etc/")
    }
    assert {name for name in files if ".dist-info/" not in name} == wanted
    data = {"py.typed", "store/sqlite/schema/0001_posts.sql", "store/redis/lua/begin.lua", "protect/login.html"}
    assert {f"postd/{name}" for name in data} <= files
    assert f"{about}.dist-info/licenses/LICENSE" in files


def test_wheel_is_reproducible(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    again = tmp_path / unpacked.name
    shutil.copytree(unpacked, again, copy_function=shutil.copyfile)  # other times and modes
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", folder=again)
    assert (tmp_path / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


class Installation:
    """A virtual environment with the wheel alone; dependencies come from the environment of the tests."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python3*/site-packages")
        (self.packages / "others.pth").write_text(sysconfig.get_path("purelib"))
        self.others = self.files()
        self.pip("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))

    def pip(self, *arguments: str) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, *arguments, folder=self.folder)

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installed"), wheel)
    yield installation
    installation.pip("uninstall", "--quiet", "--yes", "postd")
    assert installation.files() == installation.others, "something is left behind"


def test_installed_commands_print_the_version(installed: Installation, wheel: Path, tmp_path: Path) -> None:
    output = f"postd {wheel.name.split('-')[1]}\n"
    assert run(installed.folder / "bin" / "postd", "--version", folder=tmp_path) == output
    assert run(installed.python, TWISTD, "postd", "--version", folder=tmp_path) == output
    assert (installed.folder / "share" / "postd" / "postd.toml").is_file()


def test_read_only_installation_serves_without_plugin_cache_warning(installed: Installation, tmp_path: Path) -> None:
    """The command twistd caches plugins beside them, or warns at each start that it cannot."""
    port = free_port()
    admin = f"127.0.0.1:{port}"
    (tmp_path / "postd.toml").write_text(f'[admin]\nlisten = ["tcp:{port}:interface=127.0.0.1"]\n')
    plugins = installed.packages / "twisted" / "plugins"
    (plugins / "dropin.cache").unlink(missing_ok=True)
    plugins.chmod(0o555)
    with Daemon(tmp_path, "-c", "postd.toml", through=[*POWERLESS, str(installed.python)]) as daemon:
        added = httpx.post(f"{daemon.url}/post", json={"post": "From a wheel"})
        assert (added.status_code, added.headers["Location"]) == (201, "/post/1")
        assert "login_form" in httpx.get(f"{daemon.url}/").text
        assert ask_for_health(installed, admin) == 0
    assert not (plugins / "dropin.cache").exists()
    assert "plugin" not in daemon.log
    assert "Traceback" not in daemon.log
    assert (ask_for_health(installed, admin), ask_for_health(installed, "")) == (1, 0)


def ask_for_health(installed: Installation, admin: str) -> int:
    """Return the exit status of the image's health check."""
    (command,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*])$", (ROOT / "etc" / "Containerfile").read_text(), re.MULTILINE)
    asked = subprocess.run(
        [installed.python, *json.loads(command)[1:]], env={"POSTD_ADMIN": admin}, stderr=subprocess.DEVNULL, check=False
    )
    return asked.returncode


def test_image_names_its_base_by_digest_and_its_packages_by_hash() -> None:
    recipe = (ROOT / "etc" / "Containerfile").read_text()
    assert re.search(r"^ARG BASE=python:[0-9.]+-slim@sha256:[0-9a-f]{64}$", recipe, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", recipe, re.MULTILINE)) == {"$BASE"}
    installs = re.findall(r"^RUN .*\binstall\b.*(?:requirement|whl).*$", recipe, re.MULTILINE)
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name, wanted in (
        ("container-requirements.txt", project["project"]["dependencies"]),
        ("container-build-requirements.txt", project["build-system"]["requires"]),
    ):
        text = (ROOT / "etc" / name).read_text()
        assert "://" not in text
        pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
        assert len(pins) == text.count("==")
        for requirement in map(Requirement, wanted):
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_image_settings_are_refused_without_write_rule(tmp_path: Path) -> None:
    settings = (ROOT / "etc" / "container.toml.example").read_text()
    (tmp_path / "postd.toml").write_text(settings)
    # Not on the port of the settings, which other tests may listen on at the same time.
    (tmp_path / "unused_port.toml").write_text(settings.replace("tcp:8080", "tcp:0"))
    assert "writes are open to other machines, without TLS" in refuse_here(tmp_path, "-c", "unused_port.toml")
    proxied, _, anybody = settings.partition("# or")
    for said in (proxied, f"#{anybody}"):
        (tmp_path / "postd.toml").write_text(re.sub(r"^#   ", "", said, flags=re.MULTILINE))
        loaded = load_settings("postd.toml", {}, tmp_path)
        assert exposure_problem(loaded.settings, make_schemes(loaded)) is None


def test_version_of_uninstalled_sources_is_unknown(tmp_path: Path) -> None:
    """Sources on the path, without pip."""
    output = run(
        sys.executable, "-ISc", f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import postd; print(postd.__version__)",
        folder=tmp_path,
    )  # fmt: skip
    assert output == "unknown\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        postd.nothing  # type: ignore[attr-defined]  # noqa: B018


class VersionTests:
    """The version comes from git; an installation does not fail without it."""

    @pytest.fixture
    def clone(self, tmp_path: Path) -> Path:
        """A repository with one commit and no tag."""
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, tmp_path)
        self.git(tmp_path, "init", "--quiet")
        self.git(tmp_path, "add", ".")
        self.git(tmp_path, "commit", "--quiet", "--message=First")
        return tmp_path

    def git(self, clone: Path, *arguments: str) -> str:
        identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com")
        return run("git", *identity, *arguments, folder=clone)

    def version(self, folder: Path, **environment: str) -> str:
        return run(sys.executable, "-m", "hatchling", "version", folder=folder, **environment).strip()

    def test_version_is_the_tag_and_counts_commits(self, clone: Path) -> None:
        self.git(clone, "tag", "v1.2.0")
        assert self.version(clone) == "1.2.0"
        self.git(clone, "commit", "--quiet", "--allow-empty", "--message=Second")
        self.git(clone, "tag", "nightly-7")  # no version
        commit = self.git(clone, "rev-parse", "HEAD")[:7]
        assert self.version(clone).startswith(f"1.2.1.dev1+g{commit}")

    def test_shallow_clone_without_tag_has_a_version(self, clone: Path, tmp_path: Path) -> None:
        shallow = tmp_path / "shallow"
        run("git", "clone", "--quiet", "--depth=1", f"file://{clone}", shallow, folder=tmp_path)
        run("chown", "-R", "nobody", shallow, folder=tmp_path)
        assert self.version(shallow).startswith("0.1.dev1+g")

    def test_version_without_git_is_the_fallback(self, clone: Path) -> None:
        self.git(clone, "tag", "v1.2.0")
        assert self.version(clone, PATH="/nonexistent") == "0.0"

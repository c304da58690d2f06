"""The feed in feed readers: Debian's newsboat, and feedparser."""

import os
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import feedparser
import httpx
import pytest

from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.logins import run_postd_user

PASSWORD = "correct horse"
TEXTS = ("Hello <b>world</b> & more", "a line\nand another \x1b[31m one", "🚀 = 'ü'")
SHOWN = [text.replace("\x1b", "\ufffd") for text in TEXTS]


@pytest.fixture(scope="module", params=["open", "basic", "digest"])
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, scheme: str) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp(scheme)
    run_postd_user(folder / "users", "add", "alice", PASSWORD)
    rules = f'read = ["{scheme}"]\nwrite = ["basic"]\nshow_authors = "signed-in"'
    (folder / "postd.toml").write_text(f'users = "users"\n[api]\n{rules}\n')
    with Daemon(folder, "-c", "postd.toml") as daemon:
        for text in TEXTS:
            answer = httpx.post(f"{daemon.url}/post", json={"post": text}, auth=("alice", PASSWORD))
            assert answer.status_code == 201
        yield daemon


def with_password(daemon: Daemon) -> str:
    return f"{daemon.url.replace('://', '://alice:correct%20horse@')}/feed.atom"


def test_feed_is_read_by_feedparser(daemon: Daemon, scheme: str) -> None:
    # feedparser itself finds out which of both schemes the password in a URL is for, and decodes none of it.
    url = f"{daemon.url}/feed.atom" if scheme == "open" else with_password(daemon).replace("%20", " ")
    read: Any = feedparser.parse(url)
    assert (read.status, bool(read.bozo), read.version) == (200, False, "atom10")
    assert (read.feed.title, read.feed.link) == ("postd", f"{daemon.url}/board")
    assert read.feed.author == "postd"
    assert [entry.content[0].value for entry in read.entries] == SHOWN[::-1]
    assert [entry.link for entry in read.entries] == [f"{daemon.url}/board/{n}" for n in (3, 2, 1)]
    assert {entry.get("author") for entry in read.entries} == {None if scheme == "open" else "alice"}
    assert all(entry.published_parsed == entry.updated_parsed for entry in read.entries)
    assert feedparser.parse(url, etag=read.etag).status == 304


def test_feed_is_read_by_newsboat(daemon: Daemon, scheme: str, tmp_path: Path) -> None:
    url = f"{daemon.url}/feed.atom" if scheme == "open" else with_password(daemon)
    if scheme == "digest":  # which newsboat leaves to a program
        url = f"exec:curl -sf --digest --user {shlex.quote(f'alice:{PASSWORD}')} {daemon.url}/feed.atom"
    read_by_newsboat(tmp_path, url, "3 unread articles")
    with closing(sqlite3.connect(tmp_path / "cache.db")) as cache:
        items = cache.execute("SELECT content, url FROM rss_item ORDER BY url").fetchall()
    assert items == [(text, f"{daemon.url}/board/{n}") for n, text in enumerate(SHOWN, 1)]
    read_by_newsboat(tmp_path, url, "3 unread articles")  # the same ids: none is new


def read_by_newsboat(folder: Path, url: str, said: str) -> None:
    (folder / "urls").write_text(f'"{url}"\n')
    (folder / "config").touch()
    files = (f"--{name}-file={folder / file}" for name, file in (("url", "urls"), ("config", "config")))
    command = ["newsboat", *files, f"--cache-file={folder}/cache.db", "-q", "-x", "reload", "print-unread"]
    environment = {**os.environ, "HOME": str(folder)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == said

"""Settings: what is taken, and the one line that refuses the rest."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from postd.config import ByteCount, Limits, Seconds, Settings, absolute_endpoint, load_settings
from postd.errors import ConfigError

ENDPOINTS = 'a list of endpoints, such as ["tcp:8080:interface=127.0.0.1"]'
SAMPLE = Path(__file__).parent.parent / "etc" / "postd.toml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def load(folder: Path, toml: str | bytes, **options: Any) -> Settings:
    (folder / "postd.toml").write_bytes(toml if isinstance(toml, bytes) else toml.encode())
    return load_settings("postd.toml", options, folder).settings


def refusal(folder: Path, toml: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, toml)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("postd.toml: ")
    return line


def test_the_defaults(folder: Path) -> None:
    """The whole set, so that a new default is noticed."""
    assert load_settings(None, {}, folder).settings == Settings(
        listen=("tcp:8080:interface=127.0.0.1",),
        store=f"sqlite:{folder}/postd.db",
        insecure=frozenset(),
        limits=Limits(max_body_bytes=ByteCount(16384), idle_s=Seconds(60)),
    )


def test_an_empty_file_is_the_defaults(folder: Path) -> None:
    assert load(folder, "") == load_settings(None, {}, folder).settings


def test_every_key(folder: Path) -> None:
    settings = load(
        folder,
        """
        listen = ["unix:run/p.sock", "tcp:0"]
        store = "memory:"
        insecure = ["open-writes"]
        [limits]
        body = "1.5MiB"
        idle_time = "500ms"
        """,
    )
    assert settings == Settings(
        listen=(f"unix:address={folder}/run/p.sock", "tcp:0"),
        store="memory:",
        insecure=frozenset({"open-writes"}),
        limits=Limits(max_body_bytes=ByteCount(3 * 512 * 1024), idle_s=Seconds(0.5)),
    )


def test_an_option_wins_over_the_file(folder: Path) -> None:
    settings = load(folder, 'listen = ["tcp:1", "tcp:2"]\nstore = "sqlite:a.db"', listen=["tcp:3"], store="sqlite:b.db")
    assert (settings.listen, settings.store) == (("tcp:3",), f"sqlite:{folder}/b.db")


def test_paths_are_relative_to_where_they_are_given(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "postd.toml").write_text('store = "sqlite:../var/posts.db"')
    loaded = load_settings("etc/postd.toml", {"listen": ["unix:p.sock"]}, folder)
    assert loaded.settings.store == f"sqlite:{folder}/etc/../var/posts.db"
    assert loaded.settings.listen == (f"unix:address={folder}/p.sock",)
    assert loaded.where == {
        "store": "etc/postd.toml: store",
        "listen": "--listen",
        "insecure": "insecure (default)",
        "limits": "limits (default)",
    }


@pytest.mark.parametrize(
    ("written", "seconds"), [("250ms", 0.25), ("1s", 1), ("1.5s", 1.5), ("5m", 300), ("12h", 43200), ("365d", 31536000)]
)
def test_durations(folder: Path, written: str, seconds: float) -> None:
    assert load(folder, f'[limits]\nidle_time = "{written}"').limits.idle_s == seconds


@pytest.mark.parametrize(
    "written", ['"0s"', '"-1s"', '"1"', '"s"', '"1 s"', '"1S"', '"1w"', '"9999d"', '"1e3s"', '"0.01ms"', "60"]
)
def test_what_is_no_duration(folder: Path, written: str) -> None:
    line = refusal(folder, f"[limits]\nidle_time = {written}")
    assert line.startswith("postd.toml: limits.idle_time: ")
    assert 'such as "500ms"' in line


@pytest.mark.parametrize(
    "written", ['"0KiB"', '"16"', '"16kb"', '"16KB"', '"1GiB"', '"2000MiB"', '"-1KiB"', '"0.0001KiB"', "16384"]
)
def test_what_is_no_size(folder: Path, written: str) -> None:
    line = refusal(folder, f"[limits]\nbody = {written}")
    assert line.startswith("postd.toml: limits.body: ")
    assert 'such as "16KiB"' in line


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("nothing = 1", "postd.toml: nothing: unknown key; allowed at the top level: listen, store, insecure, limits"),
        (
            'stor = "memory:"',
            "postd.toml: stor: unknown key (did you mean 'store'?); allowed at the top level: "  # noqa: ISC004
            "listen, store, insecure, limits",
        ),
        (
            "[limits]\nboddy = 1",
            "postd.toml: limits.boddy: unknown key (did you mean 'body'?); allowed in [limits]: body, idle_time",
        ),
        ("store = 1", 'postd.toml: store: Expected `str`, got `int`; allowed: "sqlite:PATH" or "memory:"'),
        ('listen = "tcp:1"', f"postd.toml: listen: Expected `array`, got `str`; allowed: {ENDPOINTS}"),
        ("listen = [1]", f"postd.toml: listen[0]: Expected `str`, got `int`; allowed: {ENDPOINTS}"),
        ("limits = 1", "postd.toml: limits: Expected `object`, got `int`; allowed: a table, [limits]"),
        (
            'insecure = ["all"]',
            "postd.toml: insecure[0]: Invalid enum value 'all'; allowed: a list that may have \"open-writes\" in it",
        ),
        ("a = " + "[" * 5000, "postd.toml: is nested too deeply"),
        (
            '"a\\u001b[31mb" = 1',
            "postd.toml: a\\x1b[31mb: unknown key; allowed at the top level: listen, store, insecure, limits",
        ),
        ("store = ", "postd.toml: is not TOML: Invalid value (at end of document)"),
        ("a = 1\nb = ?", "postd.toml: is not TOML: Invalid value (at line 2, column 5)"),
        (b'store = "\xff"', "postd.toml: is not UTF-8 text"),
    ],
)
def test_a_refusal_names_file_and_key_and_what_is_allowed(folder: Path, toml: str | bytes, line: str) -> None:
    assert refusal(folder, toml) == line


@pytest.mark.parametrize("later", ['realm = "x"', "workers = 2", '[api]\nread = ["open"]', "[[page]]", "[throttle]"])
def test_settings_of_parts_that_are_not_there_yet_are_unknown(folder: Path, later: str) -> None:
    assert "unknown key" in refusal(folder, later)


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^missing\.toml: cannot be read: No such file or directory$"):
        load_settings("missing.toml", {}, folder)
    with pytest.raises(ConfigError, match=r"^/dev/zero: is no settings file"):
        load_settings("/dev/zero", {}, folder)
    with pytest.raises(ConfigError, match="--config: is empty"):
        load_settings("", {}, folder)
    with pytest.raises(ConfigError, match=r"^\.: cannot be read: Is a directory$"):
        load_settings(".", {}, folder)


@pytest.mark.parametrize(
    ("description", "absolute"),
    [
        ("tcp:80", "tcp:80"),
        ("TCP:80:interface=\\:\\:1", "tcp:80:interface=\\:\\:1"),
        ("unix:a.sock:mode=600", "unix:address=/etc/p/a.sock:mode=600"),
        ("unix:address=a.sock", "unix:address=/etc/p/a.sock"),
        ("unix:/run/a.sock", "unix:address=/run/a.sock"),
        ("unix:a\\:b\\=c", "unix:address=/etc/p/a\\:b\\=c"),
        ("ssl:443:privateKey=k.pem:certKey=c.pem", "ssl:443:privateKey=/etc/p/k.pem:certKey=/etc/p/c.pem"),
        ("tls:certs:443", "tls:path=/etc/p/certs:443"),
        ("haproxy:unix:a.sock", "haproxy:unix:address=/etc/p/a.sock"),
        ("haproxy", "haproxy"),
        ("", ""),
    ],
)
def test_paths_in_endpoints(description: str, absolute: str) -> None:
    assert absolute_endpoint(description, Path("/etc/p")) == absolute


def test_the_sample_shows_every_key_with_its_default(folder: Path) -> None:
    text = SAMPLE.read_text()
    assert load(folder, text) == load_settings(None, {}, folder).settings
    shown = "\n".join(
        line.removeprefix("#") if "= " in line and line[1:2].isalpha() else line for line in text.splitlines()
    )
    assert load(folder, shown) == load_settings(None, {}, folder).settings
    table = tomllib.loads(shown)
    assert set(table) == {"listen", "store", "insecure", "limits"}
    assert set(table["limits"]) == {"body", "idle_time"}

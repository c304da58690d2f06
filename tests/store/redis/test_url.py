"""URLs of Redis stores."""

import re
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet import reactor

from postd.errors import ConfigError
from postd.reactor import IReactor
from postd.settings.loading import load_settings
from postd.store.opening import open_store
from postd.store.redis.url import Host, RedisAddress, decode_redis_url
from tests.cases import each

SECRET = "s3cret"


@each(
    "url, address, description",
    [
        ("redis://localhost", {"hosts": (Host("localhost", 6379),)}, "redis://localhost:6379/0"),
        ("redis://10.0.0.7:7000/15", {"hosts": (Host("10.0.0.7", 7000),), "db": 15}, "redis://10.0.0.7:7000/15"),
        ("redis://my_host.internal/", {"hosts": (Host("my_host.internal", 6379),)}, "redis://my_host.internal:6379/0"),
        ("redis://[::1]", {"hosts": (Host("::1", 6379),)}, "redis://[::1]:6379/0"),
        ("redis://[2001:db8::7]:1/2", {"hosts": (Host("2001:db8::7", 1),), "db": 2}, "redis://[2001:db8::7]:1/2"),
        (f"redis://:{SECRET}@h", {"hosts": (Host("h", 6379),), "password": SECRET}, "redis://:***@h:6379/0"),
        (
            f"redis://app:{SECRET}@h:1",
            {"hosts": (Host("h", 1),), "user": "app", "password": SECRET},
            "redis://app:***@h:1/0",
        ),
        (
            "redis://a%3Ab:%2F%3F%40%25%C3%A9@h",
            {"hosts": (Host("h", 6379),), "user": "a:b", "password": "/?@%é"},
            "redis://a:b:***@h:6379/0",
        ),
        ("redis://:a@b:c@h", {"hosts": (Host("h", 6379),), "password": "a@b:c"}, "redis://:***@h:6379/0"),
        (
            "redis://h?password_file=/run/a%20b",
            {"hosts": (Host("h", 6379),), "password_file": "/run/a b"},
            "redis://:***@h:6379/0",
        ),
        (
            "redis://app@h/1?password_file=/p",
            {"hosts": (Host("h", 6379),), "user": "app", "password_file": "/p", "db": 1},
            "redis://app:***@h:6379/1",
        ),
        ("rediss://h", {"hosts": (Host("h", 6379),), "tls": True}, "rediss://h:6379/0"),
        (
            "rediss://h:1/2?ca_file=/ca%3F.pem&password_file=/p",
            {"hosts": (Host("h", 1),), "tls": True, "db": 2, "ca_file": "/ca?.pem", "password_file": "/p"},
            "rediss://:***@h:1/2",
        ),
        ("redis+unix:///run/redis.sock", {"path": "/run/redis.sock"}, "redis+unix:///run/redis.sock"),
        ("redis+unix:///a%20b@c?db=3", {"path": "/a b@c", "db": 3}, "redis+unix:///a b@c?db=3"),
        (
            f"redis+unix://app:{SECRET}@/run/r",
            {"path": "/run/r", "user": "app", "password": SECRET},
            "redis+unix://app:***@/run/r",
        ),
        (
            "redis+sentinel://a,b:1,[::1]:2/main",
            {"hosts": (Host("a", 26379), Host("b", 1), Host("::1", 2)), "primary": "main"},
            "redis+sentinel://a:26379,b:1,[::1]:2/main/0",
        ),
        (
            f"redis+sentinel://app:{SECRET}@a:1/my%2Fmain/4",
            {"hosts": (Host("a", 1),), "primary": "my/main", "db": 4, "user": "app", "password": SECRET},
            "redis+sentinel://app:***@a:1/my/main/4",
        ),
    ],
)
def test_url_is_decoded_and_described(url: str, address: dict[str, Any], description: str) -> None:
    decoded = decode_redis_url(url)
    assert decoded == RedisAddress(**address)
    assert decoded.description == description


HOST_WANTED = "has an invalid HOST or HOST:PORT"
DB_WANTED = "has an invalid database number"
BAD_URLS = [
    ("redis:", "is not the URL of a Redis store"),
    ("redis:host", "is not the URL of a Redis store"),
    ("redis+tcp://host", "is not the URL of a Redis store"),
    ("redis://", HOST_WANTED),
    ("redis:///1", HOST_WANTED),
    ("redis://host:", HOST_WANTED),
    ("redis://host:0", HOST_WANTED),
    ("redis://host:65536", HOST_WANTED),
    ("redis://host:٣", HOST_WANTED),
    ("redis://::1", HOST_WANTED),
    ("redis://a b", HOST_WANTED),
    ("redis://host/x", DB_WANTED),
    ("redis://host/-1", DB_WANTED),
    ("redis://host/1/2", DB_WANTED),
    ("redis://a,b", "has more than one host; several are for redis+sentinel"),
    (f"redis://:{SECRET}@host?password_file=/p", "has a password and a password_file"),
    ("redis://host?ca_file=/ca", "allows after the question mark, once each: password_file"),
    ("redis://host?db=1", "allows after the question mark, once each: password_file"),
    ("redis://host?password_file=", "allows after the question mark, once each: password_file"),
    ("rediss://h?ca_file=a&ca_file=b", "allows after the question mark, once each: ca_file, password_file"),
    ("redis+unix://", "has no socket path"),
    ("redis+unix://?db=1", "has no socket path"),
    ("redis+unix:///a%00b", "has no socket path"),
    (f"redis+unix:///{'x' * 107}", "has a path of 108 bytes, more than the 107 of a UNIX socket"),
    ("redis+unix:///a?db=x", DB_WANTED),
    ("redis+sentinel://a,b", "has no name of the primary after the sentinels"),
    ("redis+sentinel://a,/main", HOST_WANTED),
    ("redis+sentinel://a/main/x", DB_WANTED),
]


@each("url, why", BAD_URLS)
def test_invalid_url_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}"):
        decode_redis_url(url)


@each(
    "url",
    [
        f"redis://app:{SECRET}@",
        f"redis://app:{SECRET}@host/x",
        f"redis://app:{SECRET}@host:99999",
        f"redis://app:{SECRET}@host?nothing=1",
        f"redis://:{SECRET}",
        f"redis://app:a/{SECRET}@host",
        f"redis://app:{SECRET}/a@host",
        f"redis://app:1/{SECRET}@host",
        f"redis://app:a?{SECRET}@host",
        f"redis://app:a#{SECRET}@host,b",
        f"redis+sentinel://app:{SECRET}@a,b",
        f"redis+unix://app:{SECRET}@",
        f"rediss+sentinel://app:{SECRET}@a/main",
        f"REDIS://app:{SECRET}@host",
        f"valkey://app:{SECRET}@host",
        f"mysql:{SECRET}@host",
    ],
)
def test_error_for_an_invalid_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, where="postd.toml: store", reactor=cast(IReactor, reactor))
    assert SECRET not in str(caught.value)
    assert str(caught.value).startswith("postd.toml: store: ")
    assert "redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("redis://h?password_file=secret", "redis://h?password_file={}/secret"),
        ("redis://h/1?password_file=/run/secret", "redis://h/1?password_file=/run/secret"),
        ("rediss://h?ca_file=ca.pem&password_file=a%26b", "rediss://h?ca_file={}/ca.pem&password_file={}/a%26b"),
        ("redis+unix://redis.sock", "redis+unix://{}/redis.sock"),
        ("redis+unix:///run/redis.sock?db=1", "redis+unix:///run/redis.sock?db=1"),
        ("redis+unix://run/a%3Fb?db=1&password_file=p", "redis+unix://{}/run/a%3Fb?db=1&password_file={}/p"),
        ("redis+unix://app:x@redis.sock", "redis+unix://app:x@{}/redis.sock"),
        ("redis+sentinel://a,b/main/1?password_file=p", "redis+sentinel://a,b/main/1?password_file={}/p"),
        ("redis://app:a_file=b@h", "redis://app:a_file=b@h"),
    ],
)
def test_paths_are_relative_to_the_settings_file(socket_folder: Path, url: str, absolute: str) -> None:
    folder = socket_folder / "a ü?&%@b"
    folder.mkdir()
    (folder / "postd.toml").write_text(f'store = "{url}"')
    store = load_settings(f"{folder.name}/postd.toml", {}, socket_folder).settings.store
    quoted = f"{socket_folder}/a%20%C3%BC%3F%26%25%40b"
    assert store == absolute.replace("{}", quoted)
    decoded = decode_redis_url(store)
    for path in (decoded.path, decoded.password_file, decoded.ca_file):
        assert not path or path.startswith((str(folder), "/run"))


def test_path_on_the_command_line_is_relative_to_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "postd.toml").write_text("")
    loaded = load_settings("etc/postd.toml", {"store": "redis+unix://r.sock?password_file=p"}, tmp_path)
    assert loaded.settings.store == f"redis+unix://{tmp_path}/r.sock?password_file={tmp_path}/p"

"""Normalization and validation of hosts."""

import re

import pytest

from postd.protocol.host import check_host, is_local_host, normalize_host
from tests.cases import each

NORMALIZED = {
    "posts.example": "posts.example",
    "POSTS.Example": "posts.example",
    "posts.example.": "posts.example",
    "posts.example:8080": "posts.example",
    "posts.example.:8080": "posts.example",
    "posts.example:": "posts.example",
    "192.0.2.1:80": "192.0.2.1",
    "[::1]": "::1",
    "[::1]:8080": "::1",
    "[0:0::0001]": "::1",
    "[2001:DB8::A]:443": "2001:db8::a",
    "[::ffff:127.0.0.1]:80": "127.0.0.1",
    "[::ffff:7f00:1]": "127.0.0.1",
    "": "",
    ":80": "",
}
LOCAL = [
    *("localhost", "LOCALHOST:8080", "localhost.", "evil.localhost", "a.b.Localhost.:80", "127.0.0.1", "127.0.0.1.:1"),
    *("127.255.0.3:65535", "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f01:203]:80"),
]
FOREIGN = [
    *("", ":8080", ".", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost", "local"),
    *("localhost..", "127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.01", "127.0.0.1.2"),
    *("0.0.0.0", "0", "[::]", "[::2]", "[::ffff:192.0.2.1]", "128.0.0.1", "%6cocalhost", "localhost%2e", "xn--lclhost"),
    *("localhost,evil.example", "evil.example;.localhos", "192.168.0.1", "169.254.0.1", "[fe80::1]", "[::127.0.0.1]"),
]


@each("authority, host", NORMALIZED.items())
def test_host_is_normalized(authority: str, host: str) -> None:
    assert normalize_host(authority) == host
    assert normalize_host(f"[{host}]" if ":" in host else host) == host


@each("authority", LOCAL)
def test_loopback_host_is_local(authority: str) -> None:
    assert is_local_host(normalize_host(authority))


@each("authority", FOREIGN)
def test_other_host_is_not_local(authority: str) -> None:
    assert not is_local_host(normalize_host(authority))


@each(
    "value, host",
    [
        *[("posts.example", "posts.example"), ("Posts.Example.", "posts.example"), ("node1", "node1")],
        *[("a_b.example", "a_b.example"), ("xn--bcher-kva.example", "xn--bcher-kva.example"), ("3com.example",) * 2],
        *[("192.0.2.1", "192.0.2.1"), ("2001:DB8::1", "2001:db8::1"), ("[2001:db8:0::1]", "2001:db8::1"), ("::1",) * 2],
        *[("::ffff:192.0.2.1", "192.0.2.1"), ("[::ffff:c000:201]", "192.0.2.1"), (f"{'a' * 63}.example",) * 2],
    ],
)
def test_setting_is_a_name_or_an_address(value: str, host: str) -> None:
    assert check_host(value) == host == normalize_host(f"[{host}]" if ":" in host else host)


@each(
    "value, why",
    [
        *[(value, "has a port") for value in ("posts.example:80", "192.0.2.1:8080", "[::1]:80", "posts.example:")],
        *[(value, "xn--") for value in ("b\u00fccher.example", "\u4e16\u754c", "posts\uff0eexample")],
        *[
            (value, "is neither a host name")
            for value in (
                *("", " ", ".", "*.example", ".example", "a..b", "-a.example", "a-.example", "a b", "posts.example/"),
                *("https://posts.example", "[posts.example]", "[192.0.2.1]", "fe80::1%eth0", "[::1", "::g"),
                *("127.1", "0x7f.1", "1", "a.1", "256.1.1.1", "127.0.0.1.", "192.0.2.0/24", "a,b", "a" * 64, "a@b"),
                *(f"{'a.' * 126}aa", "posts.example..", "posts.example\n"),
            )
        ],
    ],
)
def test_invalid_host_in_settings_is_refused(value: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(value))) as caught:
        check_host(value)
    assert why in str(caught.value)

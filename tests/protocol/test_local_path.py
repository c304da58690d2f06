"""Paths of the same host, against urllib's rules and those of browsers."""

import re
from urllib.parse import unquote, urljoin, urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from postd.protocol.local_path import LOCAL_PATH_MAX_BYTES, encode_local_path
from tests.cases import each

BASE = "https://posts.example/?next=x"
HOSTILE = [
    *(
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
    ),
    *("\t//evil.example", " //evil.example", "https://evil.example/", "https:evil.example", "javascript:alert(1)"),
    *(
        "/./\\evil.example",
        "/..//evil.example",
        "/.//evil.example",
        "/a//b",
        "/a?b=//c",
        "/a\\b",
        "/\r\nSet-Cookie: x=1",
    ),
    *(
        "/\0",
        "/a\x7f",
        "/a\x85",
        "",
        "a",
        "?a",
        "#a",
        "a/b",
        "@evil.example",
        ".evil.example",
        ":80",
        "/ //",
        "\ufeff/a",
    ),
]


def browser_host(location: str, base: str) -> str:
    """Return the host that a browser goes to (URL Standard §4.4), for http and https."""
    url = re.sub(r"[\t\n\r]", "", location.strip("".join(map(chr, range(0x21)))))
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    if scheme and scheme[1].lower() not in {"http", "https"}:
        return f"the scheme {scheme[1]}"
    rest = url[scheme.end() :] if scheme else url
    slashes = re.match(r"[/\\]*", rest)
    assert slashes
    if scheme or len(slashes[0]) > 1:  # in a special scheme any number of slashes leads to an authority
        return re.split(r"[/\\?#]", rest[slashes.end() :], maxsplit=1)[0].rpartition("@")[2]
    return urlsplit(base).netloc


@each("text", HOSTILE)
def test_hostile_path_is_refused(text: str) -> None:
    assert encode_local_path(text) is None


@each(
    "text, location",
    [
        *(
            (text, text)
            for text in ("/", "/a", "/a/b/", "/a?b=c&d=e%20f", "/a?b#c", "/%2F%2Fevil", "/@evil", "/:80", "/.")
        ),
        *((text, text) for text in ("/a;b=c,d!e~f'(g)*", '/"<>`{|}^', "/a?next=/b", "/%zz")),
        *(("/a b", "/a%20b"), ("/grüße", "/gr%C3%BC%C3%9Fe"), ("/🚀?世=界", "/%F0%9F%9A%80?%E4%B8%96=%E7%95%8C")),
        *(("/\u2028x", "/%E2%80%A8x"), ("/\uff0f/x", "/%EF%BC%8F/x"), ("/x ", "/x%20")),
    ],
)
def test_path_is_encoded(text: str, location: str) -> None:
    assert encode_local_path(text) == location.encode()


def test_longest_path() -> None:
    assert encode_local_path("/" + "x" * (LOCAL_PATH_MAX_BYTES - 1)) is not None
    assert encode_local_path("/" + "x" * LOCAL_PATH_MAX_BYTES) is None
    assert encode_local_path("/" + "ü" * (LOCAL_PATH_MAX_BYTES // 6 + 1)) is None


NEAR_HOSTILE = st.lists(
    st.sampled_from(
        [*"/\\.@:?#% \t\r\n\0\x0b\x85\u2028\uff0f", "//", "..", "%2f", "%5C", "%09", "http:", "evil.example"]
    )
).map("".join)


@given(st.one_of(NEAR_HOSTILE, NEAR_HOSTILE.map("/{}".format), st.text(), st.text().map("/{}".format)))
@example("/\t/evil.example")
@example("/\\evil.example")
def test_no_path_leads_to_another_host(text: str) -> None:
    encoded = encode_local_path(text)
    if encoded is None:
        return
    location = encoded.decode("ascii")
    assert re.fullmatch(r"/(?!/)[!-~]*", location)
    assert urlsplit(urljoin(BASE, location))[:2] == ("https", "posts.example")
    assert browser_host(location, BASE) == "posts.example"
    assert unquote(location) == unquote(text)


@each("text", [text for text in HOSTILE if "evil" in text and not re.search(r"/\.|^[@.]|Set", text)])
def test_browser_rules_of_these_tests_find_the_other_host(text: str) -> None:
    assert browser_host(text, BASE) != "posts.example" or "javascript" in text

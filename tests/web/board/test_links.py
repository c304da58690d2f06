"""URLs in texts of posts: which are links, where the links lead, and what a reader sees."""

import re
from html import unescape
from urllib.parse import urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from postd.web.board.links import link_urls
from tests.cases import each
from tests.linear import Input, check_linear

LINK = re.compile(r'<a href="([^"]*)" rel="nofollow ugc noopener"(?: data-host="([^"]*)")?>([^<]*)</a>')
PIECES = st.sampled_from(
    [
        *(
            "http://",
            "https://",
            "HTTPS://",
            "a.example",
            "user@",
            ":80",
            "/",
            "?q=",
            "&",
            "#",
            ".",
            ",",
            "(",
            ")",
            "[",
            "]",
        ),
        *("<", ">", '"', "'", "\\", " ", "\n", "ü", "ⅷ", "℀", "\u202e", "。", "xn--", "%2f", "://", "javascript:"),
    ]
)


def links_in(text: str) -> list[tuple[str, str]]:
    """Return the links of a text: what each shows, and where it leads."""
    return [(unescape(shown), unescape(target)) for target, _, shown in LINK.findall(link_urls(text))]


@each(
    "text, shown",
    [
        ("https://example.com", "https://example.com"),
        ("see http://example.com/a, and", "http://example.com/a"),
        ("HTTPS://Example.com/A.", "HTTPS://Example.com/A"),
        ("(https://en.wikipedia.org/wiki/X_(y))", "https://en.wikipedia.org/wiki/X_(y)"),
        ("[https://example.com/a[1]]!?", "https://example.com/a[1]"),
        ('"https://example.com/?a=1&b=2#c"', "https://example.com/?a=1&b=2#c"),
        ("<https://example.com/>", "https://example.com/"),
        ("'https://example.com/it's'", "https://example.com/it's"),
        ("“https://example.com/”…", "https://example.com/"),
        ("「https://example.com/」。", "https://example.com/"),
        ("日本https://example.com/日本、", "https://example.com/日本"),
        ("http://localhost:8080/board", "http://localhost:8080/board"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("https://example.com/\u202egpj.exe", "https://example.com/"),
        (r"https://example.com\@evil.example/", "https://example.com"),
    ],
)
def test_url_is_a_link_without_the_punctuation_around_it(text: str, shown: str) -> None:
    assert links_in(text) == [(shown, shown)]


@each(
    "text",
    [
        *("https://", "https:///path", "http://.", "https://?q", "http//example.com", "www.example.com", "a@b.example"),
        *(
            "javascript:alert(1)",
            "data:text/html,x",
            "ftp://example.com",
            "xhttps://example.com",
            "svn+http://a.example",
        ),
        *("https://bank.example@evil.example/", "https://user:pass@example.com/", "https://example.com:80a/"),
        *("https://ex%61mple.com/", "https://example.com:123456/", "https://evil℀.example/", "https://a..b../"),
    ],
)
def test_other_text_is_no_link(text: str) -> None:
    assert "<a" not in link_urls(text)


def test_several_urls_are_links() -> None:
    assert [shown for shown, _ in links_in("a http://b.example/c, https://d.example. e")] == [
        "http://b.example/c",
        "https://d.example",
    ]


@each(
    "text, host",
    [
        ("https://münchen.example/straße", "xn--mnchen-3ya.example"),
        ("https://\u0430\u0440\u0440\u04cf\u0435.example/", "xn--80ak6aa92e.example"),
        ("https://faß.example:8080/", "xn--fa-hia.example"),
    ],
)
def test_link_with_other_letters_shows_the_host_in_ascii(text: str, host: str) -> None:
    ((target, shown_host, shown),) = LINK.findall(link_urls(text))
    assert (shown, shown_host) == (text, host)
    assert urlsplit(target).hostname == host


@given(st.lists(PIECES | st.characters(exclude_categories=["Cs"])).map("".join))
@example("https://a.example/<script>\"'&amp;")
def test_any_text_is_shown_unchanged_and_leads_to_plain_hosts_only(text: str) -> None:
    html = link_urls(text)
    assert unescape(LINK.sub(r"\3", html)) == text
    assert not {"<", ">", '"'} & set(LINK.sub(r"\3", html))
    for shown, target in links_in(text):
        parts = urlsplit(target)
        assert parts.scheme in {"http", "https"}
        assert parts.username is None
        assert (parts.hostname or "").isascii()
        assert shown.isascii() is False or shown == target


def test_work_is_linear() -> None:
    inputs = [
        Input(begin, unit)
        for begin in (b"", b"https://", b"https://a/", b"https://[")
        for unit in (b")", b"(", b".", b"https://", b"https://a", b"a.", b":1", b"[", b"]", b"@", "é".encode(), b"a ")
    ]
    check_linear(lambda text: link_urls(text.decode(errors="replace")), inputs, 20_000)

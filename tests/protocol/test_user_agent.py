"""Browsers in words."""

from hypothesis import given
from hypothesis import strategies as st

from postd.protocol.user_agent import UNKNOWN, describe_browser
from tests.cases import each

APPLE = "AppleWebKit/605.1.15 (KHTML, like Gecko)"
CHROME = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0"


@each(
    "user_agent, words",
    [
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:153.0) Gecko/20100101 Firefox/153.0", "Firefox on Windows"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0", "Firefox on Linux"),
        ("Mozilla/5.0 (Android 15; Mobile; rv:153.0) Gecko/153.0 Firefox/153.0", "Firefox on Android"),
        (
            f"Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) {APPLE} FxiOS/153.0 Safari/605.1.15",
            "Firefox on iPhone",
        ),
        (f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) {APPLE} Version/18.1 Safari/605.1.15", "Safari on macOS"),
        (
            f"Mozilla/5.0 (iPad; CPU OS 18_1 like Mac OS X) {APPLE} Version/18.1 Mobile/15E148 Safari/604.1",
            "Safari on iPad",
        ),
        (f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {CHROME} Safari/537.36", "Chrome on Windows"),
        (f"Mozilla/5.0 (Linux; Android 10; K) {CHROME} Mobile Safari/537.36", "Chrome on Android"),
        (f"Mozilla/5.0 (X11; CrOS x86_64 14541.0.0) {CHROME} Safari/537.36", "Chrome on ChromeOS"),
        (f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {CHROME} Safari/537.36 Edg/156.0.0.0", "Edge on Windows"),
        (f"Mozilla/5.0 (X11; Linux x86_64) {CHROME} Safari/537.36 OPR/120.0.0.0", "Opera on Linux"),
        ("curl/8.14.1", "curl"),
        ("python-requests/2.32.3", "requests"),
        ("", UNKNOWN),
        ("Mozilla/5.0", UNKNOWN),
        ("NotFirefox/1.0 (Windows)", UNKNOWN),
        (f"{'x' * 512} Firefox/153.0", UNKNOWN),
    ],
)
def test_browser_is_named_with_its_system(user_agent: str, words: str) -> None:
    assert describe_browser(user_agent.encode()) == words


@given(st.binary() | st.text(alphabet="FirefoxChromeSafari/ .1<>").map(str.encode))
def test_words_are_never_those_of_the_client(user_agent: bytes) -> None:
    browser, _, system = describe_browser(user_agent).partition(" on ")
    assert browser in {
        UNKNOWN, "Firefox", "Chrome", "Safari", "Edge", "Opera", "Samsung Internet", "Vivaldi",
        "curl", "Wget", "HTTPie", "requests", "httpx",
    }  # fmt: skip
    assert system in {"", "Windows", "Linux", "Android", "macOS", "iPhone", "iPad", "ChromeOS", "FreeBSD"}

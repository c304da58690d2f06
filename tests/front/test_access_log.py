"""The lines of the access log, for requests on an in-memory connection."""

import json
import re
import sys
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.auth.identity import AuthenticationResult
from postd.daemon.log import ACCESS_LOG
from postd.front import access_log
from postd.front.access_log import CACHED_MAX, DELAY_S, AccessLog
from postd.front.factory import HttpFactory
from postd.http.peer import UNIX
from postd.http.redaction import (
    AGENT_MAX_BYTES,
    EXAMINED_PARAMETERS_MAX,
    FILE_MAX_BYTES,
    METHODS,
    PRODUCTS_MAX,
    USER_MAX_CHARS,
)
from postd.settings.schema import Limits
from tests.helpers import MemoryTransport, connect

LINE = re.compile(
    r'(?P<client>\S+) - (?P<user>\S+) \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "(?P<first>(?:[^"\\]|\\.)*)" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-) "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)" '
    r"route=(?P<route>\S+) scheme=(?P<scheme>\S+) ms=(?P<ms>\d+\.\d) id=(?P<id>[0-9a-f]+-[0-9a-f]+)"
)


class Room(Resource):
    """Answers at once, except at `/later`; below `/files` are files."""

    isLeaf = True
    route: str | None = "/room/<id>"
    username = "alice b"

    def render(self, request: Any) -> Any:
        request.authentication, request.route = AuthenticationResult("digest", "accepted", self.username), self.route
        if request.path.startswith(b"/files/"):
            request.file = request.path
        if request.path.startswith(b"/missing"):
            request.setResponseCode(404)
        if request.path == b"/judge":
            request.described = SimpleNamespace(method=b"PUT", uri=b'/a?b"c', path=b"/a", route=None, file=None)
        return NOT_DONE_YET if request.path == b"/later" else b"hello"


class Connection:
    def __init__(self, form: Literal["text", "combined", "json"] = "text", address: str = "192.0.2.7") -> None:
        self.clock: Any = Clock()
        access_log = AccessLog(form, address_of=lambda _: address, log=ACCESS_LOG, reactor=self.clock)
        self.room = Room()
        self.site = HttpFactory(self.room, limits=Limits(), access_log=access_log, reactor=self.clock)
        self.site.turns.left = sys.maxsize  # no request waits for the clock
        self.transport = MemoryTransport()
        self.channel = connect(self.transport, self.site)

    def ask(self, *requests: str) -> list[str]:
        """Make requests; return the lines of the log."""
        with capturedLogs() as events:
            for request in requests:
                self.channel.dataReceived(request.encode("latin-1"))
            self.clock.advance(DELAY_S)
        return [line for event in events if "lines" in event for line in event["lines"].split("\n")]


@pytest.fixture
def connection() -> Connection:
    return Connection()


def get(target: str, *fields: str) -> str:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: x", *fields, "", ""])


def decode(line: str) -> dict[str, str]:
    match = LINE.fullmatch(line)
    assert match, line
    return match.groupdict()


def test_text_line_has_all_fields(connection: Connection) -> None:
    (line,) = connection.ask(get("/room/7?limit=5", "Referer: http://x/", "User-Agent: curl/8"))
    found = decode(line)
    assert found.pop("ms") == "0.0"
    assert found.pop("id")
    assert found == {
        "client": "192.0.2.7",
        "user": "alice%20b",
        "first": "GET /room/7?limit=5 HTTP/1.1",
        "status": "200",
        "bytes": "5",
        "referer": "http://x/",
        "agent": "curl/8",
        "route": "/room/<id>",
        "scheme": "digest",
    }


def test_combined_line_has_the_fields_of_apaches_format_alone() -> None:
    request = get("/judge", "Referer: http://x/", "User-Agent: curl/8")
    (text,) = Connection().ask(request)
    (combined,) = Connection("combined").ask(request)
    assert combined.endswith('"http://x/" "curl/8"')
    assert text.startswith(f"{combined} route=")


def test_combined_line_of_a_unix_socket_has_an_ip_address() -> None:
    (text,) = Connection("text", UNIX).ask(get("/a"))
    (combined,) = Connection("combined", UNIX).ask(get("/a"))
    assert (text.split()[0], combined.split()[0]) == ("unix", "127.0.0.1")


def test_time_has_seconds_in_text_and_milliseconds_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    text, as_json = Connection(), Connection("json")
    for now, second, fraction in ((1_800_000_000.0625, "00", "062"), (1_800_000_001.5, "01", "500")):
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert f" [15/Jan/2027:08:00:{second} +0000] " in text.ask(get("/room/7"))[0]
        assert json.loads(as_json.ask(get("/room/7"))[0])["time"] == f"2027-01-15T08:00:{second}.{fraction}+00:00"


def test_request_line_is_shown_by_all_that_it_depends_on(connection: Connection) -> None:
    for _ in range(2):
        for route, shown in (("/room/<id>", "/room/7"), ("/room", "/room/~1")):
            connection.room.route = route
            lines = connection.ask(get("/room/7"), get("/room/7").replace("GET", "PUT"), get("/room/x"))
            firsts = [decode(line)["first"] for line in lines]
            assert firsts == [f"GET {shown} HTTP/1.1", f"PUT {shown} HTTP/1.1", "GET /room/~1 HTTP/1.1"]
    connection.room.route = "/room/<id>"
    for numbers in (range(CACHED_MAX + 1), range(5)):
        lines = connection.ask(*(get(f"/room/{number}") for number in numbers))
        assert [decode(line)["first"] for line in lines] == [f"GET /room/{number} HTTP/1.1" for number in numbers]


@pytest.mark.parametrize("kind", ["show_target", "show_referer", "show_agent"])
def test_value_is_redacted_once_for_each_flush(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Values as sent may have secrets, which do not stay in memory."""
    redacted: list[bytes] = []
    show = getattr(access_log, kind)

    def note(value: bytes, *more: Any, **named: Any) -> Any:
        redacted.append(value)
        return show(value, *more, **named)

    monkeypatch.setattr(access_log, kind, note)
    connection = Connection()
    request = get("/room/7?secret", "Referer: http://x/secret", "User-Agent: secret")
    for flushes in (1, 2):
        lines = connection.ask(request, request, request)
        assert len({line.partition("] ")[2].partition(" ms=")[0] for line in lines}) == 1
        assert len(redacted) == flushes
    assert all(b"secret" in value for value in redacted)


def test_line_has_what_was_judged(connection: Connection) -> None:
    (line,) = connection.ask(get("/judge"))
    assert line.endswith(' judged="PUT /~1?~3"')
    (line,) = Connection("json").ask(get("/judge"))
    assert json.loads(line)["judged"] == "PUT /~1?~3"


def test_json_line_has_all_fields(connection: Connection) -> None:
    connection = Connection("json")
    (line,) = connection.ask(get("/room/7?limit=5", 'User-Agent: a"b\\c\xc3\xa9\xff'))
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found.pop("time"))
    assert found.pop("id")
    assert found == {
        "client": "192.0.2.7",
        "user": "alice b",
        "method": "GET",
        "target": "/room/7?limit=5",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 5,
        "referer": None,
        "agent": "~8",
        "route": "/room/<id>",
        "scheme": "digest",
        "ms": 0.0,
    }


@pytest.mark.parametrize(
    ("route", "target", "shown"),
    [
        ("/post", "/post", "/post"),
        ("/", "/", "/"),
        ("/", "/?", "/?~0"),
        ("/post/<id>", "/post/9007199254740991", "/post/9007199254740991"),
        ("/post/<id>", "/post/12345678901234567", "/post/~17"),
        ("/board/<id>/delete", "/board/5/delete", "/board/5/delete"),
        ("/board/<id>/delete", "/board/5x/delete", "/board/~9"),
        ("/board/<id>/delete", "/board/5/delete/hunter2", "/board/5/delete/~7"),
        ("/post", "/post/hunter2", "/post/~7"),
        ("/post", "/post/", "/post/"),
        ("/post", "/post//", "/post/~1"),
        ("/post", "/p%6Fst", "/~6"),
        ("/post", "/posts", "/~5"),
        ("/.well-known/x", "/.well-known/x", "/.well-known/x"),
        ("/.well-known/x", "/qwell-known/x", "/~13"),
        (None, "/wp-login.php?a", "/~12?~1"),
        (None, "/eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "/~29"),
        ("/post", "http://u.example:80/post?limit=1", "/post?limit=1"),
        ("/post", "http://u.example", "/"),
        ("/post", "/post?limit=20&after=5", "/post?limit=20&after=5"),
        ("/post", "/post?limit=20&password=hunter2", "/post?limit=20&~16"),
        ("/post", "/post?a=b&limit=20&c=d", "/post?limit=20&~7"),
        ("/post", "/post?limit=hunter2", "/post?~13"),
        ("/post", "/post?limit=12345678901234567", "/post?~23"),
        ("/post", "/post?next=/x?limit=1", "/post?~15"),
        ("/post", "/post?" + "limit=1&" * 100, "/post?" + "limit=1&" * EXAMINED_PARAMETERS_MAX + "~736"),
        ("/room", '/files/a%20"\\.txt', "/files/a%20%22%5C.txt"),
        ("/room", "/files/" + "a" * FILE_MAX_BYTES, f"/~{FILE_MAX_BYTES + 6}"),
    ],
)  # fmt: skip
def test_unknown_part_of_a_target_is_logged_as_its_length(
    connection: Connection, route: str | None, target: str, shown: str
) -> None:
    connection.room.route = route
    (line,) = connection.ask(get(target))
    assert decode(line)["first"] == f"GET {shown} HTTP/1.1"


DECODED_ONCE = "".join(f"%{ord(char):02x}" for char in "eyJ")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("", ""),
        ("/", "/"),
        ("//", "//"),
        ("/wp-login.php", "/wp-login.php"),
        ("/.git/config", "/.git/config"),
        ("/%2e%2e/a%20b", "/%2e%2e/a%20b"),
        ("/summer-holiday-pictures-2019", "/summer-holiday-pictures-2019"),
        ("/" + "g" * 32, "/" + "g" * 32),
        ("/" + "g" * 33 + "/b", "/~33/b"),
        ("/" + "%61" * 11, "/~33"),
        ("/alice@example.org", "/~17"),
        ("/alice%40example.org", "/~19"),
        ("/alice%2540example.org", "/~21"),
        ("/login;token=a", "/~13"),
        ("/alice:secret", "/~12"),
        ("/eyJ", "/~3"),
        ("/x.eyJ/eyK", "/x.eyJ/eyK"),
        (f"/{DECODED_ONCE}", "/~9"),
        ("/x%2FeyJ", "/~7"),
        ("/postd_", "/~6"),
        ("/xpostd_/postd", "/xpostd_/postd"),
        ("/0123456789abcDEF", "/~16"),
        ("/0123456789abcde", "/0123456789abcde"),
        ("/x-0123456789abcdef.js", "/~21"),
        ("/ghijklmnopqrstuvwx12", "/~20"),
        ("/ghijklmnopqrstuvw12", "/ghijklmnopqrstuvw12"),
        ("/ghijklmnopqrstuvwxyzghijkl", "/ghijklmnopqrstuvwxyzghijkl"),
        ("/q3Zr-0oTq_7Xw2Lk9Vb4Nn", "/~22"),
        ('/a"b\\c[d]', "/a%22b%5Cc[d]"),
        ("/abcdefg" * 15 + "/", "/abcdefg" * 15 + "~1"),
        ("/abcdefg" * 15, "/abcdefg" * 15),
        ("/abcdefg" * 20, "/abcdefg" * 15 + "~40"),
        ("/abcdefg" * 14 + "/abcdefghi", "/abcdefg" * 14 + "/abcdefg~2"),
        ("/abcdefg" * 14 + '/abcde"', "/abcdefg" * 14 + "/abcde~1"),
        ("/abcdefg" * 14 + "/a@b/" + "x" * 40, "/abcdefg" * 14 + "/~3/~40"),
        ("/abcdefg" * 14 + "/abcd/" + "x" * 40, "/abcdefg" * 14 + "/abcd~41"),
    ],
)
def test_path_of_a_404_is_logged_without_what_looks_like_a_secret(
    connection: Connection, path: str, shown: str
) -> None:
    for answer in (connection, Connection("json")):
        (line,) = answer.ask(get(f"/missing{path}"))
        target = json.loads(line)["target"] if answer is not connection else decode(line)["first"].split(" ")[1]
        assert target == f"/missing{shown}"


def test_query_of_a_404_is_redacted_as_any(connection: Connection) -> None:
    (line,) = connection.ask(get("/missing/a?limit=5&token=hunter2"))
    assert decode(line)["first"] == "GET /missing/a?limit=5&~13 HTTP/1.1"


def test_404_of_a_route_shows_its_id(connection: Connection) -> None:
    connection.room.route = "/missing/<id>"
    (line,) = connection.ask(get("/missing/9007199254740991"))
    assert decode(line)["first"] == "GET /missing/9007199254740991 HTTP/1.1"


TARGETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#"), max_size=300)


@given(rest=TARGETS, method=st.sampled_from(["GET", "hunter2", "PUT"]), field=st.text(max_size=40))
def test_request_line_is_three_words_without_quotes(rest: str, method: str, field: str) -> None:
    value = field.encode("utf-8", "replace").translate(None, b"\r\n\0").decode("latin-1")
    fields = (f"Referer: {value}", f"User-Agent: {value}")
    for start in ("/missing/", "/room/"):
        (line,) = Connection().ask(get(start + rest, *fields).replace("GET", method, 1))
        quoted = line.split('"')
        assert len(quoted) == 7
        assert len(quoted[1].split(" ")) == 3
        assert line.isascii()
        assert line.isprintable()


@pytest.mark.parametrize(
    ("referer", "shown"),
    [
        ("https://posts.example", "https://posts.example"),
        ("https://posts.example/", "https://posts.example/"),
        ("http://[::1]:8080/x", "http://[::1]:8080/~1"),
        ("http://127.0.0.1:8080/?next=/login?password=hunter2", "http://127.0.0.1:8080/~29"),
        ("https://alice:hunter2@posts.example/", "~36"),
        ("https://alice:12345@posts.example/", "~34"),
        ("https://posts.example?a", "~23"),
        ("https://Posts.example/", "~22"),
        ("https://" + "a" * 43 + "/", "~52"),
        ("android-app://x/", "~16"),
        ("/x", "~2"),
        ("", "~0"),
        ("http://x/" + "\xff" * 8000, "http://x/~8000"),
    ],
)
def test_referer_is_logged_as_its_origin(connection: Connection, referer: str, shown: str) -> None:
    (line,) = connection.ask(get("/room/1", f"Referer: {referer}"))
    assert decode(line)["referer"] == shown


CHROMIUM = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36",
    "Mozilla/5.0 AppleWebKit/537.36 Chrome/126.0.0.0 Safari/537.36 ~39",
)


@pytest.mark.parametrize(
    ("agent", "shown"),
    [
        ("curl/7.88.1", "curl/7.88.1"),
        ("python-httpx/0.27.0", "python-httpx/0.27.0"),
        CHROMIUM,
        ("agent/hunter2", "~13"),
        ('" 200 \\" \t\x85', "~11"),
        ("", "~0"),
        ("postd", "postd"),
        ("postds", "~6"),
        ("a/1 " * 100 + "b", "a/1 " * PRODUCTS_MAX + "~369"),
        ("x" * (AGENT_MAX_BYTES - 5) + " curl/8", f"~{AGENT_MAX_BYTES + 2}"),
        ("\xff" * 8000, "~8000"),
    ],
)
def test_user_agent_is_logged_as_its_products(connection: Connection, agent: str, shown: str) -> None:
    (line,) = connection.ask(get("/room/1", f"User-Agent: {agent}"))
    assert decode(line)["agent"] == shown
    assert line.isascii()
    assert line.isprintable()


def test_unregistered_method_is_logged_as_its_length(connection: Connection) -> None:
    for method, shown in (("PROPFIND", "PROPFIND"), ("hunter2", "~7"), ("get", "~3")):
        (line,) = connection.ask(f"{method} /room/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert decode(line)["first"] == f"{shown} /room/1 HTTP/1.1"
    assert len(METHODS) >= 39


def test_long_user_name_is_truncated() -> None:
    for as_json in (False, True):
        connection = Connection("json" if as_json else "text")
        connection.room.username = "\x85" + "ü" * 1000
        (line,) = connection.ask(get("/room/1"))
        shown = json.loads(line)["user"] if as_json else decode(line)["user"]
        assert len(shown) == USER_MAX_CHARS + len("...")
        assert line.isprintable()


def test_duration_includes_receiving_the_body(connection: Connection) -> None:
    connection.ask("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
    connection.clock.advance(1)
    (line,) = connection.ask("b")
    assert decode(line)["ms"] == "1100.0"  # and what `ask` has waited for the log


def test_request_ids_are_unique(connection: Connection) -> None:
    lines = [*connection.ask(get("/a"), get("/b")), *Connection().ask(get("/c"))]
    assert len({decode(line)["id"] for line in lines}) == 3


def test_duration_includes_waiting_for_the_response(connection: Connection) -> None:
    connection.ask(get("/later"))
    request = connection.channel.request
    assert request is not None
    connection.clock.advance(1.25)
    with capturedLogs() as events:
        request.write(b"")
        request.finish()
        connection.clock.advance(DELAY_S)
    assert decode(events[-1]["lines"])["ms"] == "1350.0"  # and what `ask` has waited for the log


def test_disconnect_before_the_response_is_logged_as_499(connection: Connection) -> None:
    connection.ask(get("/later"))
    with capturedLogs() as events:
        connection.transport.loseConnection()
        connection.clock.advance(DELAY_S)
    assert decode(events[-1]["lines"])["status"] == "499"


@pytest.mark.parametrize(
    ("sent", "first", "status"),
    [
        ("GET /a HTTP/2.0\r\nHost: x\r\n\r\n", "GET /~1 HTTP/1.1", "505"),
        ("GET /a HTTP/1.1\r\n\r\n", "GET /~1 HTTP/1.1", "400"),
        ("\x16\x03\x01", "- - -", "400"),
    ],
    ids=["version", "host", "tls"],
)
def test_refused_request_is_logged(connection: Connection, sent: str, first: str, status: str) -> None:
    (line,) = connection.ask(sent)
    found = decode(line)
    assert (found["first"], found["status"], found["route"]) == (first, status, "-")


def test_lines_are_written_in_batches_and_the_last_at_shutdown(connection: Connection) -> None:
    with capturedLogs() as events:
        for _ in range(3):
            connection.channel.dataReceived(get("/a").encode())
        assert events == []
        connection.site.stopFactory()
        assert len(events) == 1
        connection.channel.dataReceived(get("/b").encode())
    assert not any("flush" in str(call) for call in connection.clock.getDelayedCalls())
    assert [event["lines"].count("\n") + 1 for event in events] == [3, 1]


def test_access_log_can_be_off() -> None:
    clock: Any = Clock()
    transport = MemoryTransport()
    with capturedLogs() as events:
        channel = connect(transport, HttpFactory(Room(), limits=Limits(), reactor=clock))
        channel.dataReceived(get("/a").encode())
        clock.advance(1)
    assert b"hello" in transport.value()
    assert events == []

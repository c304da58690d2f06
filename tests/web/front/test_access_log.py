"""The lines of the access log, for requests that came through a connection."""

import json
import re
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from postd.config import Limits
from postd.web.front.access_log import DELAY_S, SHOWN_MAX_BYTES, AccessLog
from postd.web.front.site import PostdSite
from tests.helpers import MemoryTransport, connect

LINE = re.compile(
    r'(?P<client>\S+) - (?P<user>\S+) \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "(?P<first>(?:[^"\\]|\\.)*)" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-) "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)" '
    r"route=(?P<route>\S+) scheme=(?P<scheme>\S+) ms=(?P<ms>\d+\.\d) id=(?P<id>[0-9a-f]+-[0-9a-f]+)"
)


class Room(Resource):
    """Answers at once, but for `/later`."""

    isLeaf = True

    def render(self, request: Any) -> Any:
        request.username, request.auth_scheme, request.route = "alice b", "digest", "/room"
        return NOT_DONE_YET if request.path == b"/later" else b"hello"


class Connection:
    def __init__(self, *, as_json: bool) -> None:
        self.clock: Any = Clock()
        access_log = AccessLog(as_json=as_json, address_of=lambda _: "192.0.2.7", reactor=self.clock)
        self.site = PostdSite(Room(), limits=Limits(), access_log=access_log, reactor=self.clock)
        self.transport = MemoryTransport()
        self.channel = connect(self.transport, self.site)

    def ask(self, *requests: str) -> list[str]:
        """Make requests; return the lines that came of them."""
        with capturedLogs() as events:
            for request in requests:
                self.channel.dataReceived(request.encode("latin-1"))
            self.clock.advance(DELAY_S)
        return [line for event in events if "lines" in event for line in event["lines"].split("\n")]


@pytest.fixture
def connection() -> Connection:
    return Connection(as_json=False)


def get(target: str, *fields: str) -> str:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: x", *fields, "", ""])


def decode(line: str) -> dict[str, str]:
    match = LINE.fullmatch(line)
    assert match, line
    return match.groupdict()


def test_a_line_has_all_that_is_known(connection: Connection) -> None:
    (line,) = connection.ask(get("/a?b", "Referer: http://x/", "User-Agent: curl/8"))
    found = decode(line)
    assert found.pop("ms") == "0.0"
    assert found.pop("id")
    assert found == {
        "client": "192.0.2.7",
        "user": "alice%20b",
        "first": "GET /a?b HTTP/1.1",
        "status": "200",
        "bytes": "5",
        "referer": "http://x/",
        "agent": "curl/8",
        "route": "/room",
        "scheme": "digest",
    }


def test_as_json_it_has_the_same(connection: Connection) -> None:
    connection = Connection(as_json=True)
    (line,) = connection.ask(get("/a?b", 'User-Agent: a"b\\c\xc3\xa9\xff'))
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found.pop("time"))
    assert found.pop("id")
    assert found == {
        "client": "192.0.2.7",
        "user": "alice b",
        "method": "GET",
        "target": "/a?b",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 5,
        "referer": None,
        "agent": 'a"b\\cé\\xff',
        "route": "/room",
        "scheme": "digest",
        "ms": 0.0,
    }


def test_nothing_that_is_sent_ends_its_quotes_or_the_line(connection: Connection) -> None:
    (line,) = connection.ask(get('/"\\', 'User-Agent: " 200 \\" \t\x85', 'Referer: "'))
    found = decode(line)
    assert found["first"] == r"GET /\"\\ HTTP/1.1"
    assert found["agent"] == r"\" 200 \\\" \x09\x85"
    assert line.isascii()
    assert line.isprintable()


def test_json_has_no_control_characters_either() -> None:
    (line,) = Connection(as_json=True).ask(get("/a", "User-Agent: \xc2\x85\xc2\x9b31m\t"))
    assert line.isprintable()
    assert json.loads(line)["agent"] == "\x85\x9b31m"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/a?refresh_token=x&client_secret=y", "/a?refresh_token=[redacted]&client_secret=[redacted]"),
        ("/a?code=x&Session=y", "/a?code=[redacted]&Session=[redacted]"),
        ("/a?%70assword=x;api%5Ftoken=y", "/a?%70assword=[redacted];api%5Ftoken=[redacted]"),
        ("/a?barcode=1&tokens=2&passwords=3&=4", "/a?barcode=1&tokens=2&passwords=3&=4"),
    ],
    ids=["oauth", "logins", "encoded", "others"],
)
def test_parameters_that_are_secrets_are_not_told(connection: Connection, target: str, shown: str) -> None:
    (line,) = connection.ask(get(target, f"Referer: http://x{target}"))
    found = decode(line)
    assert found["first"] == f"GET {shown} HTTP/1.1"
    assert found["referer"] == f"http://x{shown}"
    (line,) = connection.ask(get("/a", "Referer: http://u:p@x/a@b"))
    assert decode(line)["referer"] == "http://[redacted]@x/a@b"


def test_what_is_long_is_not_told_whole(connection: Connection) -> None:
    (line,) = connection.ask(get("/" + "a" * 8000, "User-Agent: " + "\xff" * 8000))
    found = decode(line)
    assert found["first"] == f"GET /{'a' * (SHOWN_MAX_BYTES - 1)}... HTTP/1.1"
    assert found["agent"] == r"\xff" * SHOWN_MAX_BYTES + "..."


def test_the_time_of_a_body_counts(connection: Connection) -> None:
    connection.ask("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na")
    connection.clock.advance(1)
    (line,) = connection.ask("b")
    assert decode(line)["ms"] == "1100.0"  # and what `ask` has waited for the log


def test_each_request_has_an_id_of_its_own(connection: Connection) -> None:
    lines = [*connection.ask(get("/a"), get("/b")), *Connection(as_json=False).ask(get("/c"))]
    assert len({decode(line)["id"] for line in lines}) == 3


def test_how_long_it_took_is_from_the_head_to_the_answer(connection: Connection) -> None:
    connection.ask(get("/later"))
    request = connection.channel.request
    assert request is not None
    connection.clock.advance(1.25)
    with capturedLogs() as events:
        request.write(b"")
        request.finish()
        connection.clock.advance(DELAY_S)
    assert decode(events[-1]["lines"])["ms"] == "1350.0"  # and what `ask` has waited for the log


def test_a_client_that_went_before_its_answer_has_a_line(connection: Connection) -> None:
    connection.ask(get("/later"))
    with capturedLogs() as events:
        connection.transport.loseConnection()
        connection.clock.advance(DELAY_S)
    assert decode(events[-1]["lines"])["status"] == "499"


@pytest.mark.parametrize(
    ("sent", "first", "status"),
    [
        ("GET /a HTTP/2.0\r\nHost: x\r\n\r\n", "GET /a HTTP/1.1", "505"),
        ("GET /a HTTP/1.1\r\n\r\n", "GET /a HTTP/1.1", "400"),
        ("\x16\x03\x01", "-", "400"),
    ],
    ids=["version", "host", "tls"],
)
def test_what_is_refused_has_a_line(connection: Connection, sent: str, first: str, status: str) -> None:
    (line,) = connection.ask(sent)
    found = decode(line)
    assert (found["first"], found["status"], found["route"]) == (first, status, "-")


def test_lines_go_out_in_bundles_and_the_rest_at_the_end(connection: Connection) -> None:
    with capturedLogs() as events:
        for _ in range(3):
            connection.channel.dataReceived(get("/a").encode())
        assert events == []
        connection.site.stopFactory()
        assert len(events) == 1
        connection.channel.dataReceived(get("/b").encode())
    assert [event["lines"].count("\n") + 1 for event in events] == [3, 1]


def test_nobody_has_to_keep_one() -> None:
    clock: Any = Clock()
    transport = MemoryTransport()
    with capturedLogs() as events:
        channel = connect(transport, PostdSite(Room(), limits=Limits(), reactor=clock))
        channel.dataReceived(get("/a").encode())
        clock.advance(1)
    assert b"hello" in transport.value()
    assert events == []

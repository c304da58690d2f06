"""Refused requests, as clients on real sockets see them; real clients are not refused."""

import json
import re
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from msgspec import Struct

from tests.cases import each
from tests.helpers import PATIENCE_S
from tests.integration.daemon import Daemon
from tests.integration.wire import received_from, talk

WAIT_S = PATIENCE_S
UNREAD = b"x" * 300_000
"""More input than the buffers of a socket take, after a refused request."""

POST = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FORM = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
HIDDEN = POST + b'Content-Length: 19\r\n\r\n{"post":"smuggled"}'

REFUSED: Mapping[str, tuple[bytes, int]] = {
    "a bad request line": (b"GET  /post HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /post\r\n\r\n", 400),
    "no Host": (b"GET /post HTTP/1.1\r\n\r\n", 400),
    "two of Host": (POST + b"Host: localhost\r\n\r\n", 400),
    "a bad Host": (b"GET /post HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "a Host that is not ASCII": (b"GET /post HTTP/1.1\r\nHost: b\xc3\xbccher.example\r\n\r\n", 400),
    "a folded line": (POST + b"X: y\r\n z\r\n\r\n", 400),
    "a line feed": (POST + b"X: y\nZ: w\r\n\r\n", 400),
    "a control byte": (POST + b"X: \x01\r\n\r\n", 400),
    "a space before a colon": (POST + b"Content-Length : 19\r\n\r\n", 400),
    "a length that is none": (POST + b"Content-Length: +19\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 19\r\nContent-Length: 0\r\n\r\n", 400),
    "a length and chunks": (POST + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n", 400),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "a bad size of a chunk": (POST + CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n", 400),
    "a bad end of a chunk": (POST + CHUNKED + b"5\r\nhello0\r\n\r\n", 400),
    "a bad end of the chunks": (POST + CHUNKED + b"0\r\n\n", 400),
    "a request for a trailer": (POST + CHUNKED + b"0\r\n" + HIDDEN, 400),
    "a long body": (POST + b"Content-Length: 99999\r\n\r\n", 413),
    "a very long body": (POST + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n", 413),
    "a long chunk": (POST + CHUNKED + b"ffffffffffffffff\r\n", 413),
    "a long target": (b"GET /post?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
    "another expectation": (POST + b"Content-Length: 5\r\nExpect: dragons\r\n\r\n", 417),
    "many fields": (POST + b"X: y\r\n" * 200 + b"\r\n", 431),
    "a long field": (POST + b"X: " + b"y" * 20_000 + b"\r\n\r\n", 431),
    "a tunnel": (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", 501),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "another version": (b"GET /post HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
}

REFUSED_TO_A_PAGE: Mapping[str, tuple[bytes, int]] = {
    "a long body": (FORM + b"Content-Length: 99999\r\n\r\n", 413),
    "a bad size of a chunk": (FORM + CHUNKED + b"x\r\n", 400),
    "a bad Host": (b"GET /home HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "two lengths": (FORM + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400),
    "another expectation": (FORM + b"Content-Length: 5\r\nExpect: dragons\r\n\r\n", 417),
    "another coding": (FORM + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "another version": (b"GET /home HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
    "many fields": (FORM + b"X: y\r\n" * 200 + b"\r\n", 431),
}


class Received(Struct):
    """The one response on a connection, which must be complete before its end."""

    status: int
    fields: Mapping[str, str]
    body: bytes

    @classmethod
    def decode(cls, received: bytes) -> "Received":
        top, separator, body = received.partition(b"\r\n\r\n")
        assert separator, received
        line, *lines = top.decode("ascii").split("\r\n")
        assert re.fullmatch("HTTP/1\\.1 [1-5][0-9][0-9] [A-Za-z' -]+", line), line
        fields = dict(text.lower().split(": ", 1) for text in lines)
        assert len(fields) == len(lines), lines
        assert len(body) == int(fields["content-length"])
        return cls(int(line.split(" ")[1]), fields, body)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Daemon]:
    key, cert = certificate
    tls = f"ssl:0:privateKey={key}:certKey={cert}:interface=127.0.0.1"
    with Daemon(tmp_path_factory.mktemp("exactness"), "--listen", tls) as daemon:
        yield daemon
        assert "smuggled" not in httpx.get(f"{daemon.url}/post").text
    assert "Traceback" not in daemon.log


def check_refused(answer: Received, status: int) -> None:
    assert answer.status == status
    assert answer.fields["connection"] == "close"
    assert "date" in answer.fields
    assert "server" not in answer.fields


@each("name", REFUSED)
def test_refusal_by_the_api_is_problem_json(daemon: Daemon, name: str) -> None:
    sent, status = REFUSED[name]
    answer = Received.decode(talk(daemon, sent + HIDDEN))
    check_refused(answer, status)
    assert answer.fields["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]


@each("name", REFUSED_TO_A_PAGE)
def test_refusal_on_a_page_is_plain_text(daemon: Daemon, name: str) -> None:
    sent, status = REFUSED_TO_A_PAGE[name]
    answer = Received.decode(talk(daemon, sent))
    check_refused(answer, status)
    assert answer.fields["content-type"] == "text/plain; charset=utf-8"
    assert answer.body


@each("name", REFUSED)
def test_refusal_is_received_while_more_input_arrives(daemon: Daemon, name: str) -> None:
    """RFC 9112 §9.6: closed at once, with unread input, the connection would be reset."""
    sent, status = REFUSED[name]
    assert Received.decode(talk(daemon, sent, UNREAD)).status == status
    assert Received.decode(talk(daemon, sent + UNREAD)).status == status


@pytest.mark.slow
def test_refused_connection_is_closed_though_the_client_is_not(daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.sendall(b"GET  / HTTP/1.1\r\n\r\n")
        received_from(client)
        with pytest.raises(OSError):  # reset, or a broken pipe
            while True:
                client.sendall(UNREAD)
                time.sleep(0.05)


@each("name", REFUSED)
def test_refusal_over_tls_is_received(daemon: Daemon, certificate: tuple[Path, Path], name: str) -> None:
    """The response says where it ends: the client goes on sending, and sees no end of the connection."""
    sent, status = REFUSED[name]
    (port,) = re.findall(r"https://127\.0\.0\.1:([0-9]+)/;", daemon.log)
    context = ssl.create_default_context(cafile=certificate[1])
    with (
        socket.create_connection(("127.0.0.1", int(port)), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(sent)
        received = client.recv(65536)
        client.sendall(HIDDEN)
        while b"\r\n\r\n" not in received or received.endswith(b"\r\n\r\n"):
            piece = client.recv(65536)
            assert piece, received
            received += piece
    check_refused(Received.decode(received), status)


def test_valid_pipelined_requests_are_answered_before_the_refusal(daemon: Daemon) -> None:
    received = talk(daemon, b"GET /post/9007 HTTP/1.1\r\nHost: localhost\r\n\r\nGET  / HTTP/1.1\r\n\r\n" + HIDDEN)
    assert re.findall(rb"^HTTP/1\.1 ([0-9]{3}) ", received, re.MULTILINE) == [b"404", b"400"]


@each(
    "sent",
    [
        b"GET /post HTTP/1.0\r\n\r\n",
        b"GET /post HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET /post HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /post HTTP/1.1\r\nHost: localhost\r\nConnection: TE, close\r\n\r\n",
        b"GET http://localhost/post HTTP/1.7\r\nHost: y\r\nConnection: close\r\n\r\n",
        b"\r\nGET /post HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_connection_close_ends_the_connection(daemon: Daemon, sent: bytes) -> None:
    answer = Received.decode(talk(daemon, sent + HIDDEN))
    assert answer.status == 200
    assert answer.fields["connection"] == "close"


def test_expect_100_continue_is_answered(daemon: Daemon) -> None:
    with daemon.connect() as client:
        client.sendall(POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 16\r\n\r\n")
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b'{"post":"asked"}')
        received = received_from(client)
    assert Received.decode(received).status == 201


# Clients as they are


TEXT = "Grüße, мир, 世界"
BODY = json.dumps({"post": TEXT})


def with_requests(url: str) -> Iterable[str]:
    with requests.Session() as session:
        yield session.post(f"{url}/post", json={"post": TEXT}, timeout=WAIT_S).text
        chunks: Any = iter([BODY.encode()[:9], BODY.encode()[9:]])
        headers = {"Content-Type": "application/json"}
        yield session.post(f"{url}/post", data=chunks, headers=headers, timeout=WAIT_S).text


def with_httpx(url: str) -> Iterable[str]:
    with httpx.Client(timeout=WAIT_S) as client:
        yield client.post(f"{url}/post", json={"post": TEXT}).text
        chunks = iter([BODY.encode()[:9], BODY.encode()[9:]])
        yield client.post(f"{url}/post", content=chunks, headers={"Content-Type": "application/json"}).text


def test_real_clients_are_understood(daemon: Daemon) -> None:
    before = len(httpx.get(f"{daemon.url}/post").json())
    added = 0
    for client in (with_requests, with_httpx):
        for answer in client(daemon.url):
            assert answer == "Success a Post!\n", client
            added += 1
    posts = httpx.get(f"{daemon.url}/post").json()
    assert [post["post"] for post in posts[before:]] == [TEXT] * added

"""The client on a socket: sends what it is given, byte for byte. `tests.web.wire` is the one in memory."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from typing import Self

from tests.helpers import Response
from tests.integration.daemon import Daemon

JSON = ("Content-Type", "application/json")


def bearer(token: str | bytes) -> bytes:
    """Return the `Authorization` of a token."""
    return b"Bearer " + (token.encode() if isinstance(token, str) else token)


def received_from(client: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    return b"".join(_pieces(client))


def _pieces(client: socket.socket) -> Iterator[bytes]:
    while piece := client.recv(65536):
        yield piece


def talk(daemon: Daemon, *pieces: bytes, half_closes: bool = False) -> bytes:
    """Send pieces, as far as the server takes them; return all that comes until it closes the connection.

    Args:
        daemon: the server.
        pieces: what is sent.
        half_closes: whether the client closes its side of the connection then.

    Raises:
        ConnectionResetError: the end of the response was lost.
    """
    with daemon.connect() as client:
        with suppress(OSError):  # the server reads no more; its response can be read all the same
            for piece in pieces:
                client.sendall(piece)
            if half_closes:
                client.shutdown(socket.SHUT_WR)
        return received_from(client)


class Wire:
    """A client that keeps its connection while the server does.

    Attributes:
        sent: the tokens that it has sent.
        connections: how many connections it took.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.origin = daemon.url
        self.sent: list[bytes] = []
        self.connections = 0
        self._daemon = daemon
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def ask(
        self,
        method: str,
        path: str,
        *authorizations: str | bytes,
        body: bytes | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        host: str = "",
    ) -> Response:
        """Make a request with as many `Authorization` fields as are given, to `host` if it is not the server's own."""
        lines = [f"{method} {path} HTTP/1.1".encode(), f"Host: {host or self.origin.rpartition('/')[2]}".encode()]
        for authorization in authorizations:
            value = authorization.encode() if isinstance(authorization, str) else authorization
            self.sent.append(value.partition(b" ")[2])
            lines.append(b"Authorization: " + value)
        lines += [f"{name}: {value}".encode() for name, value in headers]
        if body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        return self._exchange(method, b"\r\n".join([*lines, b"", body or b""]))

    def get(self, path: str, token: str | bytes) -> Response:
        return self.ask("GET", path, bearer(token))

    def post(self, token: str | bytes) -> Response:
        """Add a post."""
        return self.ask("POST", "/post", bearer(token), body=b'{"post": "x"}', headers=(JSON,))

    def _exchange(self, method: str, request: bytes) -> Response:
        if self._socket is None:
            self._socket = self._daemon.connect()
            self.connections += 1
        self._socket.sendall(request)
        response = HTTPResponse(self._socket, method=method)
        response.begin()
        headers: dict[str, list[str]] = {}
        for name, value in response.getheaders():
            headers.setdefault(name.lower(), []).append(value)
        answer = Response(response.status, headers, response.read())
        response.close()
        if response.will_close:
            self._close()
        return answer

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

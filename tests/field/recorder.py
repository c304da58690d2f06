"""A TCP forwarder that records what passes: requests and the statuses of their responses."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, Self

# Not at the beginning of a line: a body before it need not end with one.
_REQUEST = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r?\n((?:[^\r\n]+\r?\n)*)\r?\n")
_STATUS = re.compile(rb"HTTP/1\.[01] ([2-5]\d\d) ")
_AUTHORIZATION = re.compile(rb"^authorization: *(\S+) +([^\r\n]*)", re.MULTILINE | re.IGNORECASE)
_RESPONSE = re.compile(rb'\bresponse="?([0-9a-f]+)')
_ALGORITHM = re.compile(rb'\balgorithm="?([\w-]+)')
_LENGTHS = {32: "MD5", 64: "SHA-256"}


class Exchange(NamedTuple):
    """A request, and the status of its response: 0 if there was none."""

    method: str
    target: str
    fields: bytes
    status: int

    @property
    def credentials(self) -> str:
        """Basic, or the algorithm of Digest, by the length of its response and by the name if that is another."""
        found = _AUTHORIZATION.search(self.fields)
        if found is None:
            return ""
        scheme, rest = found[1].decode(), found[2]
        response = _RESPONSE.search(rest)
        if scheme.lower() != "digest" or response is None:
            return scheme.title()
        used = _LENGTHS.get(len(response[1]), "?")
        named = _ALGORITHM.search(rest)
        name = "MD5" if named is None else named[1].decode().upper()
        return used if name == used else f"{used} named {name}"


class Recorder:
    """Forwards connections to a port on loopback; ends with the `with` block.

    `port` is where it listens.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._streams: list[tuple[bytearray, bytearray]] = []
        self._open: list[socket.socket] = []
        self.port: int = self._listening.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listening, *self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    @property
    def exchanges(self) -> list[Exchange]:
        """The requests so far, connection by connection."""
        return [exchange for sent, received in list(self._streams) for exchange in pair(bytes(sent), bytes(received))]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                sent, received = bytearray(), bytearray()
                self._streams.append((sent, received))
                threading.Thread(target=_copy, args=(client, server, sent), daemon=True).start()
                threading.Thread(target=_copy, args=(server, client, received), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            kept += piece
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def pair(sent: bytes, received: bytes) -> Iterator[Exchange]:
    """Yield the requests of a connection with the statuses of their responses."""
    statuses = [int(status) for status in _STATUS.findall(received)]
    for number, (method, target, fields) in enumerate(_REQUEST.findall(sent)):
        status = statuses[number] if number < len(statuses) else 0
        yield Exchange(method.decode(), target.decode(), fields, status)

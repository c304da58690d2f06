"""Responses through requests of a stock site."""

from collections.abc import AsyncGenerator
from typing import Any

from twisted.internet.testing import StringTransport
from twisted.web.server import Site

from postd.http.responses import TEXT, StreamedResponse, make_streamed_response
from postd.http.views import ViewResource


def test_streamed_response_is_sent_in_order() -> None:
    async def body() -> AsyncGenerator[list[bytes]]:
        yield [b"one ", b"two "]
        yield [b"three"]

    async def view(_request: Any) -> StreamedResponse:
        return make_streamed_response(TEXT, body(), {b"ETag": b'"x"'}, length=13)

    transport = StringTransport()
    channel = Site(ViewResource(view)).buildProtocol(None)
    assert channel is not None
    channel.makeConnection(transport)
    channel.dataReceived(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    head, text = transport.value().split(b"\r\n\r\n", 1)
    assert (head.split(b" ")[1], text) == (b"200", b"one two three")
    assert b'\r\nETag: "x"' in head

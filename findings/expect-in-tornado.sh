#!/usr/bin/env bash
# The value of `Expect: 100-continue` has no case, and a server ignores it in a request of HTTP/1.0, whose clients do not
# know interim responses (RFC 9110 sections 10.1.1 and 15.2).
#
# One would expect: a server answers 100 to `Expect: 100-Continue`, too, and never to HTTP/1.0.
# Seen with tornado 6.6.1: it does the reverse. To `100-Continue` it says nothing, so that the client sends the body
# only when its own timeout ends; to HTTP/1.0 it sends 100. aiohttp 3.14.5 does as the RFC says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q tornado==6.6.1 aiohttp==3.14.5
bin/python - >seen <<'PYTHON'
import asyncio
import tornado.httpserver
import tornado.netutil
import tornado.web
from aiohttp import web

REQUESTS = (("1.1", "100-continue"), ("1.1", "100-Continue"), ("1.0", "100-continue"))

class Handler(tornado.web.RequestHandler):
    def post(self):
        self.write(self.request.body)

async def ask(name, port):
    for version, value in REQUESTS:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST / HTTP/{version}\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: {value}\r\n\r\n"
        writer.write(head.encode())
        if version == "1.0":
            writer.write(b"hello")
        try:
            line = (await asyncio.wait_for(reader.readline(), 2)).decode().strip()
        except TimeoutError:
            line = "nothing before the body"
        print(f"HTTP/{version}, {value}: {name}: {line}")
        if version == "1.1":
            writer.write(b"hello")
        await reader.readuntil(b"hello")  # the response
        writer.close()

async def main():
    [listening] = tornado.netutil.bind_sockets(0, "127.0.0.1")
    server = tornado.httpserver.HTTPServer(tornado.web.Application([("/", Handler)]))
    server.add_sockets([listening])
    await ask("tornado", listening.getsockname()[1])
    server.stop()

    async def post(request):
        return web.Response(body=await request.read())

    application = web.Application()
    application.router.add_post("/", post)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await ask("aiohttp", runner.addresses[0][1])
    await runner.cleanup()

asyncio.run(main())
PYTHON
diff - seen <<'SEEN'
HTTP/1.1, 100-continue: tornado: HTTP/1.1 100 (Continue)
HTTP/1.1, 100-Continue: tornado: nothing before the body
HTTP/1.0, 100-continue: tornado: HTTP/1.1 100 (Continue)
HTTP/1.1, 100-continue: aiohttp: HTTP/1.1 100 Continue
HTTP/1.1, 100-Continue: aiohttp: HTTP/1.1 100 Continue
HTTP/1.0, 100-continue: aiohttp: HTTP/1.0 200 OK
SEEN

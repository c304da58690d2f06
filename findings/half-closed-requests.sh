#!/usr/bin/env bash
# A client that shuts down its sending side after a request (`nc -N`, many scripts, some load balancers' checks) still
# reads: TCP's half-close. RFC 9112 section 9.6 has a server close its side only after the last response.
#
# One would expect: every server answers such a request.
# Seen (Linux): a handler that takes half a second is cancelled, or its response dropped, by uvicorn 0.54.0, granian
# 2.8.9, daphne 4.2.3, tornado 6.6.1, aiohttp 3.14.5, sanic 25.12.1 and Twisted 25.5.0, without a byte in return.
# hypercorn 0.18.0, waitress 3.0.2 and gunicorn 27.0.1 answer.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q uvicorn==0.54.0 granian==2.8.9 daphne==4.2.3 tornado==6.6.1 aiohttp==3.14.5 sanic==25.12.1 \
    Twisted==25.5.0 hypercorn==0.18.0 waitress==3.0.2 gunicorn==27.0.1
export PATH="$folder/bin:$PATH"
cat >asgi.py <<'PYTHON'
import asyncio

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})
PYTHON
cat >wsgi.py <<'PYTHON'
import time

def app(environ, start_response):
    time.sleep(0.5)
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]
PYTHON
cat >own.py <<'PYTHON'
"""A server of a library, on a port: python own.py NAME PORT."""
import asyncio
import sys

name, port = sys.argv[1], int(sys.argv[2])
if name == "tornado":
    import tornado.web

    class Slow(tornado.web.RequestHandler):
        async def get(self):
            await asyncio.sleep(0.5)
            self.write("hello")

    async def main():
        tornado.web.Application([("/", Slow)]).listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())
elif name == "aiohttp":
    from aiohttp import web

    async def slow(request):
        await asyncio.sleep(0.5)
        return web.Response(text="hello")

    application = web.Application()
    application.router.add_get("/", slow)
    web.run_app(application, host="127.0.0.1", port=port, print=None)
elif name == "sanic":
    from sanic import Sanic
    from sanic.response import text

    application = Sanic("slow")

    @application.get("/")
    async def slow(request):
        await asyncio.sleep(0.5)
        return text("hello")

    application.run("127.0.0.1", port, single_process=True, access_log=False, motd=False)
else:
    from twisted.internet import reactor
    from twisted.web.resource import Resource
    from twisted.web.server import NOT_DONE_YET, Site

    class Slow(Resource):
        isLeaf = True

        def render_GET(self, request):
            gone = request.notifyFinish()
            gone.addErrback(lambda _: None)
            reactor.callLater(0.5, lambda: None if gone.called else (request.write(b"hello"), request.finish()))
            return NOT_DONE_YET

    reactor.listenTCP(port, Site(Slow()), interface="127.0.0.1")
    reactor.run()
PYTHON
cat >ask.py <<'PYTHON'
import socket
import sys
import time

name, port = sys.argv[1], int(sys.argv[2])
for _ in range(600):
    try:
        client = socket.create_connection(("127.0.0.1", port))
        break
    except OSError:
        time.sleep(0.1)
client.settimeout(10)
client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
client.shutdown(socket.SHUT_WR)
received = b""
try:
    while piece := client.recv(65536):
        received += piece
except ConnectionResetError:
    pass
print(name, "answers" if b"hello" in received else "nothing" if not received else "a part")
PYTHON
free_port() {
    python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
port=$(free_port)
try() {
    local name=$1
    shift
    "$@" >"$name.log" 2>&1 &
    python ask.py "$name" "$port" >>seen
    kill $!
    wait $! 2>/dev/null || true
    port=$(free_port)
}
try uvicorn bin/uvicorn asgi:app --port $port
try granian bin/granian --interface asgi asgi:app --port $port
try daphne bin/daphne asgi:app -p $port
for name in tornado aiohttp sanic twisted; do try $name bin/python own.py $name $port; done
try hypercorn bin/hypercorn asgi:app -b 127.0.0.1:$port
try waitress bin/waitress-serve --listen=127.0.0.1:$port wsgi:app
try gunicorn bin/gunicorn wsgi:app -b 127.0.0.1:$port
diff - seen <<'SEEN'
uvicorn nothing
granian nothing
daphne nothing
tornado nothing
aiohttp nothing
sanic nothing
twisted nothing
hypercorn answers
waitress answers
gunicorn answers
SEEN

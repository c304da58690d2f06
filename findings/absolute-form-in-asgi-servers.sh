#!/usr/bin/env bash
# A server has to accept the whole URL as the target of a request, "GET http://site.example/a HTTP/1.1", though
# clients send it only to what they take for a proxy (RFC 9112 section 3.2.2), as curl does with `-x`.
#
# One would expect: the application gets the path, as with "GET /a HTTP/1.1".
# Seen: in ASGI `path` is the target without its query, so that uvicorn 0.54.0 with h11 0.16.0, hypercorn 0.18.0 and
# daphne 4.2.3 pass the whole URL in it. Starlette 1.10.0 and Django 5.2.19 take that for a path, and answer 404;
# Quart 0.22.0 takes it apart. With httptools 0.9.0 instead, uvicorn's default where that is installed, and with
# granian 2.8.9 the application gets the path. Of other servers, waitress 3.0.2, gunicorn 27.0.1, Werkzeug 3.1.9 and
# aiohttp 3.14.5 find the page, while tornado 6.6.1 answers 404, and cheroot 11.1.2 answers 400 and says that it is no
# proxy.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q uvicorn==0.54.0 httptools==0.9.0 h11==0.16.0 hypercorn==0.18.0 daphne==4.2.3 granian==2.8.9 \
    starlette==1.10.0 Quart==0.22.0 Django==5.2.19 waitress==3.0.2 gunicorn==27.0.1 Werkzeug==3.1.9 cheroot==11.1.2 \
    aiohttp==3.14.5 tornado==6.6.1
export PATH="$folder/bin:$PATH"
cat >with_starlette.py <<'PYTHON'
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

app = Starlette(routes=[Route("/a", lambda request: PlainTextResponse("found"))])
PYTHON
cat >with_django.py <<'PYTHON'
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="test")
urlpatterns = [path("a", lambda request: HttpResponse("found"))]
app = get_asgi_application()
PYTHON
cat >with_quart.py <<'PYTHON'
from quart import Quart

app = Quart(__name__)

@app.get("/a")
async def found():
    return "found"
PYTHON
cat >wsgi.py <<'PYTHON'
def app(environ, start_response):
    start_response("200 OK" if environ["PATH_INFO"] == "/a" else "404 Not Found", [("Content-Length", "0")])
    return []
PYTHON
cat >own.py <<'PYTHON'
"""A server of a library, on a port: python own.py NAME PORT."""
import asyncio
import sys
from wsgi import app

name, port = sys.argv[1], int(sys.argv[2])
if name == "tornado":
    import tornado.web

    class Found(tornado.web.RequestHandler):
        def get(self):
            self.write("found")

    async def main():
        tornado.web.Application([("/a", Found)]).listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())
elif name == "aiohttp":
    from aiohttp import web

    async def found(request):
        return web.Response(text="found")

    application = web.Application()
    application.router.add_get("/a", found)
    web.run_app(application, host="127.0.0.1", port=port, print=None)
elif name == "cheroot":
    from cheroot.wsgi import Server

    Server(("127.0.0.1", port), app).start()
else:
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", port, app)
PYTHON
free_port() {
    python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
port=$(free_port)
try() {
    local name=$1 direct proxied server=http://127.0.0.1:$port
    shift
    "$@" >log 2>&1 &
    direct=$(curl -s --retry 60 --retry-delay 1 --retry-connrefused -o answer -w '%{http_code}' "$server/a")
    proxied=$(curl -s --noproxy "" -x "$server" -o answer -w '%{http_code}' http://site.example/a)
    echo "$name: $direct, with the whole URL $proxied" >>seen
    kill $!
    wait $! 2>/dev/null || true
    port=$(free_port)
}
try "uvicorn with httptools, starlette" uvicorn with_starlette:app --http httptools --port $port
for framework in starlette django quart; do
    try "uvicorn with h11, $framework" uvicorn with_$framework:app --http h11 --port $port
done
try "hypercorn, starlette" hypercorn with_starlette:app -b 127.0.0.1:$port
try "daphne, starlette" daphne with_starlette:app -p $port
try "granian, starlette" granian --interface asgi with_starlette:app --port $port
try waitress waitress-serve --listen=127.0.0.1:$port wsgi:app
try gunicorn gunicorn wsgi:app -b 127.0.0.1:$port
for name in werkzeug aiohttp tornado cheroot; do try $name python own.py $name $port; done
diff - seen <<'SEEN'
uvicorn with httptools, starlette: 200, with the whole URL 200
uvicorn with h11, starlette: 200, with the whole URL 404
uvicorn with h11, django: 200, with the whole URL 404
uvicorn with h11, quart: 200, with the whole URL 200
hypercorn, starlette: 200, with the whole URL 404
daphne, starlette: 200, with the whole URL 404
granian, starlette: 200, with the whole URL 200
waitress: 200, with the whole URL 200
gunicorn: 200, with the whole URL 200
werkzeug: 200, with the whole URL 200
aiohttp: 200, with the whole URL 200
tornado: 200, with the whole URL 404
cheroot: 200, with the whole URL 400
SEEN

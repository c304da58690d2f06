#!/usr/bin/env bash
# A server ignores a field `Range` whose unit it does not know, and sends the whole file (RFC 9110 section 14.2). Units
# besides `bytes` are in use between clients and servers of their own (`items=0-9` for pages of a list).
#
# One would expect: a server of static files answers 200 to such a request.
# Seen: aiohttp 3.14.5, Werkzeug 3.1.9 and bottle 0.13.4 answer 416, and Starlette 1.10.0 400, so that a client that sends
# the field with all its requests cannot get a file. tornado 6.6.1, WebOb 1.8.11 and falcon 4.4.0 send the file. The name
# of a unit has no case: bottle answers 416 to `Bytes=0-1`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 tornado==6.6.1 starlette==1.10.0 httpx==0.28.1 Werkzeug==3.1.9 bottle==0.13.4 \
    WebOb==1.8.11 falcon==4.4.0
mkdir files
echo "abcdefghijklmnopqrstu" >files/a.txt
bin/python - >seen <<'PYTHON'
import asyncio
from pathlib import Path
import aiohttp
import bottle
import falcon
import httpx
import tornado.httpserver
import tornado.netutil
import tornado.web
import webob.static
from aiohttp import web
from starlette.applications import Starlette
from starlette.staticfiles import StaticFiles
from werkzeug.test import Client
from werkzeug.utils import send_file
from werkzeug.wrappers import Request

RANGES = ("bytes=0-1", "Bytes=0-1", "items=0-9")

def report(name, field, status, headers):
    kind = headers.get("Content-Range") or headers.get("Content-Type", "").partition(";")[0]
    print(f"{field}: {name} {status} {kind if status == 206 else ''}".rstrip())

async def ask(name, url):
    async with aiohttp.ClientSession() as client:
        for field in RANGES:
            async with client.get(url, headers={"Range": field}) as response:
                report(name, field, response.status, response.headers)

async def main():
    application = web.Application()
    application.router.add_static("/", "files")
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await ask("aiohttp", f"http://127.0.0.1:{runner.addresses[0][1]}/a.txt")
    await runner.cleanup()

    [listening] = tornado.netutil.bind_sockets(0, "127.0.0.1")
    handler = (r"/(.*)", tornado.web.StaticFileHandler, {"path": "files"})
    server = tornado.httpserver.HTTPServer(tornado.web.Application([handler]))
    server.add_sockets([listening])
    await ask("tornado", f"http://127.0.0.1:{listening.getsockname()[1]}/a.txt")
    server.stop()

    starlette = Starlette()
    starlette.mount("/", StaticFiles(directory="files"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=starlette), base_url="http://test") as client:
        for field in RANGES:
            response = await client.get("/a.txt", headers={"Range": field})
            report("starlette", field, response.status_code, response.headers)

asyncio.run(main())

@Request.application
def by_werkzeug(request):
    return send_file("files/a.txt", request.environ, conditional=True)

by_bottle = bottle.Bottle()
by_bottle.route("/a.txt")(lambda: bottle.static_file("a.txt", root="files"))
by_falcon = falcon.App()
by_falcon.add_static_route("/", Path("files").resolve())
applications = {
    "werkzeug": by_werkzeug,
    "bottle": by_bottle,
    "webob": webob.static.DirectoryApp("files"),
    "falcon": by_falcon,
}
for name, application in applications.items():
    for field in RANGES:
        response = Client(application).get("/a.txt", headers={"Range": field})
        report(name, field, response.status_code, response.headers)
PYTHON
sort -o seen seen
diff - seen <<'SEEN'
Bytes=0-1: aiohttp 206 bytes 0-1/22
Bytes=0-1: bottle 416
Bytes=0-1: falcon 200
Bytes=0-1: starlette 206 bytes 0-1/22
Bytes=0-1: tornado 200
Bytes=0-1: webob 206 bytes 0-1/22
Bytes=0-1: werkzeug 206 bytes 0-1/22
bytes=0-1: aiohttp 206 bytes 0-1/22
bytes=0-1: bottle 206 bytes 0-1/22
bytes=0-1: falcon 206 bytes 0-1/22
bytes=0-1: starlette 206 bytes 0-1/22
bytes=0-1: tornado 206 bytes 0-1/22
bytes=0-1: webob 206 bytes 0-1/22
bytes=0-1: werkzeug 206 bytes 0-1/22
items=0-9: aiohttp 416
items=0-9: bottle 416
items=0-9: falcon 200
items=0-9: starlette 400
items=0-9: tornado 200
items=0-9: webob 200
items=0-9: werkzeug 416
SEEN

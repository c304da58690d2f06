#!/usr/bin/env bash
# A client may ask for several ranges of a file: `Range: bytes=0-1, 4-5`. A server sends them as multipart/byteranges, or
# ignores the field and sends the whole file (RFC 9110 section 14.2). 416 is for a set without any range that the file has
# (section 15.5.17), and a suffix range that is longer than the file is the whole file (section 14.1.2).
#
# One would expect: a server of static files sends the ranges, or the file.
# Seen: aiohttp 3.14.5 and Werkzeug 3.1.9 answer 416, and falcon 4.4.0 400. bottle 0.13.4 and WebOb 1.8.11 send the first
# range alone, as 206. Of two ranges of which the file has one, Starlette 1.10.0 answers 416. WebOb and Werkzeug
# also answer 416 to `bytes=-100`, the last 100 bytes, for a file of 22. tornado 6.6.1 sends the file.
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

RANGES = ("bytes=0-1", "bytes=0-1, 4-5", "bytes=0-1, 100-101", "bytes=-100")

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
bytes=-100: aiohttp 206 bytes 0-21/22
bytes=-100: bottle 206 bytes 0-21/22
bytes=-100: falcon 206 bytes 0-21/22
bytes=-100: starlette 206 bytes 0-21/22
bytes=-100: tornado 200
bytes=-100: webob 416
bytes=-100: werkzeug 416
bytes=0-1, 100-101: aiohttp 416
bytes=0-1, 100-101: bottle 206 bytes 0-1/22
bytes=0-1, 100-101: falcon 400
bytes=0-1, 100-101: starlette 416
bytes=0-1, 100-101: tornado 200
bytes=0-1, 100-101: webob 206 bytes 0-1/22
bytes=0-1, 100-101: werkzeug 416
bytes=0-1, 4-5: aiohttp 416
bytes=0-1, 4-5: bottle 206 bytes 0-1/22
bytes=0-1, 4-5: falcon 400
bytes=0-1, 4-5: starlette 206 multipart/byteranges
bytes=0-1, 4-5: tornado 200
bytes=0-1, 4-5: webob 206 bytes 0-1/22
bytes=0-1, 4-5: werkzeug 416
bytes=0-1: aiohttp 206 bytes 0-1/22
bytes=0-1: bottle 206 bytes 0-1/22
bytes=0-1: falcon 206 bytes 0-1/22
bytes=0-1: starlette 206 bytes 0-1/22
bytes=0-1: tornado 206 bytes 0-1/22
bytes=0-1: webob 206 bytes 0-1/22
bytes=0-1: werkzeug 206 bytes 0-1/22
SEEN

#!/usr/bin/env bash
# With `If-Match: "tag"` a client asks for a file only if it is still that version; a server that knows another one
# answers 412 (RFC 9110 section 13.1.1). `If-Match: *` asks for any version that exists.
#
# One would expect: servers that send an entity tag with a file compare it in `If-Match`, and 412 has no file in it.
# Seen: tornado 6.6.1, Starlette 1.10.0, bottle 0.13.4 and falcon 4.4.0 send the file for any tag, though they send one
# themselves. Werkzeug 3.1.9 (Flask's `send_file`) compares it, but answers 412 to `*`, too, and sends the whole file with
# each 412, so that a client that looks at the body alone takes it. aiohttp 3.14.5 does as the RFC says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 tornado==6.6.1 starlette==1.10.0 httpx==0.28.1 Werkzeug==3.1.9 bottle==0.13.4 falcon==4.4.0
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
from aiohttp import web
from starlette.applications import Starlette
from starlette.staticfiles import StaticFiles
from werkzeug.test import Client
from werkzeug.utils import send_file
from werkzeug.wrappers import Request

TEXT = Path("files/a.txt").read_bytes()
TAGS = ('"version-one"', "*")

def report(name, field, status, headers, content):
    tag = " and a tag" if "ETag" in headers else ""
    print(f"{field}: {name} {status}, {'the file' if content == TEXT else 'no file'}{tag}")

async def ask(name, url):
    async with aiohttp.ClientSession() as client:
        for field in TAGS:
            async with client.get(url, headers={"If-Match": field}) as response:
                report(name, field, response.status, response.headers, await response.read())

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
        for field in TAGS:
            response = await client.get("/a.txt", headers={"If-Match": field})
            report("starlette", field, response.status_code, response.headers, response.content)

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
    "falcon": by_falcon,
}
for name, application in applications.items():
    for field in TAGS:
        response = Client(application).get("/a.txt", headers={"If-Match": field})
        report(name, field, response.status_code, response.headers, response.data)
PYTHON
sort -o seen seen
diff - seen <<'SEEN'
"version-one": aiohttp 412, no file
"version-one": bottle 200, the file and a tag
"version-one": falcon 200, the file and a tag
"version-one": starlette 200, the file and a tag
"version-one": tornado 200, the file and a tag
"version-one": werkzeug 412, the file and a tag
*: aiohttp 200, the file and a tag
*: bottle 200, the file and a tag
*: falcon 200, the file and a tag
*: starlette 200, the file and a tag
*: tornado 200, the file and a tag
*: werkzeug 412, the file and a tag
SEEN

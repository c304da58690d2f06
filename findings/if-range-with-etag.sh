#!/usr/bin/env bash
# A client that resumes a download sends `Range` with `If-Range: <entity tag>`: "the rest, if it is the same file, or
# all of the new one" (RFC 9110 section 13.1.5). A server that cannot match the tag has to send the whole file.
#
# One would expect: servers that send an entity tag with a file also compare it in `If-Range`.
# Seen: aiohttp 3.14.5 reads only a date there, and tornado 6.6.1 nothing: both answer 206 to a tag of another version,
# so that the client joins pieces of two files. Starlette 1.10.0 and Werkzeug 3.1.9 answer 200, as they should.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 tornado==6.6.1 starlette==1.10.0 httpx==0.28.1 Werkzeug==3.1.9
mkdir files
echo "version two" >files/a.txt
bin/python - >seen <<'PYTHON'
import asyncio
import aiohttp
import httpx
import tornado.httpserver
import tornado.netutil
import tornado.web
from aiohttp import web
from starlette.applications import Starlette
from starlette.staticfiles import StaticFiles
from werkzeug.test import Client
from werkzeug.utils import send_file

FIELDS = {"Range": "bytes=0-3", "If-Range": '"version-one"'}

def report(name, status, has_tag):
    print(name, "sends a tag," if has_tag else "sends no tag,", status)

async def ask(name, url):
    async with aiohttp.ClientSession() as client, client.get(url, headers=FIELDS) as response:
        report(name, response.status, "ETag" in response.headers)

async def main():
    application = web.Application()
    application.router.add_static("/", "files")
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
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
        response = await client.get("/a.txt", headers=FIELDS)
        report("starlette", response.status_code, "ETag" in response.headers)

    def application(environ, start_response):
        return send_file("files/a.txt", environ, conditional=True)(environ, start_response)

    response = Client(application).get("/", headers=FIELDS)
    report("werkzeug", response.status_code, "ETag" in response.headers)

asyncio.run(main())
PYTHON
diff - seen <<'SEEN'
aiohttp sends a tag, 206
tornado sends a tag, 206
starlette sends a tag, 200
werkzeug sends a tag, 200
SEEN

#!/usr/bin/env bash
# A field with a date has one of three forms, and a recipient has to accept all of them (RFC 9110 section 5.6.7): that of
# mail, which is to be sent today, that of RFC 850 and that of C's `asctime`. An `If-Modified-Since` that is no valid date
# is ignored (section 13.1.3).
#
# One would expect: a server of static files answers 304 to each of the three.
# Seen: falcon 4.4.0 answers 400 to the two older forms, and the client gets no file at all. aiohttp 3.14.5, tornado 6.6.1,
# Starlette 1.10.0, Werkzeug 3.1.9 and bottle 0.13.4 answer 304.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 tornado==6.6.1 starlette==1.10.0 httpx==0.28.1 Werkzeug==3.1.9 bottle==0.13.4 falcon==4.4.0
mkdir files
echo "abcdefghijklmnopqrstu" >files/a.txt
touch -d "2026-01-02 03:04:05 UTC" files/a.txt
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

DATES = ("Fri, 02 Jan 2026 03:04:05 GMT", "Friday, 02-Jan-26 03:04:05 GMT", "Fri Jan  2 03:04:05 2026")

def report(name, field, status):
    print(f"{field}: {name} {status}")

async def ask(name, url):
    async with aiohttp.ClientSession() as client:
        for field in DATES:
            async with client.get(url, headers={"If-Modified-Since": field}) as response:
                report(name, field, response.status)

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
        for field in DATES:
            response = await client.get("/a.txt", headers={"If-Modified-Since": field})
            report("starlette", field, response.status_code)

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
    for field in DATES:
        response = Client(application).get("/a.txt", headers={"If-Modified-Since": field})
        report(name, field, response.status_code)
PYTHON
sort -o seen seen
diff - seen <<'SEEN'
Fri Jan  2 03:04:05 2026: aiohttp 304
Fri Jan  2 03:04:05 2026: bottle 304
Fri Jan  2 03:04:05 2026: falcon 400
Fri Jan  2 03:04:05 2026: starlette 304
Fri Jan  2 03:04:05 2026: tornado 304
Fri Jan  2 03:04:05 2026: werkzeug 304
Fri, 02 Jan 2026 03:04:05 GMT: aiohttp 304
Fri, 02 Jan 2026 03:04:05 GMT: bottle 304
Fri, 02 Jan 2026 03:04:05 GMT: falcon 304
Fri, 02 Jan 2026 03:04:05 GMT: starlette 304
Fri, 02 Jan 2026 03:04:05 GMT: tornado 304
Fri, 02 Jan 2026 03:04:05 GMT: werkzeug 304
Friday, 02-Jan-26 03:04:05 GMT: aiohttp 304
Friday, 02-Jan-26 03:04:05 GMT: bottle 304
Friday, 02-Jan-26 03:04:05 GMT: falcon 400
Friday, 02-Jan-26 03:04:05 GMT: starlette 304
Friday, 02-Jan-26 03:04:05 GMT: tornado 304
Friday, 02-Jan-26 03:04:05 GMT: werkzeug 304
SEEN

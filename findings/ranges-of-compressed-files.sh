#!/usr/bin/env bash
# Where a response has a content coding, a range counts the bytes of the coded form (RFC 9110 section 14.1.2), and a
# strong entity tag differs for each coding (section 8.8.3.3), so that `Range` with `If-Range` gets the rest of what was
# cut.
#
# One would expect: a server that compresses files and answers ranges ignores `Range` where it would compress, or gives
# the two forms two tags.
# Seen: aiohttp 3.14.5, tornado 6.6.1, CherryPy 18.10.0, and Express 5.3.0 with compression 1.8.2 take the range of the
# plain file and compress that: the 206 says "bytes 1000-2999" and has less than half as many. aiohttp, tornado and
# Starlette 1.10.0 have one strong tag for both forms, and so answer 206 to a client that resumes a compressed download:
# the file is broken, and nothing says so. Download tools, and proxies that fetch a file in slices, send such requests.
# Fastify 5.12.8 and Hono 4.13.19 send a range as it is, without a strong tag. Koa 3.3.0 with koa-static 5.0.0 ignores
# `Range`.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 tornado==6.6.1 CherryPy==18.10.0 starlette==1.10.0 uvicorn==0.54.0
npm install --silent --no-audit --no-fund express@5.3.0 compression@1.8.2 fastify@5.12.8 @fastify/static@10.1.11 \
    @fastify/compress@9.2.0 hono@4.13.19 @hono/node-server@2.1.9 koa@3.3.0 koa-static@5.0.0 koa-compress@5.2.2
mkdir files
seq 1 7 70000 >files/a.txt
cat >serve.py <<'PYTHON'
"""A server of files that compresses, on a port: python serve.py NAME PORT."""
import sys

name, port = sys.argv[1], int(sys.argv[2])
if name == "aiohttp":
    from aiohttp import web

    async def file(request):
        response = web.FileResponse("files/a.txt")
        response.enable_compression()
        return response

    application = web.Application()
    application.router.add_get("/a.txt", file)
    web.run_app(application, host="127.0.0.1", port=port, print=None)
elif name == "tornado":
    import asyncio
    import tornado.web

    async def main():
        handler = (r"/(.*)", tornado.web.StaticFileHandler, {"path": "files"})
        tornado.web.Application([handler], compress_response=True).listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())
elif name == "cherrypy":
    from pathlib import Path
    import cherrypy

    cherrypy.config.update({"server.socket_host": "127.0.0.1", "server.socket_port": port})
    tools = {"tools.gzip.on": True, "tools.staticdir.on": True, "tools.staticdir.dir": str(Path("files").resolve())}
    cherrypy.quickstart(None, "/", {"/": tools})
else:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.staticfiles import StaticFiles

    application = Starlette()
    application.mount("/", StaticFiles(directory="files"))
    application.add_middleware(GZipMiddleware)
    uvicorn.run(application, host="127.0.0.1", port=port)
PYTHON
cat >serve.mjs <<'JAVASCRIPT'
// A server of files that compresses, on a port: node serve.mjs NAME PORT.
import { resolve } from "node:path";

const [name, port] = [process.argv[2], Number(process.argv[3])];
const host = "127.0.0.1";
if (name === "express") {
    const [{ default: express }, { default: compression }] = [await import("express"), await import("compression")];
    express().use(compression()).use(express.static("files")).listen(port, host);
} else if (name === "koa") {
    const [{ default: Koa }, { default: files }] = [await import("koa"), await import("koa-static")];
    const { default: compress } = await import("koa-compress");
    new Koa().use(compress()).use(files("files")).listen(port, host);
} else if (name === "fastify") {
    const { default: fastify } = await import("fastify");
    const application = fastify();
    await application.register(await import("@fastify/compress"));
    await application.register(await import("@fastify/static"), { root: resolve("files") });
    await application.listen({ port, host });
} else {
    const [{ Hono }, { compress }] = [await import("hono"), await import("hono/compress")];
    const { serve } = await import("@hono/node-server");
    const { serveStatic } = await import("@hono/node-server/serve-static");
    serve({ fetch: new Hono().use(compress()).use(serveStatic({ root: "files" })).fetch, port, hostname: host });
}
JAVASCRIPT
cat >ask.py <<'PYTHON'
import http.client
import sys
import time
import zlib

name, port = sys.argv[1], int(sys.argv[2])

def ask(**fields):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/a.txt", headers={"Accept-Encoding": "gzip"} | fields)
    response = connection.getresponse()
    return response, response.read()

for _ in range(600):
    try:
        whole, compressed = ask()
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
assert whole.headers["Content-Encoding"] == "gzip"
part, body = ask(Range="bytes=1000-2999")
size = "2,000 bytes" if len(body) == 2000 else "the whole file" if body == compressed else "less"
print(f"{name}: {part.status} {part.headers['Content-Encoding'] or 'plain'}, {part.headers['Content-Range']}, {size}")
tag = whole.headers["ETag"]
if tag is None or tag.startswith("W/"):  # a client resumes with a strong tag only (RFC 9110 section 13.1.5)
    print(f"{name}: no strong tag")
else:
    rest, body = ask(Range="bytes=1000-", **{"If-Range": tag})
    try:
        zlib.decompress(compressed[:1000] + body if rest.status == 206 else body, 31)
        print(f"{name}: resumed, {rest.status}")
    except zlib.error:
        print(f"{name}: resumed, {rest.status}, broken")
PYTHON
free_port() {
    bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
try() {
    local name=$1 port
    shift
    port=$(free_port)
    "$@" "$name" "$port" >"$name.log" 2>&1 &
    bin/python ask.py "$name" "$port" >>seen
    kill $!
    wait $! 2>/dev/null || true
}
for name in aiohttp tornado cherrypy starlette; do try $name bin/python serve.py; done
for name in express fastify hono koa; do try $name node serve.mjs; done
diff - seen <<'SEEN'
aiohttp: 206 gzip, bytes 1000-2999/58411, less
aiohttp: resumed, 206, broken
tornado: 206 gzip, bytes 1000-2999/58411, less
tornado: resumed, 206, broken
cherrypy: 206 gzip, bytes 1000-2999/58411, less
cherrypy: no strong tag
starlette: 206 plain, bytes 1000-2999/58411, 2,000 bytes
starlette: resumed, 206, broken
express: 206 gzip, bytes 1000-2999/58411, less
express: no strong tag
fastify: 206 plain, bytes 1000-2999/58411, 2,000 bytes
fastify: no strong tag
hono: 206 plain, bytes 1000-2999/58411, 2,000 bytes
hono: no strong tag
koa: 200 gzip, None, the whole file
koa: no strong tag
SEEN

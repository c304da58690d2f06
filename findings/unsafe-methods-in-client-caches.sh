#!/usr/bin/env bash
# A cache has to invalidate what it has of a URI when a POST, PUT, PATCH or DELETE to that URI succeeds (RFC 9111
# section 4.4): otherwise a client that has changed something reads the state before its own change, here for a minute.
#
# One would expect: the caches of HTTP clients do so, as those of browsers do.
# Seen: requests-cache 1.3.3 with `cache_control=True`, aiohttp-client-cache 0.15.0 likewise, got 14.6.6 and
# axios-cache-interceptor 1.12.3 keep the old response after each of them, and CacheControl 0.14.4 after POST. hishel
# 2.0.0 with `rfc=True`, undici 7.30.2 and make-fetch-happen 15.0.6 ask again. So a server whose clients read what they
# write lets its responses be revalidated (`no-cache`) rather than live for a while.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 requests-cache==1.3.3 CacheControl==0.14.4 aiohttp==3.14.5 \
    aiohttp-client-cache==0.15.0 httpx==0.28.1 hishel==2.0.0
npm install --silent --no-audit --no-fund got@14.6.6 axios@1.21.1 axios-cache-interceptor@1.12.3 undici@7.30.2 \
    make-fetch-happen@15.0.6
cat >ask.mjs <<'JAVASCRIPT'
import axios from "axios";
import { setupCache } from "axios-cache-interceptor";
import got from "got";
import makeFetchHappen from "make-fetch-happen";
import { Agent, fetch, interceptors } from "undici";

const base = process.argv[2];
const cache = new Map();
const cachingAxios = setupCache(axios.create());
const dispatcher = new Agent().compose(interceptors.cache());
const cachingFetch = makeFetchHappen.defaults({ cachePath: "make-fetch-happen" });
const clients = {
    got: async (method, url) => (await got(url, { method, cache })).body,
    "axios-cache-interceptor": async (method, url) => (await cachingAxios.request({ method, url })).data,
    undici: async (method, url) => (await fetch(url, { method, dispatcher })).text(),
    "make-fetch-happen": async (method, url) => (await cachingFetch(url, { method })).text(),
};
for (const [name, ask] of Object.entries(clients)) {
    for (const method of ["POST", "PUT", "PATCH", "DELETE"]) {
        for (const each of ["GET", "GET", method, "GET"]) await ask(each, `${base}/${name}/${method}`);
    }
}
JAVASCRIPT
bin/python - >seen <<'PYTHON'
import asyncio
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import hishel
import httpx
import requests
from aiohttp_client_cache import CacheBackend, CachedSession
from cachecontrol import CacheControl
from hishel.httpx import CacheTransport
from requests_cache import CachedSession as CachedRequests

METHODS = ("POST", "PUT", "PATCH", "DELETE")
received = {}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        received.setdefault(self.path, []).append(self.command)
        self.send_response(200)
        if self.command == "GET":
            self.send_header("Cache-Control", "max-age=60")
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"text")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
storage = hishel.SqliteStorage(database_path="hishel")
clients = {
    "requests-cache": CachedRequests(backend="memory", cache_control=True),
    "CacheControl": CacheControl(requests.Session()),
    "hishel": httpx.Client(transport=CacheTransport(httpx.HTTPTransport(), storage, rfc=True)),
}
for name, client in clients.items():
    for method in METHODS:
        for each in ("GET", "GET", method, "GET"):
            client.request(each, f"{base}/{name}/{method}")

async def by_aiohttp():
    async with CachedSession(cache=CacheBackend(cache_control=True)) as client:
        for method in METHODS:
            for each in ("GET", "GET", method, "GET"):
                async with client.request(each, f"{base}/aiohttp-client-cache/{method}") as response:
                    await response.read()

asyncio.run(by_aiohttp())
subprocess.run(["node", "ask.mjs", base], check=True)
kept = {}
for path, methods in received.items():
    _, name, method = path.split("/")
    assert methods in (["GET", method], ["GET", method, "GET"])  # the second GET is answered from the cache
    kept.setdefault(name, []).extend([method] if len(methods) == 2 else [])
for name, methods in kept.items():
    print(f"{name} keeps it after {', '.join(methods) or 'none'}")
PYTHON
diff - seen <<'SEEN'
requests-cache keeps it after POST, PUT, PATCH, DELETE
CacheControl keeps it after POST
hishel keeps it after none
aiohttp-client-cache keeps it after POST, PUT, PATCH, DELETE
got keeps it after POST, PUT, PATCH, DELETE
axios-cache-interceptor keeps it after POST, PUT, PATCH, DELETE
undici keeps it after none
make-fetch-happen keeps it after none
SEEN

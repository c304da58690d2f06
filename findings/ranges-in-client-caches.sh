#!/usr/bin/env bash
# A cache that does not implement `Range` may not store a response 206, and one that does may answer from it only the
# bytes that it holds (RFC 9111 sections 3 and 3.3).
#
# One would expect: a program that reads a file in slices gets each slice, with a cache in its client as without one.
# Seen with got 14.6.6 and its option `cache`: the first slice is the answer to every later request for the URL, also
# to one without `Range`. Its rules are those of http-cache-semantics 4.3.0, which refuses 206. But that package reads
# the member `status`, a response of Node has `statusCode` instead, and without `status` it assumes 200.
# make-fetch-happen 15.0.6 has the same rules, and each slice. requests-cache 1.3.3 with `cache_control=True`,
# aiohttp-client-cache 0.15.0 likewise, CacheControl 0.14.4, hishel 2.0.0 with `rfc=True`, axios-cache-interceptor
# 1.12.3 and undici 7.30.2 return each slice, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 requests-cache==1.3.3 CacheControl==0.14.4 aiohttp==3.14.5 \
    aiohttp-client-cache==0.15.0 httpx==0.28.1 hishel==2.0.0
npm install --silent --no-audit --no-fund got@14.6.6 cacheable-request@13.0.19 http-cache-semantics@4.3.0 axios@1.21.1 \
    axios-cache-interceptor@1.12.3 undici@7.30.2 make-fetch-happen@15.0.6
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
const clients = {
    got: async (url, headers) => (await got(url, { headers, cache })).body,
    "axios-cache-interceptor": async (url, headers) => (await cachingAxios.get(url, { headers })).data,
    undici: async (url, headers) => (await fetch(url, { headers, dispatcher })).text(),
    "make-fetch-happen": async (url, headers) => (await makeFetchHappen(url, { headers, cachePath: "cache" })).text(),
};
for (const [name, read] of Object.entries(clients)) {
    const bodies = [];
    for (const headers of [{ Range: "bytes=0-3" }, { Range: "bytes=4-7" }, {}]) {
        bodies.push(await read(`${base}/${name}`, headers));
    }
    console.log(name, bodies.join(" "));
}
process.exit();
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

FILE = b"zeroone_two_"
REQUESTS = ({"Range": "bytes=0-3"}, {"Range": "bytes=4-7"}, {})

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content = FILE
        if "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            content = FILE[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(FILE)}")
        else:
            self.send_response(200)
        self.send_header("Cache-Control", "max-age=60")
        self.send_header("ETag", '"one"')
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

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
    print(name, *(client.get(f"{base}/{name}", headers=fields).text for fields in REQUESTS))

async def by_aiohttp():
    async with CachedSession(cache=CacheBackend(cache_control=True)) as client:
        bodies = []
        for fields in REQUESTS:
            async with client.get(f"{base}/aiohttp-client-cache", headers=fields) as response:
                bodies.append(await response.text())
        print("aiohttp-client-cache", *bodies)

asyncio.run(by_aiohttp())
print(subprocess.run(["node", "ask.mjs", base], check=True, capture_output=True, text=True).stdout, end="")
PYTHON
diff - seen <<'SEEN'
requests-cache zero one_ zeroone_two_
CacheControl zero one_ zeroone_two_
hishel zero one_ zeroone_two_
aiohttp-client-cache zero one_ zeroone_two_
got zero zero zero
axios-cache-interceptor zero one_ zeroone_two_
undici zero one_ zeroone_two_
make-fetch-happen zero one_ zeroone_two_
SEEN

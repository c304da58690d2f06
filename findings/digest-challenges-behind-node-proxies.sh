#!/usr/bin/env bash
# A server that takes Basic and Digest sends two challenges, in any order, and the client chooses. They may stand in
# two fields `WWW-Authenticate` or in one, which means the same, and a proxy may join them (RFC 9110 sections 5.3 and
# 11.6.1).
#
# One would expect: a client that is given a name and a password for Digest finds its challenge in each of these.
# Seen: aiohttp 3.14.5 reads the first field alone, and gets 401 where that is Basic. npm's digest-fetch 3.1.1 answers
# with the parameters of Digest under the name of the first scheme, "Basic", hence 400 here. httpx 0.28.1 and npm's
# urllib 4.9.2 find Digest in the second field, but not in the second half of one field. That is what they get through
# npm's http-proxy 1.18.1, http-proxy-middleware 3.0.11 and http-proxy-3 1.23.3, as Node joins the fields of a
# response that it has received. So a program that works with a server gets 401 behind such a proxy.
# @fastify/http-proxy 11.6.3 keeps two fields. requests 2.34.2, niquests 3.21.2 and curl get 200 each time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 niquests==3.21.2 httpx==0.28.1 aiohttp==3.14.5
npm install --silent --no-audit --no-fund http-proxy@1.18.1 http-proxy-middleware@3.0.11 http-proxy-3@1.23.3 \
    express@5.3.0 fastify@5.12.8 @fastify/http-proxy@11.6.3 urllib@4.9.2 digest-fetch@3.1.1
cat >proxies.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import fastifyHttpProxy from "@fastify/http-proxy";
import express from "express";
import fastify from "fastify";
import httpProxy from "http-proxy";
import httpProxy3 from "http-proxy-3";
import { createProxyMiddleware } from "http-proxy-middleware";

const target = process.argv[2];
const handlers = { "http-proxy-middleware": express().use(createProxyMiddleware({ target })) };
for (const [name, { createProxyServer }] of [["http-proxy", httpProxy], ["http-proxy-3", httpProxy3]]) {
    const proxy = createProxyServer({ target });
    handlers[name] = (request, response) => proxy.web(request, response);
}
const ports = {};
for (const [name, handler] of Object.entries(handlers)) {
    const server = createServer(handler);
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    ports[name] = server.address().port;
}
const server = fastify();
await server.register(fastifyHttpProxy, { upstream: target });
await server.listen({ port: 0, host: "127.0.0.1" });
ports["@fastify/http-proxy"] = server.server.address().port;
console.log(JSON.stringify(ports));
JAVASCRIPT
cat >ask.mjs <<'JAVASCRIPT'
import DigestClient from "digest-fetch";
import { request } from "urllib";

const url = process.argv[2];
const fetched = await new DigestClient("user", "secret").fetch(url);
const requested = await request(url, { digestAuth: "user:secret" });
console.log(JSON.stringify({ "digest-fetch": fetched.status, urllib: requested.status }));
JAVASCRIPT
bin/python - >seen 2>log <<'PYTHON'
import asyncio
import hashlib
import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import aiohttp
import httpx
import niquests
import requests

CHALLENGES = ['Basic realm="test"', 'Digest realm="test", nonce="one", qop="auth", algorithm=MD5']

def md5(*parts):
    return hashlib.md5(":".join(parts).encode()).hexdigest()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        scheme, _, parameters = self.headers.get("Authorization", "").partition(" ")
        found = dict(re.findall(r'(\w+)="?([^",\s]*)', parameters))
        h1, h2 = md5("user", "test", "secret"), md5("GET", self.path)
        expected = md5(h1, "one", found.get("nc", ""), found.get("cnonce", ""), "auth", h2)
        good = scheme == "Digest" and found.get("response") == expected
        misnamed = scheme == "Basic" and "nonce" in found
        self.send_response(200 if good else 400 if misnamed else 401)
        if not good:
            for challenge in reversed(CHALLENGES) if self.path == "/digest-first" else CHALLENGES:
                self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

async def by_aiohttp(url):
    middlewares = (aiohttp.DigestAuthMiddleware("user", "secret"),)
    async with aiohttp.ClientSession(middlewares=middlewares) as client, client.get(url) as response:
        return response.status

def ask(name, url):
    found = json.loads(subprocess.run(["node", "ask.mjs", url], check=True, capture_output=True).stdout)
    found["requests"] = requests.get(url, auth=requests.auth.HTTPDigestAuth("user", "secret")).status_code
    found["niquests"] = niquests.get(url, auth=niquests.auth.HTTPDigestAuth("user", "secret")).status_code
    found["httpx"] = httpx.get(url, auth=httpx.DigestAuth("user", "secret")).status_code
    found["aiohttp"] = asyncio.run(by_aiohttp(url))
    command = ["curl", "-s", "-o", "answer", "-w", "%{http_code}", "--digest", "-u", "user:secret", url]
    found["curl"] = int(subprocess.run(command, check=True, capture_output=True).stdout)
    failed = sorted((client, status) for client, status in found.items() if status != 200)
    print(f"{name}:", ", ".join(f"{client} {status}" for client, status in failed) or "each client 200")

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
with subprocess.Popen(["node", "proxies.mjs", base], stdout=subprocess.PIPE) as proxies:
    try:
        ports = json.loads(proxies.stdout.readline())
        ask("Digest first", f"{base}/digest-first")
        ask("Basic first", f"{base}/basic-first")
        for name, port in sorted(ports.items()):
            ask(f"Basic first, {name}", f"http://127.0.0.1:{port}/basic-first")
    finally:
        proxies.terminate()
PYTHON
diff - seen <<'SEEN'
Digest first: each client 200
Basic first: aiohttp 401, digest-fetch 400
Basic first, @fastify/http-proxy: aiohttp 401, digest-fetch 400
Basic first, http-proxy: aiohttp 401, digest-fetch 400, httpx 401, urllib 401
Basic first, http-proxy-3: aiohttp 401, digest-fetch 400, httpx 401, urllib 401
Basic first, http-proxy-middleware: aiohttp 401, digest-fetch 400, httpx 401, urllib 401
SEEN

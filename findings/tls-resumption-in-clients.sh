#!/usr/bin/env bash
# A server of TLS 1.3 sends tickets, with which a client opens its next connection without a certificate and a signature
# (RFC 8446 sections 2.2 and 4.6.1). That is a cheaper handshake for both, and what a server keeps its ticket keys for.
#
# One would expect: a client that keeps connections in a pool uses the tickets when it connects again, as curl does;
# npm's undici documents that it stores up to 100 sessions.
# Seen with undici 7.30.2: its Agent, which `fetch` uses, forgets the sessions of an origin with its last connection to
# it, just before one would be of use. Client resumes, but holds sessions weakly, so that each garbage collection takes
# them. urllib, requests 2.34.2, niquests 3.21.2, httpx 0.28.1, aiohttp 3.14.5, tornado 6.6.1 and treq 26.7.0 never
# resume. Node's own `https` and curl do. So a server whose clients are such programs signs for each connection, tickets
# or not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q trustme==1.2.1 requests==2.34.2 niquests==3.21.2 httpx==0.28.1 aiohttp==3.14.5 tornado==6.6.1 \
    treq==26.7.0 Twisted==26.10.0 pyOpenSSL==26.4.0 service-identity==26.1.0
npm install --silent --no-audit --no-fund undici@7.30.2
cat >ask.mjs <<'JAVASCRIPT'
import { once } from "node:events";
import { readFileSync } from "node:fs";
import https from "node:https";
import { Agent, Client, fetch, request } from "undici";

const [name, url] = process.argv.slice(2);
const ca = readFileSync("ca.pem");
const alone = name === "client" || name === "collected";
const dispatcher = alone ? new Client(new URL(url).origin, { connect: { ca } }) : new Agent({ connect: { ca } });
for (let i = 0; i < 3; i++) {
    if (name === "https") {
        const [response] = await once(https.get(url, { ca }), "response");
        await once(response.resume(), "close");
        continue;
    }
    const gone = once(dispatcher, "disconnect");
    if (name === "fetch") await (await fetch(url, { dispatcher })).text();
    else await (await request(url, { dispatcher })).body.text();
    await gone;
    await new Promise((resolve) => setTimeout(resolve));
    if (name === "collected") globalThis.gc();
}
process.exit();
JAVASCRIPT
cat >ask_treq.py <<'PYTHON'
import sys
from pathlib import Path
import treq.client
from twisted.internet import defer, ssl, task
from twisted.web.client import Agent, BrowserLikePolicyForHTTPS, HTTPConnectionPool

async def ask(reactor):
    roots = ssl.trustRootFromCertificates([ssl.Certificate.loadPEM(Path("ca.pem").read_text())])
    agent = Agent(reactor, BrowserLikePolicyForHTTPS(roots), pool=HTTPConnectionPool(reactor))
    for _ in range(3):
        await treq.content(await treq.client.HTTPClient(agent).get(sys.argv[1]))

task.react(lambda reactor: defer.ensureDeferred(ask(reactor)))
PYTHON
bin/python - >seen <<'PYTHON'
import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
import aiohttp
import httpx
import niquests
import requests
import tornado.httpclient
import trustme

authority = trustme.CA()
authority.cert_pem.write_to_path("ca.pem")
server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
authority.issue_cert("localhost").configure_cert(server_context)
handshakes = []

def answer(connection):
    with server_context.wrap_socket(connection, server_side=True) as stream:
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += stream.recv(65536)
        handshakes.append(("resumed" if stream.session_reused else "full", stream.version()))
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        try:
            stream.unwrap()
        except OSError:
            pass  # the client has closed at once

def serve():
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=answer, args=[connection], daemon=True).start()

listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, daemon=True).start()
url = f"https://localhost:{listening.getsockname()[1]}/"
context = ssl.create_default_context(cafile="ca.pem")

def by_urllib():
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    for _ in range(3):
        opener.open(url).read()

def by_session(session):
    session.verify, session.trust_env = "ca.pem", False
    for _ in range(3):
        session.get(url)

def by_httpx():
    with httpx.Client(verify=context) as client:
        for _ in range(3):
            client.get(url)

async def by_aiohttp():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as client:
        for _ in range(3):
            async with client.get(url) as response:
                await response.read()

async def by_tornado():
    client = tornado.httpclient.AsyncHTTPClient()
    for _ in range(3):
        await client.fetch(url, ca_certs="ca.pem")

def by_node(name):
    subprocess.run(["node", "--expose-gc", "ask.mjs", name, url], check=True)

clients = {
    "urllib": by_urllib,
    "requests": lambda: by_session(requests.Session()),
    "niquests": lambda: by_session(niquests.Session()),
    "httpx": by_httpx,
    "aiohttp": lambda: asyncio.run(by_aiohttp()),
    "tornado": lambda: asyncio.run(by_tornado()),
    "treq": lambda: subprocess.run([sys.executable, "ask_treq.py", url], check=True),
    "undici Agent": lambda: by_node("agent"),
    "undici fetch": lambda: by_node("fetch"),
    "undici Client": lambda: by_node("client"),
    "undici Client, garbage collected": lambda: by_node("collected"),
    "Node https": lambda: by_node("https"),
    "curl": lambda: subprocess.run(["curl", "-s", "--cacert", "ca.pem", *["-o", "body", url] * 3], check=True),
}
for name, ask in clients.items():
    handshakes.clear()
    ask()
    assert {version for _, version in handshakes} == {"TLSv1.3"}
    print(f"{name}: {', '.join(kind for kind, _ in handshakes)}")
PYTHON
diff - seen <<'SEEN'
urllib: full, full, full
requests: full, full, full
niquests: full, full, full
httpx: full, full, full
aiohttp: full, full, full
tornado: full, full, full
treq: full, full, full
undici Agent: full, full, full
undici fetch: full, full, full
undici Client: full, resumed, resumed
undici Client, garbage collected: full, full, full
Node https: full, resumed, resumed
curl: full, resumed, resumed
SEEN

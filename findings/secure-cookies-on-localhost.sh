#!/usr/bin/env bash
# Browsers treat http://localhost as a secure context, and return cookies with `Secure` there, also those named `__Host-`.
#
# One would expect: a client for scripts does the same, or says that it drops the cookie.
# Seen: curl 7.88 and later returns them to http://localhost; requests 2.34.2 and httpx 0.28.1 (Python's `http.cookiejar`)
# store them and never return them, and drop one with `Domain=localhost`; aiohttp 3.14.5 drops the first two. So a sign-in
# that works in the browser and in curl seems to have no effect in a test of the same server on the same machine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 httpx==0.28.1 requests==2.34.2
bin/python - >seen <<'PYTHON'
import asyncio
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import aiohttp
import httpx
import requests

received = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        received.append(self.headers.get("Cookie", ""))
        self.send_response(204)
        for cookie in ("plain=1; Path=/", "secure=1; Path=/; Secure", "__Host-id=1; Path=/; Secure"):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Set-Cookie", "domain=1; Path=/; Domain=localhost")
        self.end_headers()

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://localhost:{server.server_port}/"

def report(name):
    print(name, sorted(cookie.partition("=")[0] for cookie in received[-1].split("; ")))

subprocess.run(["curl", "-s", "-4", "-c", "jar", "-b", "jar", url, url], check=True)
report("curl")
for name, client in (("requests", requests.Session()), ("httpx", httpx.Client())):
    client.get(url)
    client.get(url)
    report(name)

async def by_aiohttp():
    async with aiohttp.ClientSession() as client:
        for _ in range(2):
            async with client.get(url):
                pass

asyncio.run(by_aiohttp())
report("aiohttp")
PYTHON
diff - seen <<'SEEN'
curl ['__Host-id', 'domain', 'plain', 'secure']
requests ['plain']
httpx ['plain']
aiohttp ['domain', 'plain']
SEEN

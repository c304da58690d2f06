#!/usr/bin/env bash
# A client returns the value of a cookie as it was set (RFC 6265 section 5.4): a value may have `=`, as padded Base64 has,
# and browsers and most servers also take a comma or a space.
#
# One would expect: the server gets back what it has set.
# Seen with aiohttp 3.14.5: its client puts quotes around a value with `=`, and writes a comma as \054, as Python's
# `http.cookies` does. A server that compares the value, or that does not remove quotes, finds another one. httpx 0.28.1 and
# requests 2.34.2 return the value as it is. `CookieJar(quote_cookie=False)` helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiohttp==3.14.5 httpx==0.28.1 requests==2.34.2
bin/python - >seen <<'PYTHON'
import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import aiohttp
import httpx
import requests

received = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        received.append(self.headers.get("Cookie"))
        self.send_response(204)
        self.send_header("Set-Cookie", "token=QUJD/w==; Path=/")
        self.send_header("Set-Cookie", "list=a,b; Path=/")
        self.end_headers()

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"

def report(name):
    print(name, sorted(received[-1].split("; ")))

async def by_aiohttp(name, **options):
    jar = aiohttp.CookieJar(unsafe=True, **options)  # unsafe: also for addresses
    async with aiohttp.ClientSession(cookie_jar=jar) as client:
        for _ in range(2):
            async with client.get(url):
                pass
    report(name)

asyncio.run(by_aiohttp("aiohttp"))
asyncio.run(by_aiohttp("aiohttp without quote_cookie", quote_cookie=False))
for name, client in (("httpx", httpx.Client()), ("requests", requests.Session())):
    client.get(url)
    client.get(url)
    report(name)
PYTHON
diff - seen <<'SEEN'
aiohttp ['list="a\\054b"', 'token="QUJD/w=="']
aiohttp without quote_cookie ['list=a,b', 'token=QUJD/w==']
httpx ['list=a,b', 'token=QUJD/w==']
requests ['list=a,b', 'token=QUJD/w==']
SEEN

#!/usr/bin/env bash
# A server may send interim responses, 103 Early Hints for instance, before the final one, whatever the client has asked
# for, and a client has to skip those it does not know (RFC 9110 section 15.2).
#
# One would expect: every HTTP/1.1 client returns the final response.
# Seen with Python 3.11.7: its `http.client` skips 100 alone. Of a response with a 103 before it, urllib raises
# "HTTP Error 103", requests 2.34.2 and urllib3 2.8.0 return 103 with an empty body, and none raises a warning. httpx 0.28.1,
# aiohttp 3.14.5, tornado 6.6.1 and curl return the final response. So a proxy in front of a server that begins to send
# hints breaks scripts, not browsers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 urllib3==2.8.0 httpx==0.28.1 aiohttp==3.14.5 tornado==6.6.1
bin/python - >seen <<'PYTHON'
import asyncio
import subprocess
import threading
import urllib.error
import urllib.request
from socketserver import StreamRequestHandler, ThreadingTCPServer
import aiohttp
import httpx
import requests
import tornado.httpclient
import urllib3

class Handler(StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ntext")

server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/"

try:
    print("urllib", urllib.request.urlopen(url).status)
except urllib.error.HTTPError as error:
    print("urllib", error)
response = requests.get(url)
print("requests", response.status_code, response.content)
response = urllib3.request("GET", url)
print("urllib3", response.status, response.data)
response = httpx.get(url)
print("httpx", response.status_code, response.content)

async def by_aiohttp():
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        print("aiohttp", response.status, await response.read())

async def by_tornado():
    response = await tornado.httpclient.AsyncHTTPClient().fetch(url)
    print("tornado", response.code, response.body)

asyncio.run(by_aiohttp())
asyncio.run(by_tornado())
print("curl", subprocess.run(["curl", "-s", "-w", " %{http_code}", url], capture_output=True).stdout)
PYTHON
diff - seen <<'SEEN'
urllib HTTP Error 103: Early Hints
requests 103 b''
urllib3 103 b''
httpx 200 b'text'
aiohttp 200 b'text'
tornado 200 b'text'
curl b'text 200'
SEEN

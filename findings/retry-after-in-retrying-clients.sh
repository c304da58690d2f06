#!/usr/bin/env bash
# A server that answers 429 or 503 says in `Retry-After` how long a client should wait (RFC 9110 section 10.2.3).
#
# One would expect: a library whose purpose is to repeat requests waits that long.
# Seen: aiohttp-retry 2.9.1 and npm's ofetch 1.5.1 do not read the field; ofetch repeats a 503 and a 429 at once. requests
# 2.34.2 (urllib3's Retry), httpx-retries 0.6.0, got 14.6.6, ky 1.14.3, axios-retry 4.5.0 and undici's RetryAgent 7.30.2
# wait, also for a date. Here the field says 3 seconds, and each library's own delay is far shorter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 urllib3==2.8.0 httpx==0.28.1 httpx-retries==0.6.0 aiohttp==3.14.5 aiohttp-retry==2.9.1
npm install --silent --no-audit --no-fund got@14.6.6 ky@1.14.3 axios@1.21.1 axios-retry@4.5.0 ofetch@1.5.1 undici@7.30.2
cat >retry.mjs <<'JAVASCRIPT'
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";
import { ofetch } from "ofetch";
import { Agent, RetryAgent, request } from "undici";

const base = process.argv[2];
axiosRetry(axios, { retries: 2, retryCondition: () => true });
const dispatcher = new RetryAgent(new Agent());
for (const status of [503, 429]) {
    await Promise.all([
        got(`${base}/got/${status}`),
        ky(`${base}/ky/${status}`).text(),
        axios.get(`${base}/axios-retry/${status}`),
        ofetch(`${base}/ofetch/${status}`),
        request(`${base}/undici/${status}`, { dispatcher }),
    ]);
}
JAVASCRIPT
bin/python - >seen <<'PYTHON'
import asyncio
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import httpx
import requests
from aiohttp_retry import ExponentialRetry, RetryClient
from httpx_retries import Retry, RetryTransport
from requests.adapters import HTTPAdapter
from urllib3 import Retry as Urllib3Retry

requested = {}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        times = requested.setdefault(self.path, [])
        times.append(time.monotonic())
        self.send_response(int(self.path.split("/")[2]) if len(times) == 1 else 200)
        self.send_header("Retry-After", "3")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"

async def by_aiohttp_retry(status):
    options = ExponentialRetry(attempts=2, start_timeout=0.1, statuses={429})
    async with RetryClient(retry_options=options) as client, client.get(f"{base}/aiohttp-retry/{status}"):
        pass

session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=Urllib3Retry(2, status_forcelist=[429, 503], backoff_factor=0.1)))
client = httpx.Client(transport=RetryTransport(retry=Retry(total=2, backoff_factor=0.1)))
for status in (503, 429):
    session.get(f"{base}/requests/{status}")
    client.get(f"{base}/httpx-retries/{status}")
    asyncio.run(by_aiohttp_retry(status))
subprocess.run(["node", "retry.mjs", base], check=True)
for path, times in sorted(requested.items()):
    print(path, "waits" if times[1] - times[0] > 2.5 else "does not wait")
PYTHON
diff - seen <<'SEEN'
/aiohttp-retry/429 does not wait
/aiohttp-retry/503 does not wait
/axios-retry/429 waits
/axios-retry/503 waits
/got/429 waits
/got/503 waits
/httpx-retries/429 waits
/httpx-retries/503 waits
/ky/429 waits
/ky/503 waits
/ofetch/429 does not wait
/ofetch/503 does not wait
/requests/429 waits
/requests/503 waits
/undici/429 waits
/undici/503 waits
SEEN

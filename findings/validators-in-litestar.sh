#!/usr/bin/env bash
# A server that sends `ETag` and `Last-Modified` with a file answers 304 to a client that sends them back (RFC 9110 section
# 13.1, "SHOULD"), which is what they are for.
#
# One would expect: a framework that computes an entity tag for each static file compares it.
# Seen with Litestar 2.25.0: `create_static_files_router` sends both fields, and answers 200 with the whole file to
# `If-None-Match` and `If-Modified-Since`; browsers load each file again at each visit. The same request
# is 304 with Starlette 1.10.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q litestar==2.25.0 starlette==1.10.0 httpx==0.28.1
mkdir files
echo "text" >files/a.txt
bin/python - >seen 2>log <<'PYTHON'
import asyncio
import httpx
from litestar import Litestar
from litestar.static_files import create_static_files_router
from starlette.applications import Starlette
from starlette.staticfiles import StaticFiles

async def ask(name, application):
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        fields = (await client.get("/a.txt")).headers
        for sent, received in (("If-None-Match", "ETag"), ("If-Modified-Since", "Last-Modified")):
            response = await client.get("/a.txt", headers={sent: fields[received]})
            print(f"{sent}: {name} {response.status_code}, {len(response.content)} bytes")

starlette = Starlette()
starlette.mount("/", StaticFiles(directory="files"))
litestar = Litestar([create_static_files_router(path="/", directories=["files"])])
asyncio.run(ask("Litestar", litestar))
asyncio.run(ask("Starlette", starlette))
PYTHON
diff - seen <<'SEEN'
If-None-Match: Litestar 200, 5 bytes
If-Modified-Since: Litestar 200, 5 bytes
If-None-Match: Starlette 304, 0 bytes
If-Modified-Since: Starlette 304, 0 bytes
SEEN

#!/usr/bin/env bash
# In an event stream a line ends with LF, CR or CRLF, and with nothing else (HTML, section 9.2.6). JSON may hold U+2028,
# U+2029 and U+0085 unescaped, and most encoders leave them so.
#
# One would expect: a client of event streams splits lines at LF and CR, as browsers do.
# Seen with aiosseclient 0.1.8: it splits by `str.splitlines`, so that the rest of a text after U+2028 or U+0085 is a line
# of its own, which it drops with the log message "Invalid SSE line". A stream whose lines end with CR alone has no events
# for it, and the field `data` without a colon, which stands for an empty line, is dropped. httpx-sse 0.4.3 reads all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q aiosseclient==0.1.8 aiohttp==3.14.5 httpx==0.28.1 httpx-sse==0.4.3
bin/python - >seen 2>log <<'PYTHON'
import asyncio
import httpx
from aiohttp import web
from aiosseclient import aiosseclient
from httpx_sse import aconnect_sse

STREAMS = {
    "U+2028": "data: one\u2028two\n\n",
    "U+0085": "data: one\x85two\n\n",
    "CR": "data: one\rdata: two\r\r",
    "no colon": "data: one\ndata\ndata: two\n\n",
}

async def main():
    async def stream(request):
        return web.Response(text=STREAMS[request.query["name"]], content_type="text/event-stream")

    application = web.Application()
    application.router.add_get("/", stream)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/?name="

    async def read_by_aiosseclient(name, found):
        async for event in aiosseclient(url + name.replace("+", "%2B")):  # it reconnects at the end
            found.append(event.data)
            break

    for name in STREAMS:
        found = []
        try:
            await asyncio.wait_for(read_by_aiosseclient(name, found), 3)
        except TimeoutError:
            pass
        async with httpx.AsyncClient() as client, aconnect_sse(client, "GET", url + name.replace("+", "%2B")) as source:
            other = [event.data async for event in source.aiter_sse()]
        print(f"{name}: aiosseclient {ascii(found)}, httpx-sse {ascii(other)}")
    await runner.cleanup()

asyncio.run(main())
PYTHON
diff - seen <<'SEEN'
U+2028: aiosseclient ['one'], httpx-sse ['one\u2028two']
U+0085: aiosseclient ['one'], httpx-sse ['one\x85two']
CR: aiosseclient [], httpx-sse ['one\ntwo']
no colon: aiosseclient ['one\ntwo'], httpx-sse ['one\n\ntwo']
SEEN

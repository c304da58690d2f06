#!/usr/bin/env bash
# A client may offer another protocol in `Upgrade` with any request, and a server that does not want it answers as if the
# field were absent (RFC 9110 section 7.8).
#
# One would expect: the application gets the body.
# Seen with uvicorn 0.54.0 and httptools 0.9.0, its default where that is installed: the application gets an empty body,
# though Content-Length says otherwise, and uvicorn logs "Unsupported upgrade request." alone. With h11 0.16.0, and with
# hypercorn 0.18.0, daphne 4.2.3 and granian 2.8.9, the body arrives.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q uvicorn==0.54.0 httptools==0.9.0 h11==0.16.0 hypercorn==0.18.0 daphne==4.2.3 granian==2.8.9
export PATH="$folder/bin:$PATH"
cat >asgi.py <<'PYTHON'
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    body = b"%d bytes" % len(body)
    fields = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})
PYTHON
cat >ask.py <<'PYTHON'
import socket
import sys
import time

name, port = sys.argv[1], int(sys.argv[2])
for _ in range(600):
    try:
        client = socket.create_connection(("127.0.0.1", port))
        break
    except OSError:
        time.sleep(0.1)
client.settimeout(10)
request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
if "upgrade" in name:
    request += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
client.sendall(request + b"\r\nhello")
received = b""
while b" bytes" not in received and (piece := client.recv(65536)):
    received += piece
print(name + ":", received.rpartition(b"\r\n")[2].decode())
PYTHON
free_port() {
    python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
port=$(free_port)
try() {
    local name=$1
    shift
    "$@" >log 2>&1 &
    python ask.py "$name" "$port" >>seen
    kill $!
    wait $! 2>/dev/null || true
    port=$(free_port)
}
try "uvicorn with httptools" bin/uvicorn asgi:app --http httptools --port $port
try "uvicorn with httptools, upgrade" bin/uvicorn asgi:app --http httptools --port $port
try "uvicorn with h11, upgrade" bin/uvicorn asgi:app --http h11 --port $port
try "hypercorn, upgrade" bin/hypercorn asgi:app -b 127.0.0.1:$port
try "daphne, upgrade" bin/daphne asgi:app -p $port
try "granian, upgrade" bin/granian --interface asgi asgi:app --port $port
diff - seen <<'SEEN'
uvicorn with httptools: 5 bytes
uvicorn with httptools, upgrade: 0 bytes
uvicorn with h11, upgrade: 5 bytes
hypercorn, upgrade: 5 bytes
daphne, upgrade: 5 bytes
granian, upgrade: 5 bytes
SEEN

#!/usr/bin/env bash
# A server may use `Transfer-Encoding: chunked` only towards a client of HTTP/1.1: one of HTTP/1.0 cannot decode it (RFC
# 9112 section 6.1). Such clients are still in use: ApacheBench, health checks, proxies that are set to HTTP/1.0.
#
# One would expect: a response without a length ends with the connection there, and has no transfer coding.
# Seen with uvicorn 0.54.0 and httptools 0.9.0, its default where that is installed: it sends chunks, and the sizes of the
# chunks become part of the body. With h11 0.16.0 instead, and with hypercorn
# 0.18.0, daphne 4.2.3 and granian 2.8.9, the response has none.
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
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello ", "more_body": True})
    await send({"type": "http.response.body", "body": b"world"})
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
client.sendall(b"GET / HTTP/1.0\r\n\r\n")
received = b""
while piece := client.recv(65536):
    received += piece
head, _, body = received.partition(b"\r\n\r\n")
print(name, "chunked" if b"chunked" in head.lower() else "not chunked", body)
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
try "uvicorn with h11" bin/uvicorn asgi:app --http h11 --port $port
try hypercorn bin/hypercorn asgi:app -b 127.0.0.1:$port
try daphne bin/daphne asgi:app -p $port
try granian bin/granian --interface asgi asgi:app --port $port
diff - seen <<'SEEN'
uvicorn with httptools chunked b'6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n'
uvicorn with h11 not chunked b'hello world'
hypercorn not chunked b'hello world'
daphne not chunked b'hello world'
granian not chunked b'hello world'
SEEN

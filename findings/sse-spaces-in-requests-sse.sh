#!/usr/bin/env bash
# Of a line of an event stream, one space after the colon is no part of the value; others are. An event whose type is
# empty is a `message` (HTML, section 9.2.6).
#
# One would expect: text that begins with a space arrives with it, and an empty field `event` is as none.
# Seen with requests-sse 0.5.3: it removes all spaces at the start of the value (indented text, diffs and the tokens of
# language models lose theirs), and reports the type "" for an empty field `event`. httpx-sse 0.4.3 does neither.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests-sse==0.5.3 httpx==0.28.1 httpx-sse==0.4.3
bin/python - >seen <<'PYTHON'
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import httpx
from httpx_sse import connect_sse
from requests_sse import EventSource

STREAM = b"data:   indented\n\nevent:\ndata: text\n\n"

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(STREAM)

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/"
with EventSource(url, timeout=5) as source:
    found = []
    for event in source:
        found.append((event.type, event.data))
        if len(found) == 2:
            break
print("requests-sse", found)
with httpx.Client() as client, connect_sse(client, "GET", url) as source:
    print("httpx-sse", [(event.event, event.data) for event in source.iter_sse()])
PYTHON
diff - seen <<'SEEN'
requests-sse [('message', 'indented'), ('', 'text')]
httpx-sse [('message', '  indented'), ('message', 'text')]
SEEN

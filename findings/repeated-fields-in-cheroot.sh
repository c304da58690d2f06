#!/usr/bin/env bash
# A field that is a list may come on several lines, which stand for one line with commas (RFC 9110 sections 5.2 and 5.3):
# a client may send several of `Prefer` (RFC 7240 section 2).
#
# One would expect: an application of WSGI gets all members, joined with commas.
# Seen with cheroot 11.1.2: it joins the lines of a fixed set of names (`Accept`, `If-None-Match`), and keeps the last
# line alone of all others. waitress 3.0.2, gunicorn 27.0.1, Werkzeug 3.1.9 and Python's wsgiref join the lines of every field.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q cheroot==11.1.2 waitress==3.0.2 gunicorn==27.0.1 Werkzeug==3.1.9
export PATH="$folder/bin:$PATH"
cat >wsgi.py <<'PYTHON'
NAMES = ("Accept", "Prefer", "If-None-Match")

def app(environ, start_response):
    found = (environ.get("HTTP_" + name.upper().replace("-", "_")) for name in NAMES)
    text = "\n".join(f"{name} {value}" for name, value in zip(NAMES, found))
    start_response("200 OK", [("Content-Length", str(len(text)))])
    return [text.encode()]
PYTHON
cat >own.py <<'PYTHON'
"""A server of a library, on a port: python own.py NAME PORT."""
import sys
from wsgi import app

name, port = sys.argv[1], int(sys.argv[2])
if name == "cheroot":
    from cheroot.wsgi import Server

    Server(("127.0.0.1", port), app).start()
elif name == "werkzeug":
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", port, app)
else:
    from wsgiref.simple_server import make_server

    make_server("127.0.0.1", port, app).serve_forever()
PYTHON
cat >ask.py <<'PYTHON'
import http.client
import sys
import time
from wsgi import NAMES

VALUES = {"Accept": "text/%s", "Prefer": "%s=1", "If-None-Match": '"%s"'}
name, port = sys.argv[1], int(sys.argv[2])
for _ in range(600):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.connect()
        break
    except OSError:
        time.sleep(0.1)
connection.putrequest("GET", "/")
for field in NAMES:
    for member in ("a", "b"):
        connection.putheader(field, VALUES[field] % member)
connection.endheaders()
for line in connection.getresponse().read().decode().splitlines():
    print(f"{name}: {line}".replace(", ", ","))
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
for name in cheroot werkzeug wsgiref; do try $name bin/python own.py $name $port; done
try waitress bin/waitress-serve --listen=127.0.0.1:$port wsgi:app
try gunicorn bin/gunicorn wsgi:app -b 127.0.0.1:$port
diff - seen <<'SEEN'
cheroot: Accept text/a,text/b
cheroot: Prefer b=1
cheroot: If-None-Match "a","b"
werkzeug: Accept text/a,text/b
werkzeug: Prefer a=1,b=1
werkzeug: If-None-Match "a","b"
wsgiref: Accept text/a,text/b
wsgiref: Prefer a=1,b=1
wsgiref: If-None-Match "a","b"
waitress: Accept text/a,text/b
waitress: Prefer a=1,b=1
waitress: If-None-Match "a","b"
gunicorn: Accept text/a,text/b
gunicorn: Prefer a=1,b=1
gunicorn: If-None-Match "a","b"
SEEN

#!/usr/bin/env bash
# An entity tag stands between quotes: ETag: "x" (RFC 9110 section 8.8.3). `If-None-Match` compares it weakly, so that
# W/"x", which a proxy may have made of it, matches, too; and where this field is sent, `If-Modified-Since` is ignored
# (sections 13.1.2 and 13.1.3), for a new version may have an older date (a restored file, an unpacked archive).
#
# One would expect: `static_file` of bottle sends such a tag, and answers 200 to the tag of another version.
# Seen with bottle 0.13.4: the tag has no quotes, and does not match with W/ before it. For the tag of another version it
# still compares the date, and answers 304: the client keeps the old version.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q bottle==0.13.4 Werkzeug==3.1.9
mkdir files
echo "version two" >files/a.txt
bin/python - >seen <<'PYTHON'
import bottle
from werkzeug.test import Client

application = bottle.Bottle()
application.route("/")(lambda: bottle.static_file("a.txt", root="files"))
client = Client(application)
response = client.get("/")
tag = response.headers["ETag"]
date = response.headers["Last-Modified"]
print("the tag begins with a quote:", tag.startswith('"'))
for name, fields in {
    "its tag": {"If-None-Match": tag},
    "its tag, weak": {"If-None-Match": f"W/{tag}"},
    "another tag": {"If-None-Match": '"version-one"'},
    "another tag and its date": {"If-None-Match": '"version-one"', "If-Modified-Since": date},
}.items():
    print(f"{name}: {client.get('/', headers=fields).status_code}")
PYTHON
diff - seen <<'SEEN'
the tag begins with a quote: False
its tag: 304
its tag, weak: 200
another tag: 200
another tag and its date: 304
SEEN

#!/usr/bin/env bash
# In a field `Link`, names of parameters and relation types are compared without case, a parameter `rel` may hold several
# relation types, and the URL between < and > may have a semicolon (RFC 8288 sections 3 and 3.3, RFC 3986).
#
# One would expect: `response.links["next"]` finds the next page in all of these.
# Seen with requests 2.34.2 and httpx 0.28.1, which share the code: it finds none of them. A page that is the next and the
# last one has the key "next last", with `REL` the key is the URL, and a URL with `;` is cut there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 httpx==0.28.1
bin/python - >seen <<'PYTHON'
import httpx
import requests

for field in (
    '<https://a.example/2>; rel="next"',
    '<https://a.example/2>; rel="next last"',
    '<https://a.example/2>; REL="next"',
    '<https://a.example/2>; rel="Next"',
    '<https://a.example/list;page=2>; rel="next"',
):
    by_requests = requests.Response()
    by_requests.headers["Link"] = field
    by_httpx = httpx.Response(200, headers={"Link": field})
    print(field, {key: link["url"] for key, link in by_requests.links.items()}, end=" ")
    print("the same by httpx" if by_httpx.links == by_requests.links else by_httpx.links)
PYTHON
diff - seen <<'SEEN'
<https://a.example/2>; rel="next" {'next': 'https://a.example/2'} the same by httpx
<https://a.example/2>; rel="next last" {'next last': 'https://a.example/2'} the same by httpx
<https://a.example/2>; REL="next" {'https://a.example/2': 'https://a.example/2'} the same by httpx
<https://a.example/2>; rel="Next" {'Next': 'https://a.example/2'} the same by httpx
<https://a.example/list;page=2>; rel="next" {'next': 'https://a.example/list'} the same by httpx
SEEN

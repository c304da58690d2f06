#!/usr/bin/env bash
# An event ends with an empty line. Where a stream ends before it, the event is incomplete, and is discarded (HTML,
# section 9.2.6): the connection was cut, and the next one sends the event again.
#
# One would expect: after a cut connection a client has complete events only.
# Seen with sseclient-py 1.9.0: it delivers what has arrived of the event, here the first of two lines of data. Of an
# event whose `id` line came before the cut it also reports the id, so that a client that resumes by it loses the rest.
# httpx-sse 0.4.3 discards the event.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q sseclient-py==1.9.0 httpx==0.28.1 httpx-sse==0.4.3
bin/python - >seen <<'PYTHON'
import httpx
from httpx_sse import EventSource
from sseclient import SSEClient

STREAM = b"id: 1\ndata: whole\n\nid: 2\ndata: first line\n"

print("sseclient-py", [(event.id, event.data) for event in SSEClient([STREAM]).events()])
response = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=STREAM)
print("httpx-sse", [(event.id, event.data) for event in EventSource(response).iter_sse()])
PYTHON
diff - seen <<'SEEN'
sseclient-py [('1', 'whole'), ('2', 'first line')]
httpx-sse [('1', 'whole')]
SEEN

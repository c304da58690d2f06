#!/usr/bin/env bash
# In an event stream a line that begins with a colon is a comment, which servers send to keep a connection open. An event
# whose data is empty, because it has no field `data`, is not dispatched; a line `data` without a colon adds an empty line
# of data (HTML, section 9.2.6).
#
# One would expect: a client calls its handler for events with data only.
# Seen with @microsoft/fetch-event-source 2.0.1: it calls `onmessage` with empty data for each comment and for each block
# with `retry` or `id` alone, so that a handler with JSON.parse throws at each keep-alive. A line `data` without a
# colon is lost. undici's EventSource 7.30.2 does neither.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund @microsoft/fetch-event-source@2.0.1 undici@7.30.2
cat >read.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { fetchEventSource } from "@microsoft/fetch-event-source";
import { EventSource } from "undici";

const streams = {
    comment: ": keep-alive\n\ndata: text\n\n",
    retry: "retry: 5000\n\ndata: text\n\n",
    "no colon": "data: one\ndata\ndata: two\n\n",
};
const server = createServer((request, response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    response.end(streams[decodeURIComponent(request.url.slice(1))]);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const signals = { addEventListener() {}, removeEventListener() {} };
Object.assign(globalThis, { window: globalThis, document: { hidden: false, ...signals } }); // of a browser, all it uses
for (const name of Object.keys(streams)) {
    const url = `http://127.0.0.1:${server.address().port}/${name}`;
    const found = [];
    await fetchEventSource(url, { openWhenHidden: true, onmessage: (event) => found.push(event.data) });
    console.log(`${name}: fetch-event-source ${JSON.stringify(found)}`);
    const others = [];
    const source = new EventSource(url);
    source.onmessage = (event) => others.push(event.data);
    await new Promise((resolve) => (source.onerror = resolve)); // the end of the stream
    source.close();
    console.log(`${name}: undici ${JSON.stringify(others)}`);
}
process.exit();
JAVASCRIPT
node read.mjs >seen 2>log
diff - seen <<'SEEN'
comment: fetch-event-source ["","text"]
comment: undici ["text"]
retry: fetch-event-source ["","text"]
retry: undici ["text"]
no colon: fetch-event-source ["one\ntwo"]
no colon: undici ["one\n\ntwo"]
SEEN

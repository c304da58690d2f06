#!/usr/bin/env bash
# A line of an event stream ends with LF, CR or CRLF (HTML, section 9.2.5), so that a stream may use CR alone, and an empty
# line, which ends an event, is complete with its CR.
#
# One would expect: an event is delivered as soon as its empty line has arrived.
# Seen with eventsource-parser 3.1.1, and npm's eventsource 4.1.1, which is built on it: with CR alone, each event waits
# until the next one begins, as the LF of a CRLF might follow; the last one never arrives. undici's EventSource 7.30.2
# delivers each at once, and skips an LF that comes later.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund eventsource-parser@3.1.1 eventsource@4.1.1 undici@7.30.2
cat >read.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { EventSource as FromEventsource } from "eventsource";
import { createParser } from "eventsource-parser";
import { EventSource as FromUndici } from "undici";

const wait = () => new Promise((resolve) => setTimeout(resolve, 500));
const ends = { LF: "\n", CRLF: "\r\n", CR: "\r" };
const server = createServer(async (request, response) => {
    const end = ends[request.url.slice(1)];
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    for (const data of ["one", "two"]) {
        response.write(`data: ${data}${end}${end}`);
        await wait();
    }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
for (const [name, end] of Object.entries(ends)) {
    const found = [];
    const parser = createParser({ onEvent: (event) => found.push(event.data) });
    parser.feed(`data: one${end}${end}`);
    console.log(`${name}: eventsource-parser ${JSON.stringify(found)} after the first of two events`);
    for (const [library, Source] of [["eventsource", FromEventsource], ["undici", FromUndici]]) {
        const received = [];
        const source = new Source(`http://127.0.0.1:${server.address().port}/${name}`);
        source.onmessage = (event) => received.push(event.data);
        for (let i = 0; i < 3; i++) await wait();
        source.close();
        console.log(`${name}: ${library} ${JSON.stringify(received)} after both`);
    }
}
process.exit();
JAVASCRIPT
node read.mjs >seen 2>log
diff - seen <<'SEEN'
LF: eventsource-parser ["one"] after the first of two events
LF: eventsource ["one","two"] after both
LF: undici ["one","two"] after both
CRLF: eventsource-parser ["one"] after the first of two events
CRLF: eventsource ["one","two"] after both
CRLF: undici ["one","two"] after both
CR: eventsource-parser [] after the first of two events
CR: eventsource ["one"] after both
CR: undici ["one","two"] after both
SEEN

#!/usr/bin/env bash
# The property `lastEventId` of an event is the last id of the stream: an event without a field `id` has the id of the
# event before it (HTML, section 9.2.6). Servers may so send one id for a group of
# events.
#
# One would expect: a program that stores `event.lastEventId` of each event can resume from it.
# Seen with npm's eventsource 4.1.1: `lastEventId` is empty for an event without `id`, though the package itself
# reconnects with the id that it has stored. undici's EventSource 7.30.2 reports the id.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund eventsource@4.1.1 undici@7.30.2
cat >read.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { EventSource as FromEventsource } from "eventsource";
import { EventSource as FromUndici } from "undici";

const ids = [];
const server = createServer((request, response) => {
    ids.push(request.headers["last-event-id"]);
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    response.end("retry: 100\nid: 7\ndata: one\n\ndata: two\n\n");
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const classes = { eventsource: FromEventsource, undici: FromUndici };
for (const [name, Source] of Object.entries(classes)) {
    const source = new Source(`http://127.0.0.1:${server.address().port}/`);
    const found = [];
    ids.length = 0;
    await new Promise((resolve) => {
        source.onmessage = (event) => found.push([event.data, event.lastEventId]) === 3 && resolve();
    });
    source.close();
    console.log(name, JSON.stringify(found.slice(0, 2)), "reconnects with", ids[1]);
}
process.exit();
JAVASCRIPT
node read.mjs >seen 2>log
diff - seen <<'SEEN'
eventsource [["one","7"],["two",""]] reconnects with 7
undici [["one","7"],["two","7"]] reconnects with 7
SEEN

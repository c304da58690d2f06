#!/usr/bin/env bash
# The `uri` of Digest is the target of the request as it was sent, with its query, and a server answers 400 where it
# names another resource (RFC 7616 sections 3.4 and 3.4.6). npm's passport-http 0.3.0 compares both as text.
#
# One would expect: a client takes the `uri` from the request that it sends.
# Seen: requests 2.34.2 and niquests 3.21.2 leave out what follows a semicolon in the last segment of the path, as
# their `urlparse` calls that the parameters; npm's @mhoc/axios-digest-auth 0.8.0 leaves out the query, also where it
# comes from axios's own `params`; and npm's digest-fetch 3.1.1 takes the text of the URL, with its fragment, with a
# `?` that has nothing after it, and with an apostrophe that `fetch` then sends as %27. Each gets 400. httpx 0.28.1,
# aiohttp 3.14.5, npm's urllib 4.9.2 and curl get 200.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests==2.34.2 niquests==3.21.2 httpx==0.28.1 aiohttp==3.14.5
npm install --silent --no-audit --no-fund express@5.3.0 passport@0.7.0 passport-http@0.3.0 axios@1.21.1 \
    @mhoc/axios-digest-auth@0.8.0 digest-fetch@3.1.1 urllib@4.9.2
cat >serve.mjs <<'JAVASCRIPT'
import express from "express";
import passport from "passport";
import { DigestStrategy } from "passport-http";

passport.use(new DigestStrategy({ qop: "auth" }, (name, done) => done(null, { name }, "secret")));
const application = express();
application.use(passport.authenticate("digest", { session: false }), (request, response) => response.send("text"));
const server = application.listen(0, "127.0.0.1", () => console.log(server.address().port));
JAVASCRIPT
cat >ask.mjs <<'JAVASCRIPT'
import digestAuth from "@mhoc/axios-digest-auth";
import DigestClient from "digest-fetch";
import { request } from "urllib";

const url = process.argv[2];
const [path, query] = url.split("?");
const params = new URLSearchParams(query);
const byAxios = (options) => {
    const client = new digestAuth.default({ username: "user", password: "secret" });
    const answer = client.request({ method: "GET", ...options });
    return answer.then(({ status }) => status, ({ response }) => response.status);
};
const found = {
    "axios-digest-auth": await byAxios({ url }),
    "digest-fetch": (await new DigestClient("user", "secret").fetch(url)).status,
    urllib: (await request(url, { digestAuth: "user:secret" })).status,
};
if (params.size) found["axios-digest-auth with params"] = await byAxios({ url: path, params });
console.log(JSON.stringify(found));
JAVASCRIPT
bin/python - >seen 2>log <<'PYTHON'
import asyncio
import json
import subprocess
import aiohttp
import httpx
import niquests
import requests

async def by_aiohttp(url):
    middlewares = (aiohttp.DigestAuthMiddleware("user", "secret"),)
    async with aiohttp.ClientSession(middlewares=middlewares) as client, client.get(url) as response:
        return response.status

with subprocess.Popen(["node", "serve.mjs"], stdout=subprocess.PIPE, text=True) as server:
    try:
        port = int(server.stdout.readline())
        for target in ("/a", "/a;b=c", "/a?b=c", "/a?b=c#d", "/a?", "/a?b='c'"):
            url = f"http://127.0.0.1:{port}{target}"
            found = json.loads(subprocess.run(["node", "ask.mjs", url], check=True, capture_output=True).stdout)
            found["requests"] = requests.get(url, auth=requests.auth.HTTPDigestAuth("user", "secret")).status_code
            found["niquests"] = niquests.get(url, auth=niquests.auth.HTTPDigestAuth("user", "secret")).status_code
            found["httpx"] = httpx.get(url, auth=httpx.DigestAuth("user", "secret")).status_code
            found["aiohttp"] = asyncio.run(by_aiohttp(url))
            command = ["curl", "-s", "-o", "answer", "-w", "%{http_code}", "--digest", "-u", "user:secret", url]
            found["curl"] = int(subprocess.run(command, check=True, capture_output=True).stdout)
            failed = sorted((client, status) for client, status in found.items() if status != 200)
            print(f"{target}:", ", ".join(f"{client} {status}" for client, status in failed) or "each client 200")
    finally:
        server.terminate()
PYTHON
diff - seen <<'SEEN'
/a: each client 200
/a;b=c: niquests 400, requests 400
/a?b=c: axios-digest-auth 400, axios-digest-auth with params 400
/a?b=c#d: axios-digest-auth 400, axios-digest-auth with params 400, digest-fetch 400
/a?: axios-digest-auth 400, digest-fetch 400
/a?b='c': axios-digest-auth 400, axios-digest-auth with params 400, digest-fetch 400
SEEN

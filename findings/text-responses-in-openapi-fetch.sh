#!/usr/bin/env bash
# An API may answer one operation with JSON and another with text, and says so in its description and in Content-Type.
#
# One would expect: a typed client reads each response by its Content-Type.
# Seen with openapi-fetch 0.17.0: it parses each success as JSON unless the call says `parseAs: "text"`, and throws a
# SyntaxError for text/plain. A failure, 404 for instance, is text without that. The type of the result does not tell:
# openapi-typescript 7.13.0 gives `string` for the operation, so that the program compiles and fails.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund openapi-fetch@0.17.0 openapi-typescript@7.13.0 typescript@5.9.3
cat >api.json <<'JSON'
{
    "openapi": "3.1.0",
    "info": { "title": "Example", "version": "1" },
    "paths": {
        "/text": {
            "get": {
                "responses": {
                    "200": { "description": "ok", "content": { "text/plain": { "schema": { "type": "string" } } } }
                }
            }
        }
    }
}
JSON
cat >use.ts <<'TYPESCRIPT'
import createClient from "openapi-fetch";
import type { paths } from "./api";

export async function read(url: string): Promise<string | undefined> {
    const { data } = await createClient<paths>({ baseUrl: url }).GET("/text");
    return data;
}
TYPESCRIPT
cat >use.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import createClient from "openapi-fetch";

const server = createServer((request, response) => {
    response.writeHead(request.url === "/text" ? 200 : 404, { "Content-Type": "text/plain" });
    response.end("some text");
});
server.listen(0, "127.0.0.1", async () => {
    const client = createClient({ baseUrl: `http://127.0.0.1:${server.address().port}` });
    await client.GET("/text").catch((error) => console.log(error.name));
    console.log((await client.GET("/text", { parseAs: "text" })).data);
    console.log((await client.GET("/missing")).error);
    server.close();
});
JAVASCRIPT
npx openapi-typescript api.json -o api.ts >/dev/null 2>&1
npx tsc --noEmit --strict --module esnext --moduleResolution bundler --skipLibCheck --lib es2022,dom use.ts
echo "the program compiles" >seen
node use.mjs >>seen
diff - seen <<'SEEN'
the program compiles
SyntaxError
some text
some text
SEEN

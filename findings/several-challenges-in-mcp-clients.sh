#!/usr/bin/env bash
# A server that takes several schemes sends a challenge for each, in any order, in one field `WWW-Authenticate` or in
# several (RFC 9110 section 11.6.1). That of Bearer names the metadata of the resource in `resource_metadata` (RFC
# 9728 section 5.1), and these name the authorization server.
#
# One would expect: a client of the Model Context Protocol takes `resource_metadata` from the challenge of Bearer.
# Seen with npm's @modelcontextprotocol/sdk 1.32.2 and its successor @modelcontextprotocol/client 2.4.0: they look at
# the first word of the field alone. With Basic before Bearer they do not ask for the metadata that the challenge
# names, take the resource itself for the authorization server, and send the user to a page /authorize there. Python's
# mcp 2.3.0 finds the parameter in any position.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q mcp==2.3.0 httpx2==2.16.2
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0
cat >ask.mjs <<'JAVASCRIPT'
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { Client as SdkClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as SdkTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, name] = process.argv.slice(2);
const authProvider = {
    redirectUrl: "http://localhost/callback",
    clientMetadata: { client_name: "test", redirect_uris: ["http://localhost/callback"] },
    clientInformation: () => ({ client_id: "test" }),
    tokens: () => undefined,
    saveCodeVerifier: () => {},
    redirectToAuthorization: (page) => console.log(page.pathname),
};
const information = { name: "test", version: "1" };
const isSdk = name.endsWith("sdk");
const client = isSdk ? new SdkClient(information) : new Client(information);
const transport = new (isSdk ? SdkTransport : StreamableHTTPClientTransport)(new URL(url), { authProvider });
await client.connect(transport).catch(() => {});
process.exit();
JAVASCRIPT
bin/python - >seen <<'PYTHON'
import asyncio
import json
import logging
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

ORDERS = ("bearer-basic", "basic-bearer", "basic-bearer-one-line")
CALLBACK = "http://localhost/callback"

class Handler(BaseHTTPRequestHandler):
    """/ORDER is a resource, its challenges in this order; /ORDER/metadata is its metadata, /issuer the issuer."""
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        order, _, rest = self.path.removeprefix("/").partition("/")
        challenges = ['Basic realm="a"', f'Bearer resource_metadata="{base}/{order}/metadata"']
        if order.startswith("bearer"):
            challenges.reverse()
        if order.endswith("one-line"):
            challenges = [", ".join(challenges)]
        content = b""
        if self.path == "/.well-known/oauth-authorization-server/issuer":
            document = {"issuer": f"{base}/issuer", "response_types_supported": ["code"],
                        "authorization_endpoint": f"{base}/issuer/authorize", "token_endpoint": f"{base}/issuer/token",
                        "code_challenge_methods_supported": ["S256"]}
            content = json.dumps(document).encode()
        elif rest == "metadata":
            document = {"resource": f"{base}/{order}", "authorization_servers": [f"{base}/issuer"]}
            content = json.dumps(document).encode()
        self.send_response(200 if content else 401 if order in ORDERS else 404)
        if order in ORDERS and not content:
            for challenge in challenges:
                self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass

class Storage:
    async def get_tokens(self):
        return None

    async def get_client_info(self):
        return OAuthClientInformationFull(client_id="test", redirect_uris=[CALLBACK])

class Redirected(Exception):
    pass

async def redirect(page):
    raise Redirected(urlsplit(page).path)

async def by_python(url):
    metadata = OAuthClientMetadata(client_name="test", redirect_uris=[CALLBACK])
    provider = OAuthClientProvider(url, metadata, Storage(), redirect, redirect)
    async with httpx2.AsyncClient(auth=provider) as client:
        try:
            await client.post(url)
        except Redirected as page:
            return str(page)

logging.disable()  # the client logs the end of the flow in `redirect` as an error
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
for order in ORDERS:
    url = f"{base}/{order}"
    print(order, "mcp", asyncio.run(by_python(url)))
    for name in ("@modelcontextprotocol/sdk", "@modelcontextprotocol/client"):
        result = subprocess.run(["node", "ask.mjs", url, name], check=True, capture_output=True, text=True)
        print(order, name, result.stdout.strip())
PYTHON
diff - seen <<'SEEN'
bearer-basic mcp /issuer/authorize
bearer-basic @modelcontextprotocol/sdk /issuer/authorize
bearer-basic @modelcontextprotocol/client /issuer/authorize
basic-bearer mcp /issuer/authorize
basic-bearer @modelcontextprotocol/sdk /authorize
basic-bearer @modelcontextprotocol/client /authorize
basic-bearer-one-line mcp /issuer/authorize
basic-bearer-one-line @modelcontextprotocol/sdk /authorize
basic-bearer-one-line @modelcontextprotocol/client /authorize
SEEN

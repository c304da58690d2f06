#!/usr/bin/env bash
# A resource server that wants a nonce in the proof of a DPoP token answers 401 with `DPoP error="use_dpop_nonce"` and
# a field `DPoP-Nonce`, and the client repeats the request with it (RFC 9449 section 9). A server that takes Bearer,
# too, sends both challenges, and the example of section 7.2 has Bearer first. An expired token is
# `error="invalid_token"`.
#
# One would expect: a client looks for that error in the challenge of DPoP, wherever it stands.
# Seen with requests-oauth2client 1.8.0: it looks whether the field begins with "DPoP", and not at the error. With
# Bearer first it does not repeat the request, and the program gets 401 each time; npm's oauth4webapi 3.8.8 finds the
# error in each order. Where DPoP is first or alone, each 401 counts as a demand for a nonce: a token that npm's
# express-oauth2-jwt-bearer 1.10.0 finds expired raises MissingDPoPNonce, and a program that gets a new token after a
# 401 never sees the 401.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q requests-oauth2client==1.8.0 requests==2.34.2 joserfc==1.8.0
npm install --silent --no-audit --no-fund express@5.3.0 express-oauth2-jwt-bearer@1.10.0 oauth4webapi@3.8.8
cat >serve.mjs <<'JAVASCRIPT'
import express from "express";
import { auth } from "express-oauth2-jwt-bearer";

const options = { issuer: "https://issuer.example/", audience: "https://api.example/", tokenSigningAlg: "HS256" };
options.secret = process.argv[2];
const application = express();
for (const required of [true, false]) {
    application.use(`/${required ? "dpop" : "both"}`, auth({ ...options, dpop: { enabled: true, required } }));
}
application.use((request, response) => response.send("text"));
application.use((error, request, response, next) => response.set(error.headers).status(error.status).end());
const server = application.listen(0, "127.0.0.1", () => console.log(server.address().port));
JAVASCRIPT
cat >ask.mjs <<'JAVASCRIPT'
import * as oauth from "oauth4webapi";

const keys = await oauth.generateKeyPair("ES256");
const options = { DPoP: oauth.DPoP({ client_id: "test" }, keys), [oauth.allowInsecureRequests]: true };
const ask = () => oauth.protectedResourceRequest("token", "GET", new URL(process.argv[2]), undefined, null, options);
const response = await ask().catch((error) => (oauth.isDPoPNonceError(error) ? ask() : error.response));
console.log(response.status);
JAVASCRIPT
bin/python - >seen <<'PYTHON'
import base64
import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import requests
from joserfc import jwt
from joserfc.jwk import OctKey
from requests_oauth2client import DPoPKey, DPoPToken

SECRET = "0123456789" * 4
DPOP = 'DPoP error="use_dpop_nonce", algs="ES256"'
CHALLENGES = {
    "/dpop": [DPOP],
    "/dpop-bearer": [DPOP, "Bearer"],
    "/bearer-dpop": ["Bearer", DPOP],
    "/bearer-dpop-one-line": [f"Bearer, {DPOP}"],
}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        claims = self.headers["DPoP"].split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(claims + "==")).get("nonce") == "one"
        self.send_response(200 if found else 401)
        if not found:
            self.send_header("DPoP-Nonce", "one")
            for challenge in CHALLENGES[self.path]:
                self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

def ask(url, token, key):
    try:
        return requests.get(url, auth=DPoPToken(access_token=token, _dpop_key=key)).status_code
    except Exception as error:
        return type(error).__name__

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for path in CHALLENGES:
    url = f"http://127.0.0.1:{server.server_port}{path}"
    result = subprocess.run(["node", "ask.mjs", url], check=True, capture_output=True, text=True)
    print(f"nonce, {path}: requests-oauth2client", ask(url, "token", DPoPKey.generate(alg="ES256")))
    print(f"nonce, {path}: oauth4webapi", result.stdout.strip())

key = DPoPKey.generate(alg="ES256")
with subprocess.Popen(["node", "serve.mjs", SECRET], stdout=subprocess.PIPE, text=True) as express:
    try:
        port = int(express.stdout.readline())
        for name, lifetime in (("valid", 600), ("expired", -60)):
            now = int(time.time())
            claims = {"iss": "https://issuer.example/", "aud": "https://api.example/", "sub": "a",
                      "iat": now - 600, "exp": now + lifetime, "cnf": {"jkt": key.dpop_jkt}}
            token = jwt.encode({"alg": "HS256", "typ": "at+jwt"}, claims, OctKey.import_key(SECRET))
            for path in ("/dpop", "/both"):
                print(f"{name} token, {path}: requests-oauth2client", ask(f"http://127.0.0.1:{port}{path}", token, key))
    finally:
        express.terminate()
PYTHON
diff - seen <<'SEEN'
nonce, /dpop: requests-oauth2client 200
nonce, /dpop: oauth4webapi 200
nonce, /dpop-bearer: requests-oauth2client 200
nonce, /dpop-bearer: oauth4webapi 200
nonce, /bearer-dpop: requests-oauth2client 401
nonce, /bearer-dpop: oauth4webapi 200
nonce, /bearer-dpop-one-line: requests-oauth2client 401
nonce, /bearer-dpop-one-line: oauth4webapi 200
valid token, /dpop: requests-oauth2client 200
valid token, /both: requests-oauth2client 200
expired token, /dpop: requests-oauth2client MissingDPoPNonce
expired token, /both: requests-oauth2client 401
SEEN

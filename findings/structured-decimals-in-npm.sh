#!/usr/bin/env bash
# In structured fields 1.0 is a Decimal and 1 an Integer, two types, and a Decimal is written with a fraction, be it
# zero (RFC 9651 sections 3.3.1, 3.3.2 and 4.1.5). HTTP message signatures rely on it: a member of a Dictionary that is
# signed with the parameter `key`, or a field with `sf`, is parsed and written again first (RFC 9421 sections 2.1.1 and
# 2.1.2).
#
# One would expect: a library writes what it has parsed with the same type.
# Seen: npm's structured-headers 2.1.0, @svta/cml-structured-field-values 1.1.6 and structured-field-values 2.0.4 parse
# both to a number, and write 1.0 as 1; http-sf 1.5.0 and http_sfv 0.9.9 of Python keep the type. So npm's
# http-message-signatures 1.0.6 finds a signature by Python's package of the same name, 3.0.0, invalid where the signed
# member is 1.0, and valid where it is 0.9: a fault that comes and goes with the value.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q http-sf==1.5.0 http_sfv==0.9.9 http-message-signatures==3.0.0 requests==2.34.2
npm install --silent --no-audit --no-fund structured-headers@2.1.0 @svta/cml-structured-field-values@1.1.6 \
    structured-field-values@2.0.4 http-message-signatures@1.0.6
cat >write.mjs <<'JAVASCRIPT'
import { decodeSfDict, encodeSfDict } from "@svta/cml-structured-field-values";
import { parseDictionary, serializeDictionary } from "structured-headers";
import { decodeDict, encodeDict } from "structured-field-values";

const field = "rating=1.0, votes=3";
console.log("structured-headers:", serializeDictionary(parseDictionary(field)));
console.log("@svta/cml-structured-field-values:", encodeSfDict(decodeSfDict(field)));
console.log("structured-field-values:", encodeDict(decodeDict(field)));
JAVASCRIPT
cat >verify.mjs <<'JAVASCRIPT'
import { createHmac } from "node:crypto";
import { httpbis } from "http-message-signatures";

const [secret, message] = process.argv.slice(2);
const verify = async (data, signature) => createHmac("sha256", secret).update(data).digest().equals(signature);
const keyLookup = async () => ({ id: "key", algs: ["hmac-sha256"], verify });
console.log((await httpbis.verifyMessage({ keyLookup }, JSON.parse(message))) ? "valid" : "invalid");
JAVASCRIPT
node write.mjs >seen
bin/python - >>seen <<'PYTHON'
import json
import subprocess
import http_sf
import http_sfv
import requests
from http_message_signatures import HTTPMessageSigner, HTTPMessageVerifier, HTTPSignatureKeyResolver, algorithms

SECRET = "a secret that is long enough for HMAC, of this script alone"
FIELD = "rating=1.0, votes=3"

class Keys(HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id):
        return SECRET.encode()

    resolve_private_key = resolve_public_key

parsed = http_sfv.Dictionary()
parsed.parse(FIELD.encode())
print("http-sf:", http_sf.ser(http_sf.parse(FIELD.encode(), tltype="dictionary")))
print("http_sfv:", parsed)
parts = {"signature_algorithm": algorithms.HMAC_SHA256, "key_resolver": Keys()}
for field in (FIELD, "rating=0.9, votes=3"):
    request = requests.Request("GET", "https://example.org/posts", headers={"Opinion": field}).prepare()
    HTTPMessageSigner(**parts).sign(request, key_id="key", covered_component_ids=("@method", '"opinion";key="rating"'))
    message = {"method": request.method, "url": request.url, "headers": dict(request.headers)}
    command = ["node", "verify.mjs", SECRET, json.dumps(message)]
    print(field, "signed by Python, for Node", subprocess.check_output(command, text=True).strip())
    HTTPMessageVerifier(**parts).verify(request, max_age=None)
    print(field, "signed by Python, for Python valid")
PYTHON
diff - seen <<'SEEN'
structured-headers: rating=1, votes=3
@svta/cml-structured-field-values: rating=1, votes=3
structured-field-values: rating=1, votes=3
http-sf: rating=1.0, votes=3
http_sfv: rating=1.0, votes=3
rating=1.0, votes=3 signed by Python, for Node invalid
rating=1.0, votes=3 signed by Python, for Python valid
rating=0.9, votes=3 signed by Python, for Node valid
rating=0.9, votes=3 signed by Python, for Python valid
SEEN

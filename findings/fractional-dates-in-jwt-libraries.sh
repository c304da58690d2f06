#!/usr/bin/env bash
# A NumericDate may have a fraction of a second (RFC 7519 section 2).
#
# One would expect: a token that was issued a tenth of a second ago has not been "issued in the future".
# Seen with joserfc 1.8.0: `JWTClaimsRegistry` reads the time in whole seconds and compares it with the fraction, so that
# it refuses such a token until the next second begins; likewise `nbf`. npm's jose 6.2.18 does so with `nbf`, and with
# `iat` where `maxTokenAge` is given. PyJWT 2.15.1 and jwcrypto 1.6.1 accept all of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv .
bin/pip install -q joserfc==1.8.0 PyJWT==2.15.1 jwcrypto==1.6.1 cryptography==50.0.2
bin/python - >seen <<'PYTHON'
import time
import jwt as pyjwt
from joserfc import jwt
from joserfc.jwk import OctKey
from jwcrypto.jwk import JWK
from jwcrypto.jwt import JWT

SECRET = b"a secret that is long enough for HS256, of this script alone"
while not 0.5 < time.time() % 1 < 0.7:  # in the middle of a second
    time.sleep(0.01)
issued = time.time() - 0.1
for claim in ("iat", "nbf"):
    token = pyjwt.encode({"sub": "alice", claim: issued}, SECRET, "HS256")
    decoded = jwt.decode(token, OctKey.import_key(SECRET), ["HS256"])
    try:
        jwt.JWTClaimsRegistry().validate(decoded.claims)
        print(claim, "joserfc accepts it")
    except Exception as error:
        print(claim, "joserfc:", error)
    pyjwt.decode(token, SECRET, ["HS256"])
    JWT(jwt=token, key=JWK.from_password(SECRET.decode()), check_claims={})
    print(claim, "PyJWT and jwcrypto accept it")
PYTHON
npm install --silent --no-audit --no-fund jose@6.2.18
cat >verify.mjs <<'JAVASCRIPT'
import { SignJWT, jwtVerify } from "jose";

const secret = new TextEncoder().encode("a secret that is long enough for HS256, of this script alone");
while (Date.now() % 1000 < 500 || Date.now() % 1000 > 700) await new Promise((resolve) => setTimeout(resolve, 10));
const issued = Date.now() / 1000 - 0.1;
for (const [claim, options] of [["iat", {}], ["iat", { maxTokenAge: "1 minute" }], ["nbf", {}]]) {
    const token = await new SignJWT({ [claim]: issued }).setProtectedHeader({ alg: "HS256" }).sign(secret);
    const name = options.maxTokenAge ? `${claim} with maxTokenAge` : claim;
    await jwtVerify(token, secret, options).then(
        () => console.log(`${name} jose accepts it`),
        (error) => console.log(`${name} jose: ${error.message}`),
    );
}
JAVASCRIPT
node verify.mjs >>seen
diff - seen <<'SEEN'
iat joserfc: invalid_claim: The token was issued in the future
iat PyJWT and jwcrypto accept it
nbf joserfc: invalid_claim: The token is not yet valid
nbf PyJWT and jwcrypto accept it
iat jose accepts it
iat with maxTokenAge jose: "iat" claim timestamp check failed (it should be in the past)
nbf jose: "nbf" claim timestamp check failed
SEEN

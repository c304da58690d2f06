// Verifies DPoP proofs with jose, which oidc-provider is installed with.
//
// node verify_proofs.mjs FOLDER: FOLDER is where npm has installed oidc-provider. Standard input is a JSON array of
// proofs; standard output is one of {"header", "claims", "thumbprint"}. An invalid proof ends it with an error.

import { webcrypto } from "node:crypto";
import { text } from "node:stream/consumers";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

globalThis.crypto ??= webcrypto; // Debian 12 has Node 18

const [folder] = process.argv.slice(2);
const { calculateJwkThumbprint, EmbeddedJWK, jwtVerify } = await import(
  pathToFileURL(join(folder, "node_modules/jose/dist/webapi/index.js"))
);

async function verify(proof) {
  const requiredClaims = ["jti", "htm", "htu", "iat", "ath"];
  const options = { typ: "dpop+jwt", maxTokenAge: 60, requiredClaims };
  const { protectedHeader: header, payload: claims } = await jwtVerify(proof, EmbeddedJWK, options);
  return { header, claims, thumbprint: await calculateJwkThumbprint(header.jwk) };
}

process.stdout.write(JSON.stringify(await Promise.all(JSON.parse(await text(process.stdin)).map(verify))));

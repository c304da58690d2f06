// Makes DPoP proofs with jose, which oidc-provider is installed with.
//
// node make_proofs.mjs FOLDER ALG: FOLDER is where npm has installed oidc-provider, ALG how the proofs are signed, with a
// key of this process. Each line of standard input is the JSON object of a proof's claims, without `jti` and `iat`; the
// proof is a line of standard output.

import { randomUUID, webcrypto } from "node:crypto";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

globalThis.crypto ??= webcrypto; // Debian 12 has Node 18

const [folder, alg] = process.argv.slice(2);
const { exportJWK, generateKeyPair, SignJWT } = await import(
  pathToFileURL(join(folder, "node_modules/jose/dist/webapi/index.js"))
);

const { privateKey, publicKey } = await generateKeyPair(alg);
const header = { typ: "dpop+jwt", alg, jwk: await exportJWK(publicKey) };

for await (const line of createInterface({ input: process.stdin })) {
  const proof = new SignJWT(JSON.parse(line)).setProtectedHeader(header).setJti(randomUUID()).setIssuedAt();
  process.stdout.write(`${await proof.sign(privateKey)}\n`);
}

// An OpenID provider to test against: npm's oidc-provider, on 127.0.0.1, quiet, all in memory.
//
// node provider.mjs FOLDER: FOLDER is where npm has installed oidc-provider. Its settings are the first line of
// standard input, so that private keys stand in no file:
//     port        0 = a free one
//     keys        to publish, with "pem" (private), "kid" and "alg"; of those of an algorithm, the first one signs
//     clients     as in OpenID Connect Dynamic Client Registration
//     scopes      that may be asked for
//     resources   {identifier: "jwt" or "opaque"}: the form of the access tokens for it
//     lifetimes_s {client_id: of its access tokens}; an hour for others
//     dpop_nonces whether DPoP proofs have to have a nonce
// Once it listens it says {"port": N}; it ends when standard input does, and so with the process that started it.

import * as crypto from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { register } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

// What oidc-provider 9 uses that Node has since 22 ...
URL.parse ??= (...parts) => {
  try {
    return new URL(...parts);
  } catch {
    return null;
  }
};
// ... and since 20: Debian 12 has 18.
if (!crypto.hash) {
  globalThis.crypto = crypto.webcrypto;
  globalThis.CryptoKey = crypto.webcrypto.CryptoKey;
  const withHash = asModule(`
    import { createHash } from "node:crypto";
    export * from "node:crypto";
    export const hash = (algorithm, data, encoding = "hex") => createHash(algorithm).update(data).digest(encoding);
  `);
  register(asModule(`
    export const resolve = (name, context, next) =>
      name === "node:crypto" && context.parentURL.startsWith("file:")
        ? { url: ${JSON.stringify(withHash)}, shortCircuit: true }
        : next(name, context);
  `));
}

function asModule(source) {
  return `data:text/javascript,${encodeURIComponent(source)}`;
}

// Its warnings are about use in earnest: the forms that let anybody in, the store in memory, this version of Node.
console.info = console.warn = () => {};

const HOUR_S = 3600;

function makeProvider(Provider, issuer, settings) {
  const lifetime = (_, token, client) => settings.lifetimes_s[client.clientId] ?? HOUR_S;
  const keys = settings.keys.map(({ pem, ...names }) => ({
    ...crypto.createPrivateKey(pem).export({ format: "jwk" }),
    ...names,
    use: "sig",
  }));
  return new Provider(issuer, {
    jwks: { keys },
    clients: settings.clients,
    scopes: settings.scopes,
    cookies: { keys: ["of no worth"] },
    // Anybody is who they say they are.
    findAccount: (_, login) => ({ accountId: login, claims: () => ({ sub: login, name: `${login} of the provider` }) }),
    claims: { profile: ["name"] },
    // It sends logout tokens to no loopback address by itself: the dispatcher refuses them.
    fetch: (url, { dispatcher, ...options }) => fetch(url, options),
    enabledJWA: {
      idTokenSigningAlgValues: [...new Set(keys.map((key) => key.alg))],
      dPoPSigningAlgValues: ["ES256", "EdDSA", "Ed25519", "PS256", "RS256"],
    },
    ttl: { AccessToken: lifetime, ClientCredentials: lifetime },
    features: {
      backchannelLogout: { enabled: true },
      clientCredentials: { enabled: true },
      dPoP: { enabled: true, nonceSecret: crypto.randomBytes(32), requireNonce: () => settings.dpop_nonces },
      introspection: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, resource, client) => ({
          scope: settings.scopes.join(" "),
          accessTokenFormat: settings.resources[resource],
          // One registration decides for both kinds of token.
          jwt: { sign: { alg: client.idTokenSignedResponseAlg } },
        }),
      },
    },
  });
}

const [folder] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(join(folder, "node_modules/oidc-provider/lib/index.js")));

const input = createInterface({ input: process.stdin });
input.on("close", () => process.exit());
const [line] = await once(input, "line");
const settings = JSON.parse(line);

const server = createServer().listen(settings.port, "127.0.0.1");
await once(server, "listening");
const { port } = server.address();
const provider = makeProvider(Provider, `http://127.0.0.1:${port}`, settings);
// Its pages ask for a font of another host, for which a browser waits.
provider.use(async (ctx, next) => {
  await next();
  if (typeof ctx.body === "string") ctx.body = ctx.body.replace(/@import url\(.*?\);/, "");
});
provider.on("server_error", (_, error) => console.error(error));
server.on("request", provider.callback());
process.stdout.write(`${JSON.stringify({ port })}\n`);

// Forms with data-passkey are sent with the answer of a passkey (Web Authentication Level 3): "get" signs in, "create"
// adds one. A form is shown where the browser can do that, and this address is the one that passkeys belong to.
"use strict";
{
const REFRESH_MS = 4 * 60 * 1000; // a challenge is valid for 5 minutes
const WORDS = {
  get: {NotAllowedError: "No passkey was used. Try again, or sign in another way."},
  create: {
    NotAllowedError: "No passkey was made. Try again.",
    InvalidStateError: "A passkey of this account is on this device already.",
  },
};
const OTHER = "This did not work. Reload the page, and try again.";

const encode = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const decode = (text) =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (character) => character.charCodeAt(0));

// Not by parseRequestOptionsFromJSON and toJSON: older browsers lack them, and password managers replace the objects.
const prepare = (options) => {
  options.challenge = decode(options.challenge);
  if (options.user) options.user.id = decode(options.user.id);
  for (const one of options.excludeCredentials ?? []) one.id = decode(one.id);
  return options;
};
const serialize = ({rawId, response}) => {
  const names = ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"];
  const present = names.filter((name) => response[name]);
  const members = Object.fromEntries(present.map((name) => [name, encode(response[name])]));
  return JSON.stringify({id: encode(rawId), rawId: encode(rawId), type: "public-key", response: members});
};

let running = null; // a browser has one request at a time
async function ask(form, mediation) {
  running?.abort();
  const mine = running = new AbortController();
  const alert = form.querySelector("[role=alert]");
  alert.hidden = true;
  const fetched = await fetch(form.dataset.options);
  if (fetched.status === 403) return form.submit(); // which asks for the password
  if (!fetched.ok) throw new Error(`${fetched.status}`);
  const publicKey = prepare(await fetched.json());
  if (mine !== running) return;
  const refresh = mediation && setTimeout(() => mine === running && fill(form), REFRESH_MS);
  try {
    const request = {publicKey, signal: mine.signal, ...(mediation && {mediation})};
    form.elements.credential.value = serialize(await navigator.credentials[form.dataset.passkey](request));
  } finally {
    clearTimeout(refresh);
  }
  form.submit();
}

const fill = (form) => ask(form, "conditional").catch(() => {}); // the user has done nothing that could fail

for (const form of document.querySelectorAll("form[data-passkey]")) {
  if (!window.PublicKeyCredential || location.origin !== form.dataset.origin) continue;
  form.hidden = false;
  for (const element of document.querySelectorAll("[data-without-passkeys]")) element.hidden = true;
  const autofill = form.dataset.passkey === "get" && document.querySelector("[autocomplete~=webauthn]");
  const wait = async () => {
    if (autofill && await PublicKeyCredential.isConditionalMediationAvailable?.()) fill(form);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form).catch((error) => {
      const alert = form.querySelector("[role=alert]");
      alert.textContent = WORDS[form.dataset.passkey][error.name] ?? OTHER;
      alert.hidden = false;
      wait();
    });
  });
  wait();
}
}

/** Whose plans a device runs: those that are signed with a key that its owner was given. */

import { ClientError, PlanError } from "./errors.js";

/** What precedes a plan's manifest where it is signed. */
const PLAN = "fedlm plan 1\n";
const PEM = /-----BEGIN ([A-Z ]+)-----([A-Za-z0-9+/=\s]*)-----END \1-----/g;

/** Read the public keys in a text in PEM, one at least: several while one key follows another. */
export async function readPublicKeys(text: string, name: string): Promise<CryptoKey[]> {
  const found = [...text.matchAll(PEM)];
  try {
    if (!found.length || found.some((one) => one[1] !== "PUBLIC KEY")) throw new TypeError("another kind of key, or none");
    const bytes = found.map((one) => Uint8Array.from(atob(one[2]!.replace(/\s/g, "")), (letter) => letter.charCodeAt(0)));
    return await Promise.all(bytes.map((one) => crypto.subtle.importKey("spki", one, "Ed25519", false, ["verify"])));
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError")
      throw new ClientError("this browser does not know Ed25519 signatures, so it cannot tell who made a plan; update it");
    throw new ClientError(`${name}: holds no Ed25519 public key in PEM, or others too; ask the server's operator for plan.pub`);
  }
}

/** Refuse, with PlanError, a manifest that none of the keys has signed. */
export async function checkSignature(content: Uint8Array, signature: Uint8Array, keys: CryptoKey[]): Promise<void> {
  const before = new TextEncoder().encode(PLAN);
  if (!signature.length) throw new PlanError("the plan is not signed, and this client runs only signed plans");
  const signed = new Uint8Array(before.length + content.length);
  signed.set(before);
  signed.set(content, before.length);
  for (const key of keys) if (await crypto.subtle.verify("Ed25519", key, signature as Uint8Array<ArrayBuffer>, signed)) return;
  throw new PlanError("the plan's signature is not by a key that this client trusts; the device's owner may have another key");
}

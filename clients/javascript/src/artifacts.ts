/** Bytes named by their content, put together from chunks that are checked one by one. */

import { ClientError, TransportError } from "./errors.js";
import { type Limits, optionOf } from "./limits.js";
import type { Artifact } from "./messages_pb.js";

const LARGEST_CHUNK = 4 << 20;

export async function sha256(bytes: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, place) => byte === b[place]);
}

/** A download, which goes on where it broke off. */
export class Assembly {
  readonly content: Uint8Array;
  private checked = 0; // bytes of whole chunks
  private come = 0; // bytes, with those of the chunk that is not whole yet

  private constructor(readonly digest: Uint8Array, size: number, private readonly step: number, private readonly digests: Uint8Array[]) {
    this.content = new Uint8Array(size);
  }

  /** Prepare for what the server described; raises TransportError where the description contradicts itself, and ClientError where it has more bytes than a limit. */
  static async of(described: Artifact | undefined, limits: Limits, name: "planBytes" | "largestDownload"): Promise<Assembly> {
    if (!described || described.size < 1n) throw new TransportError("the server offers a download without bytes");
    if (described.size > BigInt(Math.floor(limits[name])))
      throw new ClientError(`the server offers a download of ${described.size} bytes, but this client takes ${limits[name]} at most; its owner may allow more with --${optionOf(name)}`);
    const size = Number(described.size), step = described.chunkBytes, digests = described.chunkDigests;
    const encoding = new TextEncoder().encode(described.encoding), sizes = new DataView(new ArrayBuffer(12));
    sizes.setBigUint64(0, described.size, true);
    sizes.setUint32(8, step, true);
    const named = await sha256(new Uint8Array(await new Blob([encoding, sizes.buffer, ...(digests as Uint8Array<ArrayBuffer>[])]).arrayBuffer()));
    if (step < 1 || step > LARGEST_CHUNK || digests.length !== Math.ceil(size / step) || !equal(named, described.digest))
      throw new TransportError("the server's description of a download contradicts itself");
    return new Assembly(described.digest, size, step, digests);
  }

  /** The number of the chunk to ask for. */
  get nextChunk(): number {
    return Math.floor(this.checked / this.step);
  }

  get complete(): boolean {
    return this.checked === this.content.length;
  }

  /** Forget the part of a chunk that came before a connection broke. */
  begin(): void {
    this.come = this.checked;
  }

  /** Take bytes that follow; raises TransportError where a chunk is not the one that was described. */
  async add(data: Uint8Array): Promise<void> {
    if (data.length > this.content.length - this.come) throw new TransportError("the server sends more than it announced");
    this.content.set(data, this.come);
    this.come += data.length;
    while (!this.complete) {
      const end = Math.min(this.checked + this.step, this.content.length);
      if (this.come < end) return;
      const number = this.nextChunk;
      if (!equal(await sha256(this.content.subarray(this.checked, end)), this.digests[number]!))
        throw new TransportError(`chunk ${number} of a download was damaged on the way`);
      this.checked = end;
    }
  }
}

/** A server in memory, for tests: offers one plan for one round, and keeps what a client sends. */

import { create } from "@bufbuild/protobuf";

import { type Assembly, hex, sha256 } from "../src/artifacts.js";
import type { Channel } from "../src/client.js";
import { TransportError } from "../src/errors.js";
import {
  type Artifact, ArtifactSchema, type CheckInReply, CheckInReplySchema, PlanSchema, RoundConfigurationSchema, type UploadHeader, type UploadReply, UploadReply_Status,
  UploadReplySchema,
} from "../src/messages_pb.js";

const CHUNK = 512;

export interface Offer { manifest: Uint8Array; signature: Uint8Array; model: Uint8Array; tokenizer: Uint8Array; parameters: Uint8Array }

export class MemoryServer implements Channel {
  readonly name = "ann";
  readonly contents = new Map<string, Uint8Array>();
  readonly asked: number[] = []; // first chunks of downloads
  readonly uploads: { header: UploadHeader; body: Uint8Array }[] = [];
  breaks = 0; // downloads that break off after a chunk and a half
  private checkedIn = 0;

  constructor(private readonly offer: Offer, private readonly rounds = 1) {}

  async artifact(content: Uint8Array, encoding: string): Promise<Artifact> {
    const pieces = Array.from({ length: Math.ceil(content.length / CHUNK) }, (_, index) => content.subarray(index * CHUNK, (index + 1) * CHUNK));
    const chunkDigests = await Promise.all(pieces.map(sha256)), sizes = new DataView(new ArrayBuffer(12));
    sizes.setBigUint64(0, BigInt(content.length), true);
    sizes.setUint32(8, CHUNK, true);
    const digest = await sha256(Buffer.concat([new TextEncoder().encode(encoding), new Uint8Array(sizes.buffer), ...chunkDigests]));
    this.contents.set(hex(digest), content);
    return create(ArtifactSchema, { digest, encoding, size: BigInt(content.length), chunkBytes: CHUNK, chunkDigests });
  }

  async checkIn(): Promise<CheckInReply> {
    const protocols = [3];
    if (this.checkedIn >= this.rounds) return create(CheckInReplySchema, { protocols, answer: { case: "comeBack", value: { finished: true } } });
    const { manifest, model, signature, tokenizer, parameters } = this.offer;
    const plan = create(PlanSchema, { manifest: await this.artifact(manifest, "plan"), model: await this.artifact(model, "litert"), signature });
    const value = create(RoundConfigurationSchema, {
      attempt: new Uint8Array([1]), roundNumber: this.checkedIn++, clientIndex: 3, seed: 7, learningRate: 0.3, seconds: 300, population: "people", plan,
      participation: { rounds: 100, maxParticipations: 2, minSeparation: 1 },
      parameters: await this.artifact(parameters, "float32"), vocabulary: await this.artifact(tokenizer, "tokenizer"),
    });
    return create(CheckInReplySchema, { protocols, answer: { case: "selected", value } });
  }

  async download(assembly: Assembly): Promise<void> {
    assembly.begin();
    this.asked.push(assembly.nextChunk);
    const rest = this.contents.get(hex(assembly.digest))!.subarray(assembly.nextChunk * CHUNK);
    if (this.breaks > 0 && rest.length > 2 * CHUNK) {
      this.breaks--;
      this.checkedIn--; // the client checks in again, and is selected for the same round
      await assembly.add(rest.subarray(0, CHUNK + CHUNK / 2));
      throw new TransportError("the connection was lost");
    }
    for (let start = 0; start < rest.length; start += 100) await assembly.add(rest.subarray(start, start + 100));
  }

  async upload(header: UploadHeader, body: Uint8Array, beforeBytes: () => Promise<void>): Promise<UploadReply> {
    if (body.length) await beforeBytes();
    this.uploads.push({ header, body });
    return create(UploadReplySchema, { status: UploadReply_Status.ACCEPTED });
  }

  close(): void {
    // There is no connection.
  }
}

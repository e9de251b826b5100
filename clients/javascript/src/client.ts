/**
 * A device's part in a run by plans: checks in, trains when it is selected and allowed to, and answers with an update.
 *
 * What leaves the device is the messages of docs/protocol.md and nothing else.
 */

import { create } from "@bufbuild/protobuf";

import { Assembly, equal, hex, sha256 } from "./artifacts.js";
import { batchOf, batchRows, randomWords, sequencesOf } from "./batches.js";
import { crc32 } from "./crc32.js";
import { ClientError, GoneError, PlanError, TransportError, WrongServerError } from "./errors.js";
import type { Limits } from "./limits.js";
import { checkLimits, checkModel, downloadValues, type Manifest, readManifest } from "./manifest.js";
import {
  type Artifact, type CheckInReply, type CheckInRequest, CheckInRequestSchema, type Plan, type RoundConfiguration, type UploadHeader,
  UploadHeader_Outcome as Outcome, UploadHeaderSchema, type UploadReply, UploadReply_Status as Status,
} from "./messages_pb.js";
import type { OwnParticipation } from "./own_participation.js";
import { checkSignature } from "./signature.js";
import { examplesOf } from "./text_examples.js";
import { WordPiece } from "./tokenizer.js";
import { type StartThread, Trainer } from "./trainer.js";

export const VERSION = "0.1.0";
const PROTOCOL = 3, SOONEST = 0.02, LATEST = 24 * 3600, SOON = 3, SOON_FOR = 120, MOST_FAILURES = 30;
const WHY_NOT: Partial<Record<Outcome, string>> = {
  [Outcome.NO_EXAMPLES]: "it has no text to train on", [Outcome.NOT_FINITE]: "training gave numbers that are not finite",
  [Outcome.NOT_ALLOWED]: "it may not take part now", [Outcome.TOO_SLOW]: "training would not end in time",
};

/** Calls a server; each call may raise TransportError, and ClientError where the server refuses for good. */
export interface Channel {
  readonly name: string;
  checkIn(request: CheckInRequest): Promise<CheckInReply>;
  /** Fetch what is missing of an artifact; raises GoneError where it is not offered any more. */
  download(assembly: Assembly): Promise<void>;
  /** Send a report; `beforeBytes` ends before the first of its bytes leaves. */
  upload(header: UploadHeader, body: Uint8Array, beforeBytes: () => Promise<void>): Promise<UploadReply>;
  close(): void;
}

/** The device's text. */
export interface TextStore {
  version(): Promise<string>; // another one where the text is another one
  texts(): Promise<string[]>;
}

export interface Settings {
  text: TextStore;
  keys: CryptoKey[]; // whose plans it runs
  startThread: StartThread; // runs plans
  limits: Limits;
  notice: (words: string) => void;
  allowed?: () => boolean; // whether the device may train now
}

interface Ready { offered: string; manifest: Manifest; trainer: Trainer }

class Ended extends Error {
  constructor(readonly outcome: Outcome) {
    super();
  }
}

export class Client {
  private ready: Ready | null = null;
  private tokenizer: { sha256: string; pieces: WordPiece } | null = null;
  private sequences: { key: string; rows: Int32Array[] } | null = null;
  private model: Assembly | null = null;
  private failures = 0;
  private answered = false;
  private began = 0;
  private stopped = false;
  private wake: () => void = () => {};

  /** Prepare; nothing is sent before `run`. */
  constructor(private readonly channel: Channel, private readonly settings: Settings, private readonly participation: OwnParticipation) {}

  /** Check in no more; a round under way goes on to its end. */
  stop(): void {
    this.stopped = true;
    this.wake();
  }

  /**
   * Take part until the run is over, this client's part in it, or `stop`; whether it is over for all.
   *
   * Raises ClientError where the server turns this client away, or asks for what it does not allow.
   */
  async run(): Promise<boolean> {
    this.began = performance.now();
    try {
      await this.settings.text.version();
      while (!this.stopped) {
        const wait = await this.once();
        if (typeof wait === "boolean") return wait;
        await this.sleep(wait);
      }
      return false;
    } finally {
      this.channel.close();
      this.closePlan();
    }
  }

  private async sleep(seconds: number): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    await new Promise<void>((resolve) => {
      this.wake = resolve;
      timer = setTimeout(resolve, 1000 * seconds);
      if (this.stopped) resolve();
    });
    clearTimeout(timer);
  }

  /** Check in once, and take part if selected; how long to wait or, at the end, whether for everybody. */
  private async once(): Promise<number | boolean> {
    try {
      const request = create(CheckInRequestSchema, { protocol: PROTOCOL, clientVersion: `fedlm-js-client ${VERSION}`, needsPlan: true });
      const reply = await this.channel.checkIn(request).catch((error: unknown) => {
        throw error instanceof GoneError ? new WrongServerError(`the program at this address does not know check-ins (${error.message}); dial the address of a server`) : error;
      });
      const spoken = reply.protocols.length ? reply.protocols : [1];
      if (!spoken.includes(PROTOCOL)) throw new ClientError(`the server speaks version ${spoken.join(", ")} of the protocol, and not ${PROTOCOL}; update one of the two`);
      this.answered = true;
      if (reply.answer.case === "selected") return await this.takePart(reply.answer.value);
      // Not where it was selected: what fails after that would be tried as often as if it were the first.
      this.failures = 0;
      const told = reply.answer.case === "comeBack" ? reply.answer.value : undefined;
      if (told?.done && !told.finished) this.settings.notice(printable(told.reason));
      return told && (told.finished || told.done) ? told.finished : bounded(told?.seconds ?? 0);
    } catch (error) {
      if (error instanceof GoneError) return this.backoff();
      if (error instanceof WrongServerError && this.answered) {
        // The server was there before: what answers now may be a network's own page, or a server that is mended.
        const { longestBackoff } = this.settings.limits;
        this.settings.notice(`${error.message}; trying again in ${longestBackoff.toFixed(1)} seconds`);
        return longestBackoff;
      }
      if (!(error instanceof TransportError)) throw error;
      const wait = this.backoff();
      this.settings.notice(`the server cannot be reached: ${error.message}; trying again in ${wait.toFixed(1)} seconds`);
      return wait;
    }
  }

  private backoff(): number {
    // Who begins before the server does has it soon.
    const soon = !this.answered && performance.now() - this.began < 1000 * SOON_FOR, { firstBackoff, longestBackoff } = this.settings.limits;
    const longest = Math.min(firstBackoff * 2 ** this.failures, longestBackoff, soon ? SOON : Infinity);
    this.failures = Math.min(this.failures + 1, MOST_FAILURES);
    return longest * (0.5 + Math.random());
  }

  private async takePart(asked: RoundConfiguration): Promise<number> {
    const deadline = performance.now() + 1000 * bounded(asked.seconds);
    if (!asked.plan) throw new ClientError("this client needs plans, and the server makes none; its operator must give it a key for plans");
    const header = create(UploadHeaderSchema, { attempt: asked.attempt, uploadId: crypto.getRandomValues(new Uint8Array(16)) });
    const examples = await this.settings.text.version();
    let upload = new Uint8Array();
    try {
      const reason = await this.participation.may(asked, examples);
      if (reason) {
        this.settings.notice(`round ${asked.roundNumber}: it does not take part, since ${reason}`);
        throw new Ended(Outcome.NOT_ALLOWED);
      }
      const { manifest, trainer } = await this.plan(asked.plan), pieces = await this.tokenizerOf(asked.vocabulary, manifest);
      const values = await this.downloadModel(asked.parameters, manifest);
      const texts = (await this.settings.text.texts()).flatMap((text) => examplesOf(text, manifest.examples));
      if (!texts.length) throw new Ended(Outcome.NO_EXAMPLES);
      // A plan chooses whether training ends, in time and in numbers, and how long its tokenizer takes: each says
      // something of the text, so that nothing is asked of the server from here until there is an update.
      await this.participation.tell(asked, examples);
      const sequences = this.examples(texts, pieces, manifest, examples);
      if (!sequences.length) throw new Ended(Outcome.NO_EXAMPLES);
      upload = await this.train(asked, manifest, trainer, values, sequences, deadline, header);
    } catch (error) {
      if (!(error instanceof Ended)) throw error;
      header.outcome = error.outcome;
    }
    header.size = BigInt(upload.length);
    const reply = await this.send(header, upload, () => this.participation.take(asked, examples), deadline);
    const why = WHY_NOT[header.outcome], did = why ? `it declined, since ${why}; the server's answer: ` : "";
    this.settings.notice(`round ${asked.roundNumber}: ${did}${Status[reply.status] ?? reply.status} ${printable(reply.reason)}`.trimEnd());
    return bounded(reply.comeBackSeconds);
  }

  /** Fetch, check and load a plan; the one that is loaded where it is the same. */
  private async plan(offered: Plan): Promise<Ready> {
    const name = hex(offered.manifest?.digest ?? new Uint8Array());
    if (this.ready?.offered === name) return this.ready;
    const { limits, keys, notice, startThread } = this.settings;
    const described = await this.fetch(offered.manifest, "planBytes");
    await checkSignature(described, offered.signature, keys);
    const manifest = await readManifest(described);
    checkLimits(manifest, limits);
    const model = await this.fetchNamed(offered.model, manifest.modelBytes, "planBytes");
    await checkModel(manifest, model);
    this.closePlan();
    notice(`plan ${manifest.digest.slice(0, 12)}: ${printable(manifest.about)}`);
    this.ready = { offered: name, manifest, trainer: await Trainer.load(startThread, manifest, described, model) };
    return this.ready;
  }

  private closePlan(): void {
    this.ready?.trainer.close();
    this.ready = null;
  }

  private async fetch(described: Artifact | undefined, limit: "planBytes" | "largestDownload"): Promise<Uint8Array> {
    const assembly = await Assembly.of(described, this.settings.limits, limit);
    await this.channel.download(assembly);
    return assembly.content;
  }

  /** Fetch what a manifest names; nothing, which has no such digest, where the server's size is another. */
  private async fetchNamed(described: Artifact | undefined, bytes: number, limit: "planBytes" | "largestDownload"): Promise<Uint8Array> {
    return described?.size === BigInt(bytes) ? this.fetch(described, limit) : new Uint8Array();
  }

  /** Fetch the server's tensors, going on where the last try broke off. */
  private async downloadModel(described: Artifact | undefined, manifest: Manifest): Promise<Float32Array> {
    checkValues(Number(described?.size ?? 0n), described?.encoding ?? "", downloadValues(manifest));
    if (!this.model || !described || !equal(this.model.digest, described.digest)) this.model = await Assembly.of(described, this.settings.limits, "largestDownload");
    if (!this.model.complete) await this.channel.download(this.model);
    return valuesOf(this.model.content, described!.encoding, downloadValues(manifest));
  }

  /** Fetch the tokenizer that a plan names; the one that is there where it is the same. */
  private async tokenizerOf(described: Artifact | undefined, manifest: Manifest): Promise<WordPiece> {
    if (this.tokenizer?.sha256 !== manifest.tokenizer) {
      const content = await this.fetchNamed(described, manifest.tokenizerBytes, "largestDownload");
      if (hex(await sha256(content)) !== manifest.tokenizer) throw new PlanError("the server's tokenizer is not the one that the plan names");
      this.tokenizer = { sha256: manifest.tokenizer, pieces: WordPiece.read(content) };
    }
    return this.tokenizer.pieces;
  }

  private examples(texts: string[], pieces: WordPiece, manifest: Manifest, version: string): Int32Array[] {
    const key = JSON.stringify([manifest.tokenizer, manifest.batches, manifest.examples, version]), { length } = manifest.batches;
    if (this.sequences?.key !== key) {
      if (4 * texts.length * (length + 1) > manifest.memoryBytes)
        throw new PlanError(`${texts.length} examples of the plan's ${length} tokens take more than its memory of ${manifest.memoryBytes} bytes`);
      this.sequences = { key, rows: sequencesOf(texts.map((text) => pieces.encode(text)).filter((ids) => ids.length), manifest.batches) };
    }
    return this.sequences.rows;
  }

  private async train(
    asked: RoundConfiguration, manifest: Manifest, trainer: Trainer, values: Float32Array, sequences: Int32Array[], deadline: number, header: UploadHeader,
  ): Promise<Uint8Array<ArrayBuffer>> {
    const { learningRate, seed, roundNumber, clientIndex } = asked, { limits, allowed } = this.settings, { batches } = manifest;
    if (!(learningRate > 0 && Number.isFinite(learningRate))) throw new ClientError(`the server asks for the learning rate ${learningRate}`);
    const latest = Math.min(deadline, performance.now() + 1000 * limits.maxTrainingSeconds);
    try {
      await trainer.begin(values);
      for (const [number, rows] of batchRows(sequences.length, batches, limits.maxBatches, seed, roundNumber, clientIndex).entries()) {
        if (performance.now() > latest) throw new Ended(Outcome.TOO_SLOW);
        if (allowed && !allowed()) throw new Ended(Outcome.NOT_ALLOWED);
        const random = Uint32Array.from(randomWords(batches.batch_size, seed, roundNumber, clientIndex, number).flat());
        await trainer.step({ ...batchOf(sequences, rows, batches), random, learningRate });
      }
      const { sums, finite, body } = await trainer.finish(seed, roundNumber, clientIndex);
      if (!finite) throw new Ended(Outcome.NOT_FINITE);
      header.outcome = Outcome.TRAINED;
      header.numExamples = BigInt(Math.min(sequences.length, batches.max_examples ?? Infinity));
      [header.loss, header.tokens, header.gradientNorm] = sums as [number, number, number];
      return uploadOf(manifest, body);
    } catch (error) {
      if (error instanceof PlanError) this.closePlan();
      throw error;
    }
  }

  /** Upload, where the connection broke from the byte on that the server lacks, under the same id so that it counts once. */
  private async send(header: UploadHeader, upload: Uint8Array, before: () => Promise<void>, deadline: number): Promise<UploadReply> {
    for (let broke = false; ; broke = true) {
      try {
        header.offset = 0n;
        let reply = broke && header.size ? await this.askWhatCame(header) : null;
        if (reply === null || reply.status === Status.DAMAGED) {
          header.offset = reply !== null && reply.received < header.size ? reply.received : 0n;
          reply = await this.channel.upload(header, upload.subarray(Number(header.offset)), before);
        }
        if (reply.status !== Status.DAMAGED) {
          this.failures = 0;
          return reply;
        }
      } catch (error) {
        if (!(error instanceof TransportError)) throw error;
        this.settings.notice(`the upload broke off: ${error.message}`);
      }
      const wait = this.backoff();
      if (performance.now() + 1000 * wait > deadline) throw new TransportError("the upload did not get through while the round was open");
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
    }
  }

  /** Ask how much of an upload there is; null where the server is of a version that does not say. */
  private async askWhatCame(header: UploadHeader): Promise<UploadReply | null> {
    try {
      return await this.channel.upload({ ...header, asks: true }, new Uint8Array(), async () => {});
    } catch (error) {
      if (error instanceof GoneError) return null;
      throw error;
    }
  }
}

/** Make an upload of what the signature finish gave: header, body and checksum. */
export function uploadOf(manifest: Manifest, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const start = manifest.header.length, end = start + body.length, whole = new Uint8Array(end + 4);
  if (whole.length !== manifest.uploadBytes) throw new PlanError(`the plan's model made ${whole.length} bytes of an upload, but its manifest says ${manifest.uploadBytes}`);
  whole.set(manifest.header);
  whole.set(body, start);
  new DataView(whole.buffer).setUint32(end, crc32(whole.subarray(0, end)), true);
  return whole;
}

/** Read the tensors of a download, end to end; raises PlanError where it is another model's. */
export function valuesOf(content: Uint8Array, encoding: string, count: number): Float32Array {
  const size = checkValues(content.length, encoding, count);
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength), made = new Float32Array(count), bits = new Uint32Array(made.buffer);
  if (size === 4) for (let place = 0; place < count; place++) bits[place] = view.getUint32(4 * place, true);
  else for (let place = 0; place < count; place++) bits[place] = view.getUint16(2 * place, true) << 16;
  return made;
}

/** Refuse, with PlanError, a download of so many bytes that does not have the plan's values; the bytes of a value otherwise. */
function checkValues(bytes: number, encoding: string, count: number): number {
  const size = encoding === "float32" ? 4 : 2;
  if ((encoding !== "float32" && encoding !== "bfloat16") || bytes !== count * size)
    throw new PlanError(`the download has ${bytes} bytes of '${encoding.slice(0, 16)}', but the plan has ${count} values`);
  return size;
}

/** Take seconds from a server, which may say anything. */
function bounded(seconds: number): number {
  return Number.isFinite(seconds) ? Math.min(Math.max(seconds, SOONEST), LATEST) : LATEST;
}

export function printable(text: string): string {
  return [...text.slice(0, 500)].filter((one) => one === " " || !/^[\p{C}\p{Z}]$/u.test(one)).join("");
}

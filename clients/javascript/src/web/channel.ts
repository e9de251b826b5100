/** A client's connection to the server that its page came from: TLS, and the certificate that the browser's user chose, are the browser's. */

import { fromBinary, toBinary } from "@bufbuild/protobuf";
import type { Message } from "@bufbuild/protobuf";
import type { GenMessage } from "@bufbuild/protobuf/codegenv2";

import { type Assembly, hex } from "../artifacts.js";
import type { Channel } from "../client.js";
import { ClientError, GoneError, TransportError } from "../errors.js";
import { checkAnswer, isLoopback, LONGEST_MESSAGE, TIMES } from "../http_answers.js";
import {
  type CheckInReply, CheckInReplySchema, type CheckInRequest, CheckInRequestSchema, type UploadHeader, UploadHeaderSchema, type UploadReply, UploadReplySchema,
} from "../messages_pb.js";

const CLAIMED = /^[!-~][ -~]{0,127}$/;

export class PageChannel implements Channel {
  readonly name: string;
  private readonly claimed: Record<string, string>;

  /**
   * Prepare to call; raises ClientError where others would hear plain text.
   *
   * @param page where the page came from
   * @param insecure its user's word that plain text may be spoken, which it is on loopback alone
   * @param name what the client calls itself in plain text; with TLS the name in its certificate counts
   * @param times how long the server may take
   */
  constructor(page: Pick<Location, "protocol" | "hostname">, insecure: boolean, name: string, private readonly times = TIMES) {
    const encrypted = page.protocol === "https:";
    if (!encrypted && !(page.protocol === "http:" && isLoopback(page.hostname)))
      throw new ClientError("this page did not come over https, so that others could hear and change what it says; open it over https");
    if (!encrypted && !(insecure && CLAIMED.test(name)))
      throw new ClientError("this page came in plain text: allow that for this machine, and give a name of 1 to 128 printable characters of ASCII, or open it over https");
    this.name = encrypted ? "whom this browser's certificate names" : name;
    this.claimed = encrypted ? {} : { "fedlm-client": name };
  }

  async checkIn(request: CheckInRequest): Promise<CheckInReply> {
    const body = toBinary(CheckInRequestSchema, request) as Uint8Array<ArrayBuffer>;
    return this.message(CheckInReplySchema, "/check-in", { method: "POST", body, headers: { "Content-Type": "application/x-protobuf" } });
  }

  async download(assembly: Assembly): Promise<void> {
    assembly.begin();
    await this.exchange(`/artifacts/${hex(assembly.digest)}?first_chunk=${assembly.nextChunk}`, {}, this.times.transferSeconds, (piece) => assembly.add(piece));
    if (!assembly.complete) throw new TransportError("a download ended before its last chunk");
  }

  async upload(header: UploadHeader, body: Uint8Array, beforeBytes: () => Promise<void>): Promise<UploadReply> {
    // A browser does not ask whether the bytes are wanted, so that they count from here on.
    if (body.length) await beforeBytes();
    const encoded = btoa(String.fromCharCode(...toBinary(UploadHeaderSchema, header)));
    return this.message(UploadReplySchema, "/upload", { method: header.asks ? "POST" : "PUT", body: body.length ? (body as Uint8Array<ArrayBuffer>) : null, headers: { "fedlm-upload": encoded } });
  }

  close(): void {
    // Connections are the browser's.
  }

  private async message<T extends Message>(schema: GenMessage<T>, path: string, request: RequestInit): Promise<T> {
    const content = new Whole();
    await this.exchange(path, request, request.method === "PUT" && request.body ? this.times.transferSeconds : this.times.answerSeconds, (piece) => content.add(piece));
    try {
      return fromBinary(schema, await content.bytes()) as T;
    } catch (error) {
      throw new TransportError(`the server sends no message (${(error as Error).message.slice(0, 200)})`);
    }
  }

  /** Send a request, and take its answer piece by piece; gives up where nothing came for a while, and after so many seconds. */
  private async exchange(path: string, request: RequestInit, seconds: number, take: (piece: Uint8Array<ArrayBuffer>) => Promise<void>): Promise<void> {
    const { answerSeconds } = this.times, end = new AbortController(), said = new Whole();
    let giveUp: (why: string) => void = () => {}, timer: ReturnType<typeof setTimeout> | undefined;
    // Not by the signal alone: on Node 20 what follows it may be collected, and it then ends nothing.
    const late = new Promise<never>((_, reject) => (giveUp = (why) => reject(new TransportError(why))));
    late.catch(() => {});
    let reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>> | undefined;
    const whole = setTimeout(() => giveUp(`the server took more than ${seconds} seconds`), 1000 * seconds);
    const wait = (): void => {
      clearTimeout(timer);
      timer = setTimeout(() => giveUp(`nothing came for ${answerSeconds} seconds`), 1000 * answerSeconds);
    };
    try {
      // A large upload takes its time; the browser ends it where the connection is lost.
      if (!request.body || request.method === "POST") wait();
      const headers = { ...this.claimed, ...(request.headers as Record<string, string>) };
      const sent = fetch(path, { ...request, headers, signal: end.signal, cache: "no-store", redirect: "error", referrerPolicy: "no-referrer" });
      const answer = await Promise.race([sent, late]), failed = answer.status !== 200;
      reader = answer.body?.getReader();
      for (let piece = reader && (await Promise.race([reader.read(), late])); piece && !piece.done; piece = await Promise.race([reader!.read(), late])) {
        wait();
        await (failed ? said.add(piece.value) : take(piece.value));
      }
      if (failed) checkAnswer(answer.status, new TextDecoder().decode(await said.bytes()));
    } catch (error) {
      if (error instanceof TransportError || error instanceof ClientError || error instanceof GoneError) throw error;
      throw new TransportError((error as Error).message.slice(0, 300));
    } finally {
      clearTimeout(timer);
      clearTimeout(whole);
      // What is left of an answer is not waited for.
      end.abort();
      reader?.cancel().catch(() => {});
    }
  }
}

/** A message, or what a server says of a failure, of bounded length. */
class Whole {
  private readonly pieces: Uint8Array<ArrayBuffer>[] = [];
  private length = 0;

  async add(piece: Uint8Array<ArrayBuffer>): Promise<void> {
    this.pieces.push(piece);
    this.length += piece.length;
    if (this.length > LONGEST_MESSAGE) throw new TransportError(`the server sends more than ${LONGEST_MESSAGE} bytes where a message belongs`);
  }

  async bytes(): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(await new Blob(this.pieces).arrayBuffer());
  }
}

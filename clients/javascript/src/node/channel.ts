/** A client's connection to a server, on Node: HTTP/1.1 with TLS and certificates on both sides, one call at a time. */

import { fromBinary, toBinary } from "@bufbuild/protobuf";
import type { GenMessage } from "@bufbuild/protobuf/codegenv2";
import type { Message } from "@bufbuild/protobuf";
import { X509Certificate } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import { isIP } from "node:net";
import { join } from "node:path";

import { readAddress, written } from "../addresses.js";
import { type Assembly, hex } from "../artifacts.js";
import type { Channel } from "../client.js";
import { ClientError, GoneError, TransportError, WrongServerError } from "../errors.js";
import { checkAnswer, isLoopback, LONGEST_MESSAGE, TIMES } from "../http_answers.js";
import {
  type CheckInReply, CheckInReplySchema, type CheckInRequest, CheckInRequestSchema, type UploadHeader, UploadHeaderSchema, type UploadReply, UploadReplySchema,
} from "../messages_pb.js";

const FOREIGN = /^(UNABLE_TO_(VERIFY_LEAF_SIGNATURE|GET_ISSUER_CERT(_LOCALLY)?)|(DEPTH_ZERO_)?SELF_SIGNED_CERT(_IN_CHAIN)?|CERT_SIGNATURE_FAILURE|CERT_UNTRUSTED)$/;
const OTHERS_MAY_READ = 0o077, CLAIMED = /^[!-~][ -~]{0,127}$/;

interface Credentials { ca: Buffer; cert: Buffer; key: Buffer }
interface Request { method: string; path: string; fields?: Record<string, string | number>; body?: Uint8Array; beforeBytes?: () => Promise<void> }

export class NodeChannel implements Channel {
  readonly name: string;
  private readonly host: string;
  private readonly port: number;
  private readonly agent: http.Agent;
  private readonly encrypted: boolean;
  private readonly claimed: Record<string, string>;

  /**
   * Prepare to dial; raises ClientError where the address or a credential is none, or others would hear plain text.
   *
   * @param address host and port
   * @param folder of `ca.pem`, `client.pem` and `client.key`; undefined for plain text, on loopback alone
   * @param name what the client calls itself where it has no certificate
   * @param times how long the server may take
   */
  constructor(address: string, folder?: string, name?: string, private readonly times = TIMES) {
    ({ host: this.host, port: this.port } = readAddress(address));
    this.encrypted = folder !== undefined;
    if (folder === undefined && !(name && isLoopback(this.host)))
      throw new ClientError("without --credentials a client needs a --name, and speaks to a server on loopback alone (127.0.0.1)");
    const credentials = folder === undefined ? undefined : readCredentials(folder);
    if (!credentials && !CLAIMED.test(name!)) throw new ClientError(`--name ${name} is not a name of 1 to 128 printable characters of ASCII`);
    this.claimed = credentials ? {} : { "fedlm-client": name! };
    this.name = credentials ? nameIn(credentials.cert, folder!) : name!;
    const kept = { keepAlive: true, maxSockets: 1 };
    this.agent = credentials ? new https.Agent({ ...kept, ...credentials, minVersion: "TLSv1.2", ...(isIP(this.host) ? {} : { servername: this.host }) }) : new http.Agent(kept);
  }

  async checkIn(request: CheckInRequest): Promise<CheckInReply> {
    const body = toBinary(CheckInRequestSchema, request);
    return this.message(CheckInReplySchema, { method: "POST", path: "/check-in", body, fields: { "Content-Type": "application/x-protobuf", "Content-Length": body.length } });
  }

  async download(assembly: Assembly): Promise<void> {
    assembly.begin();
    const path = `/artifacts/${hex(assembly.digest)}?first_chunk=${assembly.nextChunk}`;
    await this.exchange({ method: "GET", path }, this.times.transferSeconds, async (answer) => {
      for await (const piece of answer) await assembly.add(piece as Uint8Array);
    });
    if (!assembly.complete) throw new TransportError("a download ended before its last chunk");
  }

  async upload(header: UploadHeader, body: Uint8Array, beforeBytes: () => Promise<void>): Promise<UploadReply> {
    const encoded = Buffer.from(toBinary(UploadHeaderSchema, header)).toString("base64");
    const fields = { "fedlm-upload": encoded, "Content-Length": body.length };
    if (!body.length) return this.message(UploadReplySchema, { method: header.asks ? "POST" : "PUT", path: "/upload", fields });
    return this.message(UploadReplySchema, { method: "PUT", path: "/upload", fields: { ...fields, Expect: "100-continue" }, body, beforeBytes });
  }

  close(): void {
    this.agent.destroy();
  }

  private message<T extends Message>(schema: GenMessage<T>, request: Request): Promise<T> {
    return this.exchange(request, request.beforeBytes ? this.times.transferSeconds : this.times.answerSeconds, async (answer) => fromBinary(schema, await whole(answer)) as T);
  }

  /** Send a request, and read its answer while the connection lasts, for so many seconds at most. */
  private async exchange<T>(request: Request, seconds: number, read: (answer: http.IncomingMessage) => Promise<T>): Promise<T> {
    const late = new AbortController(), timer = setTimeout(() => late.abort(), 1000 * seconds);
    try {
      const { sent, answer } = await this.send(request, late.signal);
      try {
        const status = answer.statusCode ?? 0;
        if (status !== 200) checkAnswer(status, (await whole(answer)).toString());
        return await read(answer);
      } finally {
        // A connection on which something is left to be sent or read is not used again.
        if (!answer.complete || !sent.writableFinished) sent.destroy();
      }
    } catch (error) {
      if (isOurs(error)) throw error;
      const wrong = wrongServer(written(this.host, this.port), error as NodeJS.ErrnoException & { rawPacket?: Buffer });
      if (wrong) throw new WrongServerError(wrong);
      throw new TransportError(late.signal.aborted ? `the server took more than ${seconds} seconds` : said(error as NodeJS.ErrnoException));
    } finally {
      clearTimeout(timer);
    }
  }

  private send({ method, path, fields, body, beforeBytes }: Request, signal: AbortSignal): Promise<{ sent: http.ClientRequest; answer: http.IncomingMessage }> {
    return new Promise((resolve, reject) => {
      const { answerSeconds } = this.times, headers = { ...this.claimed, ...fields };
      const options = { host: this.host, port: this.port, method, path, agent: this.agent, timeout: 1000 * answerSeconds, headers, signal };
      const sent = (this.encrypted ? https : http).request(options);
      sent.on("timeout", () => sent.destroy(new TransportError(`nothing came for ${answerSeconds} seconds`)));
      sent.on("error", reject);
      // A request that waits for a connection says nothing when it is given up.
      signal.addEventListener("abort", () => reject(new Error("given up")), { once: true });
      sent.on("upgrade", (_, socket) => {
        socket.destroy();
        reject(new TransportError("the server changes to another protocol"));
      });
      sent.on("response", (answer) => {
        // An answer before the body was wanted: the body is never sent.
        if (!sent.writableEnded) answer.on("end", () => sent.destroy());
        resolve({ sent, answer });
      });
      if (!beforeBytes) return void sent.end(body);
      // Once: a server that says it again would have a round counted twice.
      sent.once("continue", () => {
        beforeBytes().then(() => sent.end(body), (error: Error) => {
          reject(error);
          sent.destroy();
        });
      });
      sent.flushHeaders();
    });
  }
}

function isOurs(error: unknown): boolean {
  return error instanceof TransportError || error instanceof ClientError || error instanceof GoneError;
}

/** Why a connection fails where it will fail again; null where trying again may help. */
function wrongServer(server: string, { code = "", rawPacket }: { code?: string; rawPacket?: Buffer }): string | null {
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") return `the server at ${server} has a certificate for other names; dial one that it has`;
  if (FOREIGN.test(code)) return `the server at ${server} has a certificate of an authority that this client does not trust (${code})`;
  if (/UNKNOWN_CA|CERTIFICATE_REQUIRED|BAD_CERTIFICATE/.test(code)) return `the server at ${server} does not trust this client's certificate (${code}); enrol with its authority`;
  if (/WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|PACKET_LENGTH_TOO_LONG/.test(code)) return `the program at ${server} does not speak TLS (${code}); dial the address at which the server has clients`;
  return rawPacket && rawPacket[0] === 0x15 && rawPacket[1] === 3 ? "the server speaks TLS at this port, and this client plain text; give --credentials" : null;
}

function said(error: NodeJS.ErrnoException): string {
  return `${error.code ?? error.name}: ${error.message.slice(0, 300)}`;
}

async function whole(answer: http.IncomingMessage): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let length = 0;
  for await (const piece of answer) {
    pieces.push(piece as Buffer);
    length += (piece as Buffer).length;
    if (length > LONGEST_MESSAGE) throw new TransportError(`the server sends more than ${LONGEST_MESSAGE} bytes where a message belongs`);
  }
  return Buffer.concat(pieces);
}

function readCredentials(folder: string): Credentials {
  try {
    const key = join(folder, "client.key");
    if (statSync(key).mode & OTHERS_MAY_READ) throw new ClientError(`${key}: others than its owner can read this private key; chmod 600 it`);
    return { ca: readFileSync(join(folder, "ca.pem")), cert: readFileSync(join(folder, "client.pem")), key: readFileSync(key) };
  } catch (error) {
    if (error instanceof ClientError) throw error;
    throw new ClientError(`${folder}: has no credentials that can be read (${(error as Error).message}); enrol this device again`);
  }
}

function nameIn(certificate: Buffer, folder: string): string {
  try {
    const found = new X509Certificate(certificate).subject.split("\n").filter((line) => line.startsWith("CN="));
    if (found.length === 1) return found[0]!.slice(3);
  } catch {
    // Said below.
  }
  throw new ClientError(`${join(folder, "client.pem")}: no certificate with a name can be read; enrol this device again`);
}

/** A client with a server in memory: plans that it runs, goes on with, and refuses. The folder in PLAN_PROGRAMS is written by tests/clients/test_javascript.py. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";

import { Client, type Settings } from "../src/client.js";
import { crc32 } from "../src/crc32.js";
import { ClientError, GoneError, PlanError, TransportError, WrongServerError } from "../src/errors.js";
import { LIMITS } from "../src/limits.js";
import type { Manifest } from "../src/manifest.js";
import { RoundConfigurationSchema, UploadHeader_Outcome as Outcome, type UploadReply, UploadReply_Status, UploadReplySchema } from "../src/messages_pb.js";
import { TextFile } from "../src/node/files.js";
import { startThread } from "../src/node/thread.js";
import { OwnParticipation, type RecordStore } from "../src/own_participation.js";
import { readPublicKeys } from "../src/signature.js";
import { WordPiece } from "../src/tokenizer.js";
import { type Thread, Trainer } from "../src/trainer.js";
import type { Answer } from "../src/training.js";
import { MemoryServer, type Offer } from "./server.js";

interface Case { name: string; error: string; offer: Record<keyof Offer, string> }
const folder = process.env["PLAN_PROGRAMS"] ?? "";
const { keys: pem, honest, hostile } = JSON.parse(readFileSync(join(folder, "plans.json"), "utf8")) as {
  keys: string; honest: Case; hostile: Case[];
};
const keys = await readPublicKeys(pem, "plan.pub");

class MemoryRecord implements RecordStore {
  readonly name = "record";
  kept: string | null = null;
  async read(): Promise<string | null> {
    return this.kept;
  }
  async write(text: string): Promise<void> {
    this.kept = text;
  }
}

function offer({ offer: given }: Case): Offer {
  return Object.fromEntries(Object.entries<string>(given).map(([name, value]) => [name, new Uint8Array(Buffer.from(value, "base64"))])) as unknown as Offer;
}

async function run(
  server: MemoryServer, record = new MemoryRecord(), texts = ["the cat sat", "on a mat", "the the"], more: Partial<Settings> = {},
): Promise<string[]> {
  const said: string[] = [], text = { version: async () => "1", texts: async () => texts };
  const settings: Settings = { text, keys, startThread, limits: { ...LIMITS, firstBackoff: 0.01 }, notice: (words) => said.push(words), ...more };
  await new Client(server, settings, new OwnParticipation(record)).run();
  return said;
}

test("it trains, uploads with a checksum, and counts its rounds", async () => {
  const server = new MemoryServer(offer(honest), 3), record = new MemoryRecord(), said = await run(server, record);
  assert.deepEqual(server.uploads.map(({ header }) => header.outcome), [Outcome.TRAINED, Outcome.TRAINED, Outcome.NOT_ALLOWED]);
  assert.match(said.join("\n"), /round 2: it does not take part, since it has taken part 2 times/);
  const { header, body } = server.uploads[0]!;
  assert.equal(new DataView(body.buffer, body.byteOffset).getUint32(body.length - 4, true), crc32(body.subarray(0, -4)));
  assert.deepEqual([header.size, header.numExamples, new TextDecoder().decode(body.subarray(0, 4))], [BigInt(body.length), 3n, "FLU2"]);
  assert.ok(header.loss > 0 && header.tokens > 0);
  assert.equal(server.uploads[2]!.body.length, 0);
  assert.deepEqual(Object.keys(JSON.parse(record.kept!).populations.people.taken), ["0", "1"]);
});

test("a model that broke off on the way is fetched from its first missing chunk on", async () => {
  const server = new MemoryServer(offer(honest));
  await run(server); // fetches and keeps everything in no pieces
  const broken = new MemoryServer(offer(honest));
  broken.breaks = 1;
  await run(broken);
  assert.equal(broken.uploads.length, 1);
  const whole = offer(honest);
  // What breaks first is the manifest, which begins anew; models are kept.
  assert.ok(broken.asked.length > server.asked.length);
  class LateServer extends MemoryServer {
    override async download(assembly: Parameters<MemoryServer["download"]>[0]): Promise<void> {
      this.breaks = assembly.content.length === whole.parameters.length && assembly.nextChunk === 0 ? 1 : 0;
      await super.download(assembly);
    }
  }
  const late = new LateServer(whole);
  await run(late);
  assert.deepEqual([late.uploads.length, late.asked.includes(1)], [1, true]);
});

test("an upload goes on with the byte that the server lacks", async () => {
  class BreakingServer extends MemoryServer {
    override async upload(header: Parameters<MemoryServer["upload"]>[0], body: Uint8Array, before: () => Promise<void>): Promise<UploadReply> {
      if (header.asks) return create(UploadReplySchema, { status: UploadReply_Status.DAMAGED, received: 100n });
      const reply = await super.upload({ ...header }, body, before);
      if (this.uploads.length === 1) throw new TransportError("the connection was lost");
      return reply;
    }
  }
  const server = new BreakingServer(offer(honest));
  await run(server);
  const [first, again] = server.uploads;
  assert.deepEqual([again!.header.uploadId, again!.header.offset, again!.body], [first!.header.uploadId, 100n, first!.body.subarray(100)]);
});

test("a plan learns no more by how training ends than the count allows", async () => {
  class CuriousServer extends MemoryServer {
    override async upload(header: Parameters<MemoryServer["upload"]>[0], body: Uint8Array): Promise<UploadReply> {
      this.uploads.push({ header, body });
      return create(UploadReplySchema, { status: UploadReply_Status.LATE });
    }
  }
  for (const [maxTrainingSeconds, outcome] of [[1e-9, Outcome.TOO_SLOW], [60, Outcome.TRAINED]] as const) {
    const server = new CuriousServer(offer(honest), 6), text = { version: async () => "1", texts: async () => ["the cat sat"] };
    const settings: Settings = { text, keys, startThread, limits: { ...LIMITS, maxTrainingSeconds }, notice: () => {} };
    await new Client(server, settings, new OwnParticipation(new MemoryRecord())).run();
    assert.deepEqual(server.uploads.map(({ header }) => header.outcome), [...new Array(4).fill(outcome), Outcome.NOT_ALLOWED, Outcome.NOT_ALLOWED]);
  }
});

test("text is cut into tokens in rounds that are counted alone", async (context) => {
  const record = new MemoryRecord(), counts: number[] = [], encode = WordPiece.prototype.encode;
  context.mock.method(WordPiece.prototype, "encode", function (this: WordPiece, text: string): number[] {
    counts.push(JSON.parse(record.kept!).populations.people.told.length);
    return encode.call(this, text);
  });
  await run(new MemoryServer(offer(honest)), record);
  assert.deepEqual(counts, [1, 1, 1]);
});

for (const [part, asked] of Object.entries({ model: 1, tokenizer: 2, parameters: 3 }))
  test(`a ${part} of another size than the plan says is not even downloaded`, async () => {
    const offered = offer(honest), server = new MemoryServer({ ...offered, [part]: new Uint8Array(offered[part as keyof Offer].length + 1) });
    await assert.rejects(run(server), PlanError);
    assert.equal(server.asked.length, asked);
  });

test("another plan is another training", async () => {
  const record = new OwnParticipation(new MemoryRecord()), digest = (text: string) => new TextEncoder().encode(text);
  const asked = (plan: string) => create(RoundConfigurationSchema, {
    population: "people", participation: { rounds: 8, maxParticipations: 1, minSeparation: 1 }, plan: { manifest: { digest: digest(plan) } },
  });
  for (const number of [0, 1, 2, 3]) {
    assert.equal(await record.may(asked(`plan ${number}`), "1"), "");
    await record.tell(asked(`plan ${number}`), "1");
  }
  assert.match(await record.may(asked("plan 4"), "1"), /has reported on 4 trainings/);
  await record.take(asked("plan 0"), "1");
  assert.equal(await record.may(asked("plan 0"), "1"), "");
  assert.match(await record.may(asked("plan 1"), "1"), /less than 1 rounds away|has taken part 1 times/);
});

test("rounds of all runs of a population count by one numbering", async () => {
  const record = new OwnParticipation(new MemoryRecord());
  const asked = (roundNumber: number, firstRound: number) => create(RoundConfigurationSchema, { population: "people", participation: { rounds: 8, minSeparation: 3, firstRound }, roundNumber });
  await record.take(asked(1, 0), "1");
  assert.match(await record.may(asked(0, 3), "1"), /less than 3 rounds away/);
  assert.equal(await record.may(asked(1, 3), "1"), "");
});

test("a thread that answers what is no answer is ended", async () => {
  let ended = 0;
  const thread: Thread = { post: () => queueMicrotask(() => taken(5 as unknown as Answer)), answers: (given) => void (taken = given), end: () => void ended++ };
  let taken: (answer: Answer) => void = () => {};
  await assert.rejects(Trainer.load(() => thread, { loadSeconds: 60, callSeconds: 60 } as Manifest, new Uint8Array(), new Uint8Array()), /gave an answer to no question/);
  assert.equal(ended, 1);
});

test("a device whose text has no example says so", async () => {
  for (const texts of [[], ["", " \u2003"], ["half \ud800"], ["\u200b"]]) {
    const server = new MemoryServer(offer(honest)), said = await run(server, new MemoryRecord(), texts);
    assert.deepEqual(server.uploads.map(({ header }) => [header.outcome, header.size]), [[Outcome.NO_EXAMPLES, 0n]]);
    assert.match(said.at(-1)!, /round 0: it declined, since it has no text to train on; the server's answer: /);
  }
});

test("a download that is too large is refused for good", async () => {
  const limits = { ...LIMITS, largestDownload: 10 };
  await assert.rejects(run(new MemoryServer(offer(honest)), undefined, undefined, { limits }), /takes 10 at most; its owner may allow more with --largest-download/);
});

test("failures wait longer and longer, after a check-in too, and a server that is not there yet is tried soon", async (context) => {
  const waits: number[] = [];
  let now = 0;
  context.mock.method(Math, "random", () => 0.5);
  context.mock.method(performance, "now", () => now);
  context.mock.method(Client.prototype as unknown as { sleep(seconds: number): Promise<void> }, "sleep", async (seconds: number) => {
    waits.push(seconds);
    now += 1000 * seconds;
  });
  const faults = (server: MemoryServer, call: "checkIn" | "download", number: number, error: Error): MemoryServer => {
    const original = server[call].bind(server) as (given: never) => Promise<never>;
    return Object.assign(server, { [call]: async (given: never) => (number-- > 0 ? Promise.reject(error) : original(given)) });
  };
  await run(faults(new MemoryServer(offer(honest), 9), "download", 6, new TransportError("broken")), undefined, undefined, { limits: LIMITS });
  assert.deepEqual(waits.splice(0).slice(0, 6), [0.5, 1, 2, 4, 8, 16]);
  await run(faults(new MemoryServer(offer(honest), 0), "checkIn", 46, new TransportError("down")), undefined, undefined, { limits: LIMITS });
  assert.deepEqual([Math.max(...waits.slice(0, 40)), waits[45]], [3, 60]);
  await assert.rejects(run(faults(new MemoryServer(offer(honest)), "checkIn", 1, new WrongServerError("another authority"))), /another authority/);
  await assert.rejects(run(faults(new MemoryServer(offer(honest)), "checkIn", 1, new GoneError("404"))), (error) => error instanceof WrongServerError && /does not know check-ins \(404\)/.test(error.message));
});

for (const one of hostile) {
  test(`a plan is refused: ${one.name}`, async () => {
    const server = new MemoryServer(offer(one));
    await assert.rejects(run(server), (error) => error instanceof ClientError && new RegExp(one.error).test(error.message));
    assert.equal(server.uploads.length, 0);
  });
}

test("a plan of participation that allows more than the first, another population and a record that is none are refused", async () => {
  const kept = (plan: unknown, name = "people"): MemoryRecord => Object.assign(new MemoryRecord(), { kept: JSON.stringify({ populations: { [name]: { plan, taken: {}, told: [] } } }) });
  for (const plan of [[99, 2, 1], [100, 1, 1], [100, 2, 2]]) await assert.rejects(run(new MemoryServer(offer(honest)), kept(plan)), /allows more than/);
  await assert.rejects(run(new MemoryServer(offer(honest)), kept([100, 2, 1], "others")), /population "people"/);
  await assert.rejects(run(new MemoryServer(offer(honest)), Object.assign(new MemoryRecord(), { kept: "{}" })), /not a record/);
});

test("once a plan was shown no round without one is taken, whatever the owner accepts", async () => {
  const record = new MemoryRecord(), uncounted = create(RoundConfigurationSchema, { population: "others" });
  assert.equal(await new OwnParticipation(record).may(uncounted, "text"), "");
  await run(new MemoryServer(offer(honest)), record);
  for (const accept of [false, true]) await assert.rejects(new OwnParticipation(record, accept).may(uncounted, "text"), /promises nothing .* but one did before/);
});

test("parts of a record that clients in Python keep stay", async () => {
  const record = Object.assign(new MemoryRecord(), { kept: JSON.stringify({ populations: {}, log: { size: 7 } }) });
  await run(new MemoryServer(offer(honest)), record);
  assert.deepEqual(JSON.parse(record.kept!).log, { size: 7 });
  assert.ok(JSON.parse(record.kept!).populations.people);
});

test("text that is missing or cannot be read is said", async () => {
  await assert.rejects(new TextFile("/nowhere").version(), /nowhere: cannot be read/);
  await assert.rejects(new TextFile("/").texts(), (error) => error instanceof ClientError && /cannot be read/.test(error.message));
});

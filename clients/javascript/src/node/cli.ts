#!/usr/bin/env node
/** `fedlm-js-client`: take part in a deployment by plans, on Node. */

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

import { Client, printable, VERSION } from "../client.js";
import { ClientError } from "../errors.js";
import { checkLimits, type Limits, LIMITS, optionOf } from "../limits.js";
import { OwnParticipation } from "../own_participation.js";
import { readPublicKeys } from "../signature.js";
import { NodeChannel } from "./channel.js";
import { RecordFile, TextFile } from "./files.js";
import { startThread } from "./thread.js";

const USER_ERROR = 2, DEFECT = 1, INTERRUPTED = 130;
const WORDS = {
  server: "host:port of the server",
  data: 'file of this device\'s text, lines of {"text": "..."}; it never leaves',
  "plan-key": "public key of whose plans to run: plan.pub of fedlm keys plan",
  credentials: "folder with ca.pem, client.pem and client.key, of fedlm keys enrol or fedlm keys client",
  name: "name of this client with --insecure",
  record: "file that counts this device's rounds; beside its text otherwise",
};
const SWITCHES = {
  insecure: "plain text without credentials, to a server on loopback alone",
  "accept-plan": "accept the plan of participation that the server shows now",
  "require-plan": "take part only where the server shows one",
  help: "show this",
};
const MEANINGS: Record<keyof Limits, string> = {
  memoryBytes: "of the runtime and its tensors", loadSeconds: "of a plan's model", callSeconds: "of one call of the model, as a local step is",
  planBytes: "of a plan's model, and of its manifest", largestDownload: "bytes of the parameters or a tokenizer", maxBatches: "local steps in a round, whatever the plan says",
  maxTrainingSeconds: "of a round's training", firstBackoff: "seconds, about the first wait after a failure", longestBackoff: "seconds, about the longest",
};

function help(): string {
  const line = (name: string, words: string): string => `  --${name.padEnd(24)}${words}`;
  return [
    `fedlm-js-client ${VERSION}: takes part in a deployment of fedlm by plans, which it checks and runs itself, until the run is over.`,
    "",
    "  fedlm-js-client run --server fl.example.org:8470 --credentials credentials --plan-key plan.pub --data mine.jsonl",
    "  fedlm-js-client run --server 127.0.0.1:8470 --insecure --name ann --plan-key plan.pub --data mine.jsonl",
    "",
    ...Object.entries(WORDS).map(([name, words]) => line(name, words)),
    ...Object.entries(SWITCHES).map(([name, words]) => line(name, words)),
    "",
    "What the owner of the device allows:",
    ...Object.entries(MEANINGS).map(([name, words]) => line(optionOf(name), `${words}; ${LIMITS[name as keyof Limits]} where not given`)),
    "",
    "It ends with 0 when the run, or its part in it, is over; with 2 where its owner must do something.",
  ].join("\n");
}

async function run(words: string[]): Promise<void> {
  const texts = [...Object.keys(WORDS), ...Object.keys(LIMITS).map(optionOf)].map((name) => [name, { type: "string" }] as const);
  const switches = Object.keys(SWITCHES).map((name) => [name, { type: "boolean" }] as const);
  let values: Record<string, string | boolean | undefined>, positionals: string[];
  try {
    const found = parseArgs({ args: words, options: Object.fromEntries<{ type: "string" | "boolean" }>([...texts, ...switches]), allowPositionals: true });
    values = found.values as typeof values;
    positionals = found.positionals;
  } catch (error) {
    throw new ClientError(`${(error as Error).message.split(/\.\s/)[0]}; see fedlm-js-client --help`);
  }
  if (values["help"] || !words.length) return console.log(help());
  if (positionals.join() !== "run") throw new ClientError(`the command is run, and not ${positionals.join(" ") || "left out"}; see fedlm-js-client --help`);
  const given = (name: string): string | undefined => values[name] as string | undefined;
  const needed = (name: keyof typeof WORDS): string => {
    const found = given(name);
    if (!found) throw new ClientError(`--${name} is missing: ${WORDS[name]}`);
    return found;
  };
  if (Boolean(values["insecure"]) === (given("credentials") !== undefined))
    throw new ClientError("give --credentials, or --insecure and --name to speak plain text on loopback");
  const limits = checkLimits(Object.fromEntries(Object.entries(LIMITS).map(([name, value]) => [name, Number(given(optionOf(name)) ?? value)])) as unknown as Limits);
  const channel = new NodeChannel(needed("server"), given("credentials"), given("name")), data = needed("data");
  const notice = (said: string): void => console.error(`fedlm-js-client ${channel.name}: ${said}`);
  const settings = { text: new TextFile(data), keys: await keysIn(needed("plan-key")), startThread, limits, notice };
  const record = new RecordFile(given("record") ?? `${data}.participation.json`);
  if (!record.holdAlone()) notice("this system has no flock, so nothing keeps a second client from this one's record; start none");
  await new Client(channel, settings, new OwnParticipation(record, Boolean(values["accept-plan"]), Boolean(values["require-plan"]))).run();
}

async function keysIn(path: string): Promise<CryptoKey[]> {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    throw new ClientError(`${path}: no key for plans can be read (${(error as Error).message}); ask the server's operator for plan.pub`);
  }
  return readPublicKeys(text, path);
}

process.on("SIGINT", () => process.exit(INTERRUPTED));
run(process.argv.slice(2)).then(
  () => process.exit(0),
  (error: Error) => {
    const ours = error instanceof ClientError;
    console.error(`fedlm-js-client: ${ours ? printable(error.message) : `${error.name}: ${error.message} (a defect of this client; please report it)`}`);
    process.exit(ours ? USER_ERROR : DEFECT);
  },
);

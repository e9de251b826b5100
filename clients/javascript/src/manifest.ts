/** The manifest of a plan, of which nothing is believed before it was checked; docs/protocol.md describes it. */

import { hex, sha256 } from "./artifacts.js";
import type { Batches } from "./batches.js";
import { PlanError } from "./errors.js";
import { type Limits, optionOf } from "./limits.js";
import { bytesOf, count, type Dtype, DTYPES, type Type } from "./tensors.js";
import { CUTS, type ExampleCut } from "./text_examples.js";

export interface Argument extends Type { name: string; role: string; index: number }
export interface Signature { inputs: Argument[]; outputs: Argument[] } // a function of the model
export interface Place extends Type { name: string; begins: number | null } // the tensor of the download that one of the state begins as
export interface Manifest {
  digest: string; // SHA-256 in hex
  about: string; // what the server says of it, for people
  model: string; // SHA-256 in hex
  modelBytes: number;
  train: Signature;
  finish: Signature;
  download: Place[];
  state: Place[];
  header: Uint8Array; // of an upload
  uploadBytes: number;
  examples: ExampleCut; // what makes an example of a text
  batches: Batches;
  tokenizer: string; // SHA-256 in hex
  tokenizerBytes: number;
  memoryBytes: number;
  loadSeconds: number;
  callSeconds: number;
}

export const SUMS = 3;
const FORMAT = "fedlm-plan", VERSION = 1, SHUFFLE = "threefry-sort", SHUFFLE_VERSION = 1, MOST_ARGUMENTS = 100_000, CHECKSUM_BYTES = 4, HEADER_BYTES = 8;
const MOST_DIMENSIONS = 64, TOKENS = 2 ** 31, LARGEST_BATCH = 1 << 22;
type Found = Record<string, unknown>;

/** Read a manifest, and check that its parts fit each other; raises PlanError. */
export async function readManifest(content: Uint8Array): Promise<Manifest> {
  let found: Found;
  try {
    found = record(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content)));
  } catch (error) {
    throw new PlanError(`the plan's manifest cannot be read (${(error as Error).message.slice(0, 200)})`);
  }
  if (found["format"] !== FORMAT || found["version"] !== VERSION)
    throw new PlanError(`the plan is a ${shown(found["format"])} of version ${shown(found["version"])}, but this client reads ${FORMAT} ${VERSION}; update the older of the two`);
  const shuffle = record(found["shuffle"]);
  if (shuffle["name"] !== SHUFFLE || shuffle["version"] !== SHUFFLE_VERSION || Object.keys(shuffle).length !== 2)
    throw new PlanError(`the plan shuffles by ${shown(shuffle)}, but this client knows ${SHUFFLE} ${SHUFFLE_VERSION} alone`);
  const model = record(found["model"]), signatures = record(found["signatures"]), upload = record(found["upload"]), limits = record(found["limits"]);
  const manifest: Manifest = {
    digest: hex(await sha256(content)),
    about: shown(found["about"]),
    model: text(model["sha256"]),
    modelBytes: whole(model["bytes"], 1),
    train: signature(signatures["train"]),
    finish: signature(signatures["finish"]),
    download: list(record(found["download"])["tensors"]).map((one) => place(one, false)),
    state: list(found["state"]).map((one) => place(one, true)),
    header: unhex(text(upload["header"])),
    uploadBytes: whole(upload["bytes"]),
    examples: cut(found["examples"]),
    batches: batches(record(found["batches"])),
    tokenizer: text(record(found["tokenizer"])["sha256"]),
    tokenizerBytes: whole(record(found["tokenizer"])["bytes"], 1),
    memoryBytes: whole(limits["memory_bytes"]),
    loadSeconds: number(limits["load_seconds"]),
    callSeconds: number(limits["call_seconds"]),
  };
  check(manifest);
  return manifest;
}

/** Refuse, with PlanError, a plan that says that it needs more than the owner allows. */
export function checkLimits(manifest: Manifest, limits: Limits): void {
  const { memoryBytes, loadSeconds, callSeconds, modelBytes: planBytes } = manifest;
  for (const [name, value] of Object.entries({ memoryBytes, loadSeconds, callSeconds, planBytes })) {
    const most = limits[name as keyof Limits];
    if (!(value > 0 && value <= most))
      throw new PlanError(`the plan's ${optionOf(name)} is ${value}, but this client allows ${most}; its owner may allow more with --${optionOf(name)}`);
  }
}

/** Refuse, with PlanError, another model than the one that the manifest names. */
export async function checkModel(manifest: Manifest, content: Uint8Array): Promise<void> {
  if (content.length !== manifest.modelBytes || hex(await sha256(content)) !== manifest.model) throw new PlanError("the plan's model is not the one that its manifest names");
}

/** Values of all tensors of the download together. */
export function downloadValues(manifest: Manifest): number {
  return manifest.download.reduce((sum, one) => sum + count(one.shape), 0);
}

function wrong(found: unknown, wanted: string): never {
  throw new PlanError(`the plan's manifest cannot be read: it has ${shown(found)} where ${wanted} belongs`);
}

function shown(found: unknown): string {
  return (JSON.stringify(found) ?? "nothing").slice(0, 200);
}

function record(found: unknown): Found {
  return typeof found === "object" && found !== null && !Array.isArray(found) ? (found as Found) : wrong(found, "an object");
}

function list(found: unknown): unknown[] {
  return Array.isArray(found) ? found : wrong(found, "a list");
}

function text(found: unknown): string {
  return typeof found === "string" ? found : wrong(found, "a text");
}

function number(found: unknown): number {
  return typeof found === "number" && Number.isFinite(found) ? found : wrong(found, "a number");
}

function whole(found: unknown, least = 0): number {
  return Number.isSafeInteger(found) && (found as number) >= least ? (found as number) : wrong(found, `a count of at least ${least}`);
}

function id(found: unknown): number {
  const one = whole(found);
  return one < TOKENS ? one : wrong(found, "the number of a token");
}

function unhex(found: string): Uint8Array {
  if (found.length % 2 || !/^[0-9a-fA-F]*$/.test(found)) wrong(found, "bytes in hex");
  return Uint8Array.from(found.match(/../g) ?? [], (one) => parseInt(one, 16));
}

function typeOf(found: Found): Type {
  const dtype = text(found["dtype"]);
  if (!DTYPES.includes(dtype)) throw new PlanError(`the plan has a tensor of ${shown(dtype)}, but only ${DTYPES.join(", ")} are known`);
  const shape = list(found["shape"]);
  if (shape.length > MOST_DIMENSIONS) throw new PlanError(`the plan has a tensor of ${shape.length} dimensions, but at most ${MOST_DIMENSIONS} are known`);
  return { shape: shape.map((one) => whole(one, 1)), dtype: dtype as Dtype };
}

function place(found: unknown, ofState: boolean): Place {
  const one = record(found);
  const begins = ofState && one["begins"] !== null ? whole(one["begins"]) : null;
  return { ...typeOf(one), name: text(one["name"]), begins };
}

function signature(found: unknown): Signature {
  const one = record(found);
  const [inputs, outputs] = ["inputs", "outputs"].map((side) => {
    const given = list(one[side]).map(record).map((each) => ({ ...typeOf(each), name: text(each["name"]), role: text(each["role"]), index: whole(each["index"]) }));
    if (!given.length || given.length > MOST_ARGUMENTS || new Set(given.map(({ name }) => name)).size !== given.length)
      throw new PlanError("a signature of the plan has no argument, no result, too many, or two of one name");
    return given;
  });
  return { inputs: inputs!, outputs: outputs! };
}

function cut(found: unknown): ExampleCut {
  const known = CUTS.find((one) => one === found);
  if (!known) throw new PlanError(`the plan's examples are ${shown(found)}, but this client knows ${CUTS.join(" and ")}`);
  return known;
}

function batches(found: Found): Batches {
  const order = found["cap_order"], across = found["batches_across_epochs"], most = found["max_examples"];
  if ((order !== "shuffle_then_cap" && order !== "cap_then_shuffle") || typeof across !== "boolean")
    throw new PlanError(`the plan's batches have the cap_order ${shown(order)}, which this client does not know`);
  const length = whole(found["length"], 1), size = whole(found["batch_size"], 1);
  if (size * (length + 1) > LARGEST_BATCH)
    throw new PlanError(`the plan's batches have ${size} rows of ${length + 1} tokens, but this client makes batches of at most ${LARGEST_BATCH} tokens`);
  return {
    length, batch_size: size, epochs: whole(found["epochs"], 1), max_batches: whole(found["max_batches"], 1),
    pad: id(found["pad"]), bos: id(found["bos"]), eos: id(found["eos"]), oov: id(found["oov"]),
    max_examples: most === null ? null : whole(most, 1), cap_order: order, batches_across_epochs: across,
  };
}

const key = (role: string, index: number): string => `${role} ${index}`;
const scalar = (dtype: Dtype): Type => ({ shape: [], dtype });

export function sameType(a: Type | undefined, b: Type | undefined): boolean {
  return !!a && !!b && a.dtype === b.dtype && a.shape.length === b.shape.length && a.shape.every((one, axis) => one === b.shape[axis]);
}

/** Refuse signatures whose arguments are not those that a client of this version has to give them. */
function check(manifest: Manifest): void {
  const { batch_size, length } = manifest.batches;
  const state = manifest.state.map((one, index): [string, Type] => [key("state", index), one]);
  const download = manifest.download.map((one, index): [string, Type] => [key("download", index), one]);
  const sums = Array.from({ length: SUMS }, (_, index): [string, Type] => [key("sums", index), scalar("float32")]);
  const rows: [string, Type][] = [
    [key("tokens", 0), { shape: [batch_size, length + 1], dtype: "int32" }],
    [key("weight", 0), { shape: [batch_size], dtype: "float32" }],
    [key("random", 0), { shape: [batch_size, 2], dtype: "int32" }],
    [key("learning_rate", 0), scalar("float32")],
  ];
  const names = ["seed", "round_number", "client_index"].map((name): [string, Type] => [key(name, 0), scalar("int32")]);
  checkSide("train takes", manifest.train.inputs, [...state, ...download, ...sums, ...rows]);
  checkSide("train gives", manifest.train.outputs, [...state, ...sums], true);
  checkSide("finish takes", manifest.finish.inputs, [...state, ...download, ...names]);
  const pieces = manifest.finish.outputs.filter((one) => one.role === "upload").sort((a, b) => a.index - b.index);
  const sent = pieces.map((one, index): [string, Type] => [key("upload", index), one]);
  checkSide("finish gives", manifest.finish.outputs, [...sent, [key("finite", 0), scalar("int32")]], true);
  if (manifest.header.length !== HEADER_BYTES || new TextDecoder().decode(manifest.header.subarray(0, 4)) !== "FLU2")
    throw new PlanError("the plan's header of an upload is not an upload header");
  if (pieces.reduce((sum, one) => sum + bytesOf(one), 0) + HEADER_BYTES + CHECKSUM_BYTES !== manifest.uploadBytes)
    throw new PlanError("the plan's upload is not as long as what its signature finish gives");
  for (const one of manifest.state)
    if (one.begins !== null && !sameType(manifest.download[one.begins], one))
      throw new PlanError(`the plan's state ${shown(one.name)} begins as a tensor that the download does not have`);
  if (manifest.download.some((one) => one.dtype !== "float32")) throw new PlanError("the plan's download has a tensor that is not float32");
}

function checkSide(what: string, side: Argument[], expected: [string, Type][], every = false): void {
  const known = new Map(expected), found = new Set(side.map((one) => key(one.role, one.index)));
  if (found.size !== side.length || (every && (found.size !== known.size || [...known.keys()].some((one) => !found.has(one)))))
    throw new PlanError(`the plan's ${what} the wrong tensors`);
  for (const one of side)
    if (!sameType(known.get(key(one.role, one.index)), one))
      throw new PlanError(`the plan's ${what} ${one.role.slice(0, 40)} ${one.index} as ${one.dtype}[${one.shape}], which this client does not have`);
}

/** What runs the model of a plan: it has the plan, a model and batches of tokens, and no text, key or connection. */

import { PlanError } from "./errors.js";
import { type Manifest, readManifest, SUMS } from "./manifest.js";
import { bytesOf, count, type Tensor, zeros } from "./tensors.js";

export interface Step { tokens: Int32Array; weight: Float32Array; random: Uint32Array; learningRate: number }
export interface Finished { sums: number[]; finite: boolean; body: Uint8Array }
export type Question =
  | { ask: "load"; manifest: Uint8Array; model: Uint8Array }
  | { ask: "begin"; values: Float32Array }
  | ({ ask: "step" } & Step)
  | { ask: "finish"; seed: number; round: number; client: number };
export type Answer = { error: string } | { finished?: Finished };
/** A function of a plan's model, which makes its results of its arguments, both in the manifest's order. */
export type Run = (given: Tensor[]) => Promise<Tensor[]>;
export interface Runs { train: Run; finish: Run }
export type Load = (manifest: Manifest, model: Uint8Array) => Promise<Runs>;
type Given = Record<string, Tensor[]>;

/** A loaded plan, and where one round of it stands. */
export class Training {
  private have: Given = {};

  private constructor(private readonly manifest: Manifest, private readonly runs: Runs) {}

  /** Read a plan whose signature was checked, with a model that `load` reads; raises PlanError where that refuses them. */
  static async load(load: Load, described: Uint8Array, model: Uint8Array): Promise<Training> {
    const manifest = await readManifest(described), { memoryBytes } = manifest;
    const tensors = [...manifest.download, ...manifest.state].reduce((sum, one) => sum + bytesOf(one), 0);
    if (tensors > memoryBytes) throw new PlanError(`the plan's tensors take ${tensors} bytes, more memory than its ${memoryBytes}`);
    return new Training(manifest, await load(manifest, model));
  }

  /** Take the server's tensors, end to end. */
  begin(values: Float32Array): void {
    let start = 0;
    const download = this.manifest.download.map(({ shape }): Tensor => ({ shape, dtype: "float32", data: values.slice(start, (start += count(shape))) }));
    const state = this.manifest.state.map(({ shape, dtype, begins }) => (begins === null ? zeros({ shape, dtype }) : download[begins]!));
    this.have = { download, state, sums: Array.from({ length: SUMS }, () => zeros({ shape: [], dtype: "float32" })) };
  }

  /** Take a local step. */
  async step({ tokens, weight, random, learningRate }: Step): Promise<void> {
    const { batch_size, length } = this.manifest.batches;
    Object.assign(this.have, await this.call("train", {
      tokens: [{ shape: [batch_size, length + 1], dtype: "int32", data: tokens }],
      weight: [{ shape: [batch_size], dtype: "float32", data: weight }],
      random: [{ shape: [batch_size, 2], dtype: "int32", data: new Int32Array(random.buffer, random.byteOffset, random.length) }],
      learning_rate: [{ shape: [], dtype: "float32", data: Float32Array.of(learningRate) }],
    }));
  }

  /** Make sums, whether all is finite, and what of an upload lies between its header and its checksum. */
  async finish(seed: number, round: number, client: number): Promise<Finished> {
    const word = (value: number): Tensor[] => [{ shape: [], dtype: "int32", data: Int32Array.of(value) }];
    const stream = { seed: word(seed), round_number: word(round), client_index: word(client) };
    const { upload, finite } = (await this.call("finish", stream)) as { upload: Tensor[]; finite: Tensor[] };
    const sums = this.have["sums"]!.map((one) => Number(one.data[0])), body = new Uint8Array(upload.reduce((sum, one) => sum + bytesOf(one), 0));
    let start = 0;
    for (const { data } of upload) {
      body.set(littleEndian(data as Float32Array), start);
      start += data.byteLength;
    }
    const whole = finite[0]!.data[0] !== 0 && sums.every(Number.isFinite);
    if (whole && Math.min(...sums) < 0) throw new PlanError("the plan's model made sums below 0 of losses, tokens or norms");
    return { sums, finite: whole, body };
  }

  private async call(name: "train" | "finish", given: Given): Promise<Given> {
    const have = { ...this.have, ...given }, described = this.manifest[name], made: Given = {};
    const results = await this.runs[name](described.inputs.map((one) => have[one.role]![one.index]!));
    described.outputs.forEach((one, place) => ((made[one.role] ??= [])[one.index] = results[place]!));
    return made;
  }
}

/** Answers questions one after another, in a thread of its own. */
export class Answering {
  private training: Training | null = null;

  constructor(private readonly load: Load) {}

  async answer(question: Question): Promise<Answer> {
    try {
      if (question.ask === "load") this.training = await Training.load(this.load, question.manifest, question.model);
      else if (!this.training) throw new PlanError("no plan is loaded");
      else if (question.ask === "begin") this.training.begin(question.values);
      else if (question.ask === "step") await this.training.step(question);
      else return { finished: await this.training.finish(question.seed, question.round, question.client) };
      return {};
    } catch (error) {
      if (error instanceof PlanError) return { error: error.message };
      const { name, message } = error as Error;
      return { error: name === "RangeError" ? "the plan's model needs more memory than it may have" : `the plan's model does not run (${name}: ${message.slice(0, 300)})` };
    }
  }
}

const LITTLE = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

function littleEndian(data: Float32Array): Uint8Array {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice(), size = data.BYTES_PER_ELEMENT;
  if (!LITTLE) for (let place = 0; place < bytes.length; place += size) bytes.subarray(place, place + size).reverse();
  return bytes;
}

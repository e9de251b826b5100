/** Runs a plan's model by LiteRT.js: C++ as WebAssembly, in a thread that has nothing else. */

import { loadAndCompile, loadLiteRt, type SignatureRunner, Tensor as ModelTensor, type TensorDetails } from "@litertjs/core";

import { PlanError } from "./errors.js";
import { type Argument, sameType, type Signature } from "./manifest.js";
import { count, type Tensor, type Type } from "./tensors.js";
import type { Load, Run } from "./training.js";

/** The script that LiteRT.js has itself load, with the WebAssembly that is given to it here. */
const SCRIPT = "litert_wasm.js", PAGE = 65536;

/** Load models by the runtime's WebAssembly; its memory grows to what the plan may have. The thread is confined before it reads a model. */
export function litert(wasm: () => Uint8Array, confine: () => void): Load {
  return async (manifest, content) => {
    const calls = new Calls(manifest.memoryBytes);
    await calls.start(wasm());
    confine();
    const { signatures } = await calls.made(() => loadAndCompile(content, { accelerator: "wasm" }));
    const train = functionOf(signatures["train"], manifest.train), finish = functionOf(signatures["finish"], manifest.finish);
    return { train: (given) => calls.made(() => train(given)), finish: (given) => calls.made(() => finish(given)) };
  };
}

/** Calls of the runtime, which gives results of a model that failed, too, and only writes that it did. */
class Calls {
  private refused: RangeError | null = null;
  private errors: string[] = [];

  /** Let WebAssembly, which asks for memory through one function, have no more than so many bytes. */
  constructor(memoryBytes: number) {
    const { grow } = WebAssembly.Memory.prototype, calls = this;
    WebAssembly.Memory.prototype.grow = function (pages: number): number {
      calls.refused = this.buffer.byteLength + pages * PAGE > memoryBytes ? new RangeError("more memory than the plan may have") : null;
      if (calls.refused) throw calls.refused;
      return grow.call(this, pages);
    };
  }

  async start(wasmBinary: Uint8Array): Promise<void> {
    const printErr = (line: string): void => void (line.startsWith("ERROR") && this.errors.push(line));
    try {
      Object.assign(globalThis, { Module: { wasmBinary, printErr } });
      await loadLiteRt(SCRIPT);
    } catch (error) {
      throw new PlanError(`LiteRT.js does not start here (${(error as Error).message.slice(0, 200)})`);
    }
  }

  /** Make a call; raises PlanError, or RangeError for want of memory, where the runtime wrote that it failed. */
  async made<T>(call: () => Promise<T>): Promise<T> {
    this.errors = [];
    try {
      const made = await call();
      if (!this.errors.length) return made;
      throw new PlanError(`the plan's model does not run (${this.errors[0]!.slice(0, 200)})`);
    } catch (error) {
      throw this.refused ?? error;
    }
  }
}

/** Make a function of a signature; raises PlanError where it takes or gives other tensors than the manifest says. */
function functionOf(runner: SignatureRunner | undefined, { inputs, outputs }: Signature): Run {
  if (!runner) throw new PlanError("the plan's model lacks one of the signatures train and finish");
  check("takes", inputs, runner.getInputDetails());
  check("gives", outputs, runner.getOutputDetails());
  return async (given) => {
    const tensors: Record<string, ModelTensor> = {};
    let made: Record<string, ModelTensor> = {};
    try {
      inputs.forEach(({ name, shape }, place) => (tensors[name] = new ModelTensor(given[place]!.data as Float32Array, shape)));
      made = await runner.run(tensors);
      return await Promise.all(outputs.map((one) => result(one, made[one.name])));
    } finally {
      for (const one of [...Object.values(tensors), ...Object.values(made)]) one.delete();
    }
  };
}

function check(what: string, expected: Argument[], found: readonly TensorDetails[]): void {
  const types = new Map(found.map(({ name, dtype, shape }) => [name, { dtype, shape: [...shape] } as Type]));
  for (const one of expected) {
    const type = types.get(one.name);
    if (!sameType(type, one))
      throw new PlanError(`the plan's model ${what} ${one.name.slice(0, 80)} as ${type ? `${type.dtype}[${type.shape}]` : "no tensor"}, but its manifest as ${one.dtype}[${one.shape}]`);
  }
  if (found.length !== expected.length || types.size !== expected.length) throw new PlanError(`the plan's model ${what} other tensors than its manifest says`);
}

/** Copy a result out of memory that the next call writes over. */
async function result(expected: Argument, made: ModelTensor | undefined): Promise<Tensor> {
  const { dtype, layout } = made!.type, data = (await made!.data()).slice(), found = { dtype, shape: [...layout.dimensions], data } as Tensor;
  if (!sameType(found, expected) || data.length !== count(expected.shape)) throw new PlanError(`the plan's model made ${expected.name.slice(0, 80)} of another shape than it says`);
  return found;
}

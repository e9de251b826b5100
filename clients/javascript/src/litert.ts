/** Runs a plan's programs as the signatures of a model of LiteRT, by LiteRT.js: C++ as WebAssembly, in a thread that has nothing else. */

import { loadAndCompile, loadLiteRt, type SignatureRunner, Tensor as ModelTensor, type TensorDetails } from "@litertjs/core";

import { PlanError } from "./errors.js";
import { type Argument, type Manifest, type Program, sameType } from "./manifest.js";
import { bitcast, count, type Tensor, type Type } from "./program.js";
import { modelName, modelType } from "./served_model.js";
import type { Load, Runner } from "./training.js";

/** The script that LiteRT.js has itself load, with the WebAssembly that is given to it here. */
const SCRIPT = "litert_wasm.js", PAGE = 65536;

interface Named { name: string; type: Type; inside: Type } // a tensor of the plan, and what it is in the model

/** Load models by the runtime's WebAssembly; its memory grows to what the plan may have. The thread is confined before it reads a model. */
export function litert(wasm: () => Uint8Array, confine: () => void): Load {
  return async (manifest, content) => {
    const calls = new Calls(manifest.memoryBytes);
    await calls.start(wasm());
    confine();
    const { signatures } = await calls.made(() => loadAndCompile(content, { accelerator: "wasm" }));
    const step = new Signature(signatures["train"], manifest.step, manifest), finish = new Signature(signatures["finish"], manifest.finish, manifest);
    return { step: { run: (given) => calls.made(() => step.run(given)) }, finish: { run: (given) => calls.made(() => finish.run(given)) } };
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
      throw new PlanError(`LiteRT.js does not start here (${(error as Error).message.slice(0, 200)}); accept no models of the server, and plans are interpreted`);
    }
  }

  /** Make a call; raises PlanError, or RangeError for want of memory, where the runtime wrote that it failed. */
  async made<T>(call: () => Promise<T>): Promise<T> {
    this.errors = [];
    try {
      const made = await call();
      if (!this.errors.length) return made;
      throw new PlanError(`the server's model does not run (${this.errors[0]!.slice(0, 200)})`);
    } catch (error) {
      throw this.refused ?? error;
    }
  }
}

class Signature implements Runner {
  private readonly inputs: Named[];
  private readonly outputs: Named[];

  /** Take a signature; raises PlanError where it takes or gives other tensors than the manifest says. */
  constructor(private readonly runner: SignatureRunner | undefined, program: Program, manifest: Manifest) {
    const named = (one: Argument): Named => ({ name: modelName(one, manifest), type: one, inside: { shape: one.shape, dtype: modelType(one.dtype) } });
    [this.inputs, this.outputs] = [program.inputs.map(named), program.outputs.map(named)];
    if (!runner) throw new PlanError("the server's model lacks one of the signatures train and finish");
    check("takes", this.inputs, runner.getInputDetails());
    check("gives", this.outputs, runner.getOutputDetails());
  }

  async run(given: Tensor[]): Promise<Tensor[]> {
    const tensors: Record<string, ModelTensor> = {};
    let made: Record<string, ModelTensor> = {};
    try {
      this.inputs.forEach(({ name, inside }, place) => (tensors[name] = new ModelTensor(bitcast(given[place]!, inside)!.data as Float32Array, inside.shape)));
      made = await this.runner!.run(tensors);
      return await Promise.all(this.outputs.map((one) => result(one, made[one.name])));
    } finally {
      for (const one of [...Object.values(tensors), ...Object.values(made)]) one.delete();
    }
  }
}

function check(what: string, expected: Named[], found: readonly TensorDetails[]): void {
  const types = new Map(found.map(({ name, dtype, shape }) => [name, { dtype, shape: [...shape] } as Type]));
  for (const { name, inside } of expected) {
    const type = types.get(name);
    if (!sameType(type, inside))
      throw new PlanError(`the server's model ${what} ${name.slice(0, 80)} as ${type ? `${type.dtype}[${type.shape}]` : "no tensor"}, but its plan as ${inside.dtype}[${inside.shape}]`);
  }
  if (found.length !== expected.length || types.size !== expected.length) throw new PlanError(`the server's model ${what} other tensors than its plan`);
}

/** Copy a result out of memory that the next call writes over. */
async function result({ name, type, inside }: Named, made: ModelTensor | undefined): Promise<Tensor> {
  const { dtype, layout } = made!.type, data = (await made!.data()).slice();
  const found = { dtype, shape: [...layout.dimensions], data } as Tensor, taken = sameType(found, inside) && data.length === count(inside.shape) && bitcast(found, type);
  if (!taken) throw new PlanError(`the server's model made ${name.slice(0, 80)} of another shape than it says`);
  return taken;
}

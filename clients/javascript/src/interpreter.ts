/** Runs programs of StableHLO (https://openxla.org/stablehlo/spec) on typed arrays: slow, but with nothing that a plan's author could turn into machine code. */

import { combiner, dot, reduced } from "./contractions.js";
import { binary, clamped, compared, converted, refuse, selected, unary } from "./elementwise.js";
import { broadcast, concatenated, gathered, iota, padded, reversed, scattered, sliced, starts, transposed, updated } from "./movement.js";
import { bitcast, type Body, bytesOf, count, type Step, type Tensor, type Type } from "./program.js";

export interface Bounds { memoryBytes: number; callSeconds: number }

const MOST_CALLS = 200;
/** Operations that note where values lie, 4 bytes for each. */
const NOTING = new Set(["dot_general", "gather", "reduce", "scatter"]);

/** A function's values, and those of the regions in it. */
class Frame {
  private readonly values: (Tensor | undefined)[] = [];
  held = 0; // bytes

  get(place: number): Tensor {
    return this.values[place] ?? refuse("uses a value that it has not made");
  }

  set(place: number, value: Tensor): void {
    this.free(place);
    this.values[place] = value;
    this.held += bytesOf(value);
  }

  free(place: number): void {
    const before = this.values[place];
    if (before) this.held -= bytesOf(before);
    this.values[place] = undefined;
  }
}

/** Bytes that noting where values lie takes at most; a tensor without values may have dimensions all the same. */
function notes(types: Type[]): number {
  return 4 * types.reduce((sum, { shape }) => sum + count(shape.map((one) => Math.max(one, 1))), 0);
}

export class Interpreter {
  private frames: Frame[] = [];
  private deadline = Infinity;
  private readonly lastUses = new Map<Body, number[][]>();

  constructor(private readonly functions: Map<string, Body>, private readonly bounds: Bounds) {
    for (const body of functions.values()) this.findLastUses(body);
  }

  /** Run `main`; raises PlanError where it exceeds the bounds. */
  run(given: Tensor[]): Tensor[] {
    this.frames = [];
    this.deadline = performance.now() + 1000 * this.bounds.callSeconds;
    return this.call("main", given);
  }

  /** Note for each step of a body which of the body's own values nothing uses afterwards; gives all that it uses. */
  private findLastUses(body: Body): Set<number> {
    const used = new Set<number>(), found: number[][] = body.steps.map(() => []), own = new Set([...body.arguments, ...body.steps.flatMap((step) => step.results)]);
    for (let index = body.steps.length - 1; index >= 0; index--) {
      const step = body.steps[index]!, here = new Set([...step.results, ...step.operands]);
      for (const region of step.regions) for (const place of this.findLastUses(region)) here.add(place);
      for (const place of here) {
        if (own.has(place) && !used.has(place)) found[index]!.push(place);
        used.add(place);
      }
    }
    this.lastUses.set(body, found);
    return used;
  }

  private call(name: string, given: Tensor[]): Tensor[] {
    const body = this.functions.get(name);
    if (!body || this.frames.length >= MOST_CALLS) refuse("calls a function that it has not got, or itself");
    const frame = new Frame();
    this.frames.push(frame);
    const made = this.body(body, given, frame);
    this.frames.pop();
    return made;
  }

  private body(body: Body, given: Tensor[], frame: Frame): Tensor[] {
    if (given.length !== body.arguments.length) refuse("gives a region other values than it takes");
    given.forEach((one, index) => this.keep(frame, body.arguments[index]!, body.types[index]!, one));
    const lastUses = this.lastUses.get(body)!;
    for (const [index, step] of body.steps.entries()) {
      const operands = step.operands.map((place) => frame.get(place));
      if (step.name !== "return") {
        this.check(step.types.reduce((sum, type) => sum + bytesOf(type), 0) + (NOTING.has(step.name) ? notes([...operands, ...step.types]) : 0));
        const results = this.step(step, operands, frame);
        if (results.length !== step.results.length) refuse(`has ${step.name} with another number of results`);
        results.forEach((one, place) => this.keep(frame, step.results[place]!, step.types[place]!, one));
      }
      for (const place of lastUses[index]!) frame.free(place);
      if (step.name === "return") return operands;
    }
    return refuse("has a region without an end");
  }

  private check(more: number): void {
    let held = more;
    for (const frame of this.frames) held += frame.held;
    if (held > this.bounds.memoryBytes) refuse("needs more memory than it may have");
    if (performance.now() > this.deadline) refuse("takes longer than it may");
  }

  private keep(frame: Frame, place: number, type: Type, value: Tensor): void {
    if (value.dtype !== type.dtype || value.shape.length !== type.shape.length || value.shape.some((one, axis) => one !== type.shape[axis]))
      refuse("makes a tensor of another shape than it says");
    frame.set(place, value);
  }

  private step(step: Step, operands: Tensor[], frame: Frame): Tensor[] {
    const { name, given } = step;
    if (name === "call") return this.call(given["callee"] as string, operands);
    if (name === "optimization_barrier") return operands;
    if (name === "while") return this.repeat(step, operands, frame);
    if (name === "case") {
      const chosen = Number(operands[0]?.data[0]);
      const region = step.regions[chosen >= 0 && chosen < step.regions.length ? chosen : step.regions.length - 1] ?? refuse("has a case without branches");
      return this.body(region, [], frame);
    }
    return [this.one(step, operands, step.types[0] ?? refuse(`has ${name} without a result`))];
  }

  private repeat(step: Step, operands: Tensor[], frame: Frame): Tensor[] {
    const [condition, body] = step.regions;
    if (!condition || !body) refuse("has a loop without a body");
    let values = operands;
    while (this.body(condition, values, frame)[0]?.data[0]) {
      this.check(0);
      values = this.body(body, values, frame);
    }
    return values;
  }

  private one(step: Step, operands: Tensor[], type: Type): Tensor {
    const { name, given } = step, [a, b] = operands;
    if (name === "constant") return given["value"] as Tensor;
    if (name === "iota") return iota(type, given["iota_dimension"] as number);
    if (!a) refuse(`has ${name} of nothing`);
    switch (name) {
      case "reshape": return { ...type, data: count(a.shape) === count(type.shape) && a.dtype === type.dtype ? a.data : refuse("reshapes to another size") };
      case "broadcast_in_dim": return broadcast(a, given["broadcast_dimensions"], type);
      case "transpose": return transposed(a, given["permutation"], type);
      case "reverse": return reversed(a, given["dimensions"], type);
      case "slice": return sliced(a, given["start"], given["strides"], type);
      case "dynamic_slice": return sliced(a, starts(a, operands.slice(1), type.shape), type.shape.map(() => 1), type);
      case "concatenate": return concatenated(operands, given["dimension"] as number, type);
      case "reduce": return reduced(step, operands);
      case "scatter": return scattered(step, operands, combiner);
      case "compare": return compared(given["comparison_direction"] as number, a, b, type);
      case "select": return selected(operands, type);
      case "clamp": return clamped(operands, type);
      case "convert": return converted(a, type);
      case "bitcast_convert": return bitcast(a, type) ?? refuse("takes bits for numbers of another width");
    }
    if (operands.length === 1) return unary(name, a, type) ?? refuse(`has the operation ${name} of ${a.dtype}, which this client does not run`);
    if (!b) refuse(`has ${name} of nothing`);
    switch (name) {
      case "dynamic_update_slice": return updated(a, b, starts(a, operands.slice(2), b.shape));
      case "dot_general": return dot(step, a, b, type, (bytes) => this.check(bytes));
      case "gather": return gathered(step, a, b, type);
      case "pad": return padded(step, a, b, type);
    }
    return binary(name, a, b, type);
  }
}

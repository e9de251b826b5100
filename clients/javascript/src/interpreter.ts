/** Runs programs of StableHLO (https://openxla.org/stablehlo/spec) on typed arrays: slow, but with nothing that a plan's author could turn into machine code. */

import { PlanError } from "./errors.js";
import { type Body, bytesOf, count, type Data, type Step, type Tensor, type Type, zeros } from "./program.js";

export interface Bounds { memoryBytes: number; callSeconds: number }
type Numbers = { [index: number]: number; length: number };
type Both = (a: number, b: number) => number;

const MOST_CALLS = 200;
const UNARY: Record<string, (a: number) => number> = {
  abs: Math.abs, negate: (a) => -a, floor: Math.floor, exponential: Math.exp, log: Math.log, sqrt: Math.sqrt, rsqrt: (a) => 1 / Math.sqrt(a), tanh: Math.tanh,
  sine: Math.sin, cosine: Math.cos, logistic: (a) => 1 / (1 + Math.exp(-a)), exponential_minus_one: Math.expm1, log_plus_one: Math.log1p, sign: Math.sign,
};
const FLOAT: Record<string, Both> = {
  add: (a, b) => a + b, subtract: (a, b) => a - b, multiply: (a, b) => a * b, divide: (a, b) => a / b, maximum: Math.max, minimum: Math.min,
  power: Math.pow, remainder: (a, b) => a % b,
};
const WHOLE: Record<string, Both> = {
  ...FLOAT, multiply: Math.imul, divide: (a, b) => (b === 0 ? -1 : Math.trunc(a / b)), and: (a, b) => a & b, or: (a, b) => a | b, xor: (a, b) => a ^ b,
  shift_left: (a, b) => (b >>> 0 > 31 ? 0 : a << b), shift_right_logical: (a, b) => (b >>> 0 > 31 ? 0 : a >>> b),
};
const TRUTH: Record<string, Both> = { and: WHOLE["and"]!, or: WHOLE["or"]!, xor: WHOLE["xor"]!, add: WHOLE["or"]!, multiply: WHOLE["and"]!, maximum: Math.max, minimum: Math.min };
const LARGE: Record<string, (a: bigint, b: bigint) => bigint> = {
  add: (a, b) => a + b, subtract: (a, b) => a - b, multiply: (a, b) => a * b, and: (a, b) => a & b, or: (a, b) => a | b, xor: (a, b) => a ^ b,
  shift_left: (a, b) => (b < 0n || b > 63n ? 0n : a << b), shift_right_logical: (a, b) => (b < 0n || b > 63n ? 0n : BigInt.asUintN(64, a) >> b),
  maximum: (a, b) => (a > b ? a : b), minimum: (a, b) => (a < b ? a : b),
};
const COMPARE: ((a: number | bigint, b: number | bigint) => boolean)[] = [
  (a, b) => a === b, (a, b) => a !== b, (a, b) => a >= b, (a, b) => a > b, (a, b) => a <= b, (a, b) => a < b,
];

function refuse(what: string): never {
  throw new PlanError(`the plan's program ${what}`);
}

export function strides(shape: number[]): number[] {
  const found = new Array<number>(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = step;
    step *= shape[axis]!;
  }
  return found;
}

/** For each index of a shape in row-major order: a sum of strides, as an Int32Array. */
function offsets(shape: number[], steps: number[], start = 0): Int32Array {
  const found = new Int32Array(count(shape)), at = new Array<number>(shape.length).fill(0);
  let offset = start;
  for (let place = 0; place < found.length; place++) {
    found[place] = offset;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      offset += steps[axis]!;
      if (++at[axis]! < shape[axis]!) break;
      offset -= steps[axis]! * shape[axis]!;
      at[axis] = 0;
    }
  }
  return found;
}

function picked(from: Data, places: Int32Array, type: Type): Tensor {
  const made = zeros(type), into = made.data as Numbers, source = from as Numbers;
  for (let place = 0; place < places.length; place++) into[place] = source[places[place]!]!;
  return made;
}

function axes(given: unknown): number[] {
  return Array.from((given as Tensor).data as BigInt64Array, Number);
}

function large(tensor: Type): boolean {
  return tensor.dtype === "int64" || tensor.dtype === "uint64";
}

function binary(name: string, dtype: string): Both {
  return (dtype === "float32" ? FLOAT : dtype === "bool" ? TRUTH : WHOLE)[name] ?? refuse(`has the operation ${name} of ${dtype}, which this client does not run`);
}

/** A function's values, and those of the regions in it. */
class Frame {
  readonly values: (Tensor | undefined)[] = [];
  held = 0;
  get(place: number): Tensor {
    return this.values[place] ?? refuse("uses a value that it has not made");
  }
}

export class Interpreter {
  private live = 0;
  private deadline = Infinity;
  private depth = 0;

  constructor(private readonly functions: Map<string, Body>, private readonly bounds: Bounds) {}

  /** Run `main`; raises PlanError where it exceeds the bounds. */
  run(given: Tensor[]): Tensor[] {
    this.live = this.depth = 0;
    this.deadline = performance.now() + 1000 * this.bounds.callSeconds;
    return this.call("main", given);
  }

  private call(name: string, given: Tensor[]): Tensor[] {
    const body = this.functions.get(name);
    if (!body || this.depth >= MOST_CALLS) refuse("calls a function that it has not got, or itself");
    this.depth++;
    const frame = new Frame();
    const made = this.body(body, given, frame);
    this.live -= frame.held;
    this.depth--;
    return made;
  }

  private body(body: Body, given: Tensor[], frame: Frame): Tensor[] {
    if (given.length !== body.arguments.length) refuse("gives a region other values than it takes");
    given.forEach((one, index) => this.keep(frame, body.arguments[index]!, body.types[index]!, one));
    for (const step of body.steps) {
      const operands = step.operands.map((place) => frame.get(place));
      if (step.name === "return") return operands;
      this.check(0);
      step.types.forEach((type) => this.check(bytesOf(type)));
      const results = this.step(step, operands, frame);
      if (results.length !== step.results.length) refuse(`has ${step.name} with another number of results`);
      results.forEach((one, index) => this.keep(frame, step.results[index]!, step.types[index]!, one));
    }
    return refuse("has a region without an end");
  }

  private check(more: number): void {
    if (this.live + more > this.bounds.memoryBytes) refuse("needs more memory than it may have");
    if (performance.now() > this.deadline) refuse("takes longer than it may");
  }

  private keep(frame: Frame, place: number, type: Type, value: Tensor): void {
    if (value.dtype !== type.dtype || value.shape.length !== type.shape.length || value.shape.some((one, axis) => one !== type.shape[axis]))
      refuse("makes a tensor of another shape than it says");
    const before = frame.values[place];
    const more = bytesOf(value) - (before ? bytesOf(before) : 0);
    this.live += more;
    frame.held += more;
    frame.values[place] = value;
  }

  private step(step: Step, operands: Tensor[], frame: Frame): Tensor[] {
    const { name, given } = step;
    if (name === "call") return this.call(given["callee"] as string, operands);
    if (name === "optimization_barrier") return operands;
    if (name === "while") return this.repeat(step, operands, frame);
    if (name === "case") {
      const chosen = Number(operands[0]!.data[0]!);
      const region = step.regions[chosen >= 0 && chosen < step.regions.length ? chosen : step.regions.length - 1] ?? refuse("has a case without branches");
      return this.body(region, [], frame);
    }
    if (name === "reduce") return this.reduce(step, operands);
    return [this.one(step, operands, step.types[0] ?? refuse(`has ${name} without a result`))];
  }

  private repeat(step: Step, operands: Tensor[], frame: Frame): Tensor[] {
    const [condition, body] = step.regions;
    if (!condition || !body) refuse("has a loop without a body");
    let values = operands;
    while (this.body(condition, values, frame)[0]!.data[0]) values = this.body(body, values, frame);
    return values;
  }

  private one(step: Step, operands: Tensor[], type: Type): Tensor {
    const { name, given } = step, [a, b] = operands as [Tensor, Tensor];
    switch (name) {
      case "constant": return given["value"] as Tensor;
      case "iota": return iota(type, given["iota_dimension"] as number);
      case "reshape": return { ...type, data: count(a.shape) === count(type.shape) ? a.data : refuse("reshapes to another size") };
      case "broadcast_in_dim": return broadcast(a, axes(given["broadcast_dimensions"]), type);
      case "transpose": return picked(a.data, offsets(type.shape, axes(given["permutation"]).map((axis) => strides(a.shape)[axis]!)), type);
      case "slice": return sliced(a, axes(given["start"]), axes(given["strides"]), type);
      case "dynamic_slice": return sliced(a, starts(a, operands.slice(1), type.shape), type.shape.map(() => 1), type);
      case "dynamic_update_slice": return updated(a, b, starts(a, operands.slice(2), b.shape));
      case "concatenate": return concatenated(operands, given["dimension"] as number, type);
      case "dot_general": return this.dot(step, a, b, type);
      case "gather": return gathered(step, a, b, type);
      case "scatter": return scattered(step, operands);
      case "compare": return compared(a, b, COMPARE[given["comparison_direction"] as number] ?? refuse("compares in an unknown way"), type);
      case "select": return selected(operands, type);
      case "convert": return converted(a, type);
      case "is_finite": case "not": return mapped(a, type, name === "not" ? (one) => (a.dtype === "bool" ? 1 - one : ~one) : (one) => Number(Number.isFinite(one)));
    }
    const unary = UNARY[name];
    if (unary && a.dtype !== "uint64" && a.dtype !== "int64") return mapped(a, type, unary);
    if (operands.length !== 2 || count(a.shape) !== count(b.shape)) refuse(`has ${name} of tensors that do not fit`);
    const made = zeros(type);
    if (large(a)) {
      const how = LARGE[name] ?? refuse(`has the operation ${name} of ${a.dtype}, which this client does not run`);
      const x = a.data as BigUint64Array, y = b.data as BigUint64Array, into = made.data as BigUint64Array;
      for (let place = 0; place < into.length; place++) into[place] = how(x[place]!, y[place]!);
    } else {
      const how = binary(name, a.dtype), x = a.data as Numbers, y = b.data as Numbers, into = made.data as Numbers;
      for (let place = 0; place < into.length; place++) into[place] = how(x[place]!, y[place]!);
    }
    return made;
  }

  private dot(step: Step, a: Tensor, b: Tensor, type: Type): Tensor {
    const [left, right] = ["lhs", "rhs"].map((side) => ({ batch: axes(step.given[`${side}_batching`]), inner: axes(step.given[`${side}_contracting`]) })) as [Sides, Sides];
    const x = parts(a, left), y = parts(b, right);
    if (a.dtype !== "float32" || b.dtype !== "float32" || x.inner.length !== y.inner.length || x.batch.length !== y.batch.length) refuse("multiplies matrices that do not fit");
    const made = zeros(type), into = made.data as Float32Array;
    const inner = x.inner.length, rows = x.free.length, columns = y.free.length;
    if (into.length !== x.batch.length * rows * columns) refuse("multiplies matrices to another size");
    const line = new Float32Array(inner), other = new Float32Array(inner * columns);
    for (let batch = 0; batch < x.batch.length; batch++) {
      for (let column = 0, place = 0; column < columns; column++) {
        const start = y.batch[batch]! + y.free[column]!;
        for (let k = 0; k < inner; k++) other[place++] = b.data[start + y.inner[k]!] as number;
      }
      for (let row = 0; row < rows; row++) {
        this.check(0);
        const start = x.batch[batch]! + x.free[row]!;
        for (let k = 0; k < inner; k++) line[k] = a.data[start + x.inner[k]!] as number;
        const to = (batch * rows + row) * columns;
        for (let column = 0, place = 0; column < columns; column++) {
          let sum = 0;
          for (let k = 0; k < inner; k++) sum += line[k]! * other[place++]!;
          into[to + column] = sum;
        }
      }
    }
    return made;
  }

  private reduce(step: Step, operands: Tensor[]): Tensor[] {
    const [a, start] = operands as [Tensor, Tensor];
    const type = step.types[0]!, how = combiner(step, a.dtype);
    if (operands.length !== 2 || large(a)) refuse("reduces more than one tensor, or tensors of 64 bits");
    const dropped = axes(step.given["dimensions"]);
    const kept = a.shape.map((_, axis) => axis).filter((axis) => !dropped.includes(axis));
    const steps = strides(a.shape), of = (list: number[]) => offsets(list.map((axis) => a.shape[axis]!), list.map((axis) => steps[axis]!));
    const outer = of(kept), inner = of(dropped), made = zeros(type), source = a.data as Numbers, into = made.data as Numbers;
    if (outer.length !== into.length) refuse("reduces to another size");
    const add = how === FLOAT["add"];
    for (let place = 0; place < outer.length; place++) {
      let value = start.data[0] as number;
      const base = outer[place]!;
      if (add) for (let k = 0; k < inner.length; k++) value += source[base + inner[k]!]!;
      else for (let k = 0; k < inner.length; k++) value = how(value, source[base + inner[k]!]!);
      into[place] = value;
    }
    return [made];
  }
}

interface Sides { batch: number[]; inner: number[] }

function parts(tensor: Tensor, sides: Sides): { batch: Int32Array; inner: Int32Array; free: Int32Array } {
  const steps = strides(tensor.shape), free = tensor.shape.map((_, axis) => axis).filter((axis) => !sides.batch.includes(axis) && !sides.inner.includes(axis));
  const of = (list: number[]) => offsets(list.map((axis) => tensor.shape[axis] ?? refuse("names a dimension that a tensor has not got")), list.map((axis) => steps[axis]!));
  return { batch: of(sides.batch), inner: of(sides.inner), free: of(free) };
}

/** The one operation of a region that combines two values. */
function combiner(step: Step, dtype: string): Both {
  const body = step.regions[0], [first, last] = body?.steps ?? [];
  const plain = body?.steps.length === 2 && last!.name === "return" && last!.operands[0] === first!.results[0] && body.arguments.length === 2;
  if (!plain || first!.operands.length !== 2 || new Set([...first!.operands, ...body.arguments]).size !== 2) refuse(`has ${step.name} by more than one operation`);
  return binary(first!.name, dtype);
}

function mapped(a: Tensor, type: Type, how: (a: number) => number): Tensor {
  const made = zeros(type), source = a.data as Numbers, into = made.data as Numbers;
  for (let place = 0; place < into.length; place++) into[place] = how(source[place]!);
  return made;
}

function iota(type: Type, dimension: number): Tensor {
  const places = offsets(type.shape, type.shape.map((_, axis) => Number(axis === dimension)));
  const made = zeros(type);
  if (large(type)) places.forEach((one, place) => (made.data[place] = BigInt(one)));
  else places.forEach((one, place) => (made.data[place] = one));
  return made;
}

function broadcast(a: Tensor, dimensions: number[], type: Type): Tensor {
  const made = zeros(type);
  if (a.data.length === 1) {
    (made.data as Float32Array).fill(a.data[0] as number);
    return made;
  }
  const own = strides(a.shape), steps = type.shape.map(() => 0);
  dimensions.forEach((axis, index) => {
    if (a.shape[index] !== 1 && a.shape[index] !== type.shape[axis]) refuse("broadcasts a tensor to another shape");
    steps[axis] = a.shape[index] === 1 ? 0 : own[index]!;
  });
  return picked(a.data, offsets(type.shape, steps), type);
}

function starts(a: Tensor, given: Tensor[], sizes: number[]): number[] {
  return given.map((one, axis) => Math.min(Math.max(Number(one.data[0]), 0), a.shape[axis]! - sizes[axis]!));
}

function sliced(a: Tensor, start: number[], by: number[], type: Type): Tensor {
  const steps = strides(a.shape);
  type.shape.forEach((size, axis) => {
    if (size > 0 && !(start[axis]! >= 0 && start[axis]! + (size - 1) * by[axis]! < a.shape[axis]!)) refuse("slices more than a tensor has");
  });
  const first = start.reduce((sum, one, axis) => sum + one * steps[axis]!, 0);
  return picked(a.data, offsets(type.shape, steps.map((one, axis) => one * by[axis]!), first), type);
}

function updated(a: Tensor, b: Tensor, start: number[]): Tensor {
  const made: Tensor = { ...a, data: a.data.slice() }, steps = strides(a.shape);
  if (start.some((one) => !(one >= 0))) refuse("updates more than a tensor has");
  const places = offsets(b.shape, steps, start.reduce((sum, one, axis) => sum + one * steps[axis]!, 0));
  const into = made.data as Numbers, source = b.data as Numbers;
  for (let place = 0; place < places.length; place++) into[places[place]!] = source[place]!;
  return made;
}

function concatenated(operands: Tensor[], dimension: number, type: Type): Tensor {
  const made = zeros(type), steps = strides(type.shape), into = made.data as Numbers;
  let start = 0;
  for (const one of operands) {
    const source = one.data as Numbers;
    offsets(one.shape, steps, start * steps[dimension]!).forEach((to, place) => (into[to] = source[place]!));
    start += one.shape[dimension]!;
  }
  return made;
}

function compared(a: Tensor, b: Tensor, how: (a: number | bigint, b: number | bigint) => boolean, type: Type): Tensor {
  const made = zeros(type);
  for (let place = 0; place < made.data.length; place++) made.data[place] = Number(how(a.data[place]!, b.data[place]!));
  return made;
}

function selected([where, yes, no]: Tensor[], type: Type): Tensor {
  const made = zeros(type), into = made.data as Numbers, x = yes!.data as Numbers, y = no!.data as Numbers, single = where!.data.length === 1;
  for (let place = 0; place < into.length; place++) into[place] = where!.data[single ? 0 : place] ? x[place]! : y[place]!;
  return made;
}

const WIDTH: Record<string, [number, number]> = { int32: [-(2 ** 31), 2 ** 31 - 1], uint8: [0, 255], uint16: [0, 65535], uint32: [0, 2 ** 32 - 1] };

function converted(a: Tensor, type: Type): Tensor {
  const made = zeros(type), range = WIDTH[type.dtype], truth = type.dtype === "bool";
  for (let place = 0; place < made.data.length; place++) {
    const one = a.data[place]!;
    if (large(type)) made.data[place] = typeof one === "bigint" ? one : BigInt(Math.trunc(one));
    else if (truth) made.data[place] = Number(Boolean(one));
    else if (typeof one === "bigint") made.data[place] = type.dtype === "float32" ? Number(one) : Number(BigInt.asUintN(32, one));
    else made.data[place] = a.dtype === "float32" && range ? Math.min(Math.max(one, range[0]), range[1]) : one;
  }
  return made;
}

/** Where the windows of a gather or a scatter lie: for each index of the indices, the corner in the operand, or -1 where it is outside. */
function corners(step: Step, operand: Tensor, indices: Tensor, window: number[], clamp: boolean): Int32Array {
  const { index_vector_dim: vector, start_index_map: map, operand_batching, indices_batching } = step.given;
  const along = axes(map), steps = strides(operand.shape), at = strides(indices.shape), dimension = vector as number;
  const batched = axes(operand_batching), beside = axes(indices_batching);
  const outer = indices.shape.map((_, axis) => axis).filter((axis) => axis !== dimension);
  const places = offsets(outer.map((axis) => indices.shape[axis]!), outer.map((axis) => at[axis]!)), by = at[dimension] ?? 0;
  const across = outer.map((axis) => (beside.includes(axis) ? steps[batched[beside.indexOf(axis)]!]! : 0));
  const begins = offsets(outer.map((axis) => indices.shape[axis]!), across);
  return places.map((place, one) => {
    let corner = begins[one]!;
    for (let k = 0; k < along.length; k++) {
      const axis = along[k]!, most = operand.shape[axis]! - window[axis]!;
      let start = Number(indices.data[place + k * by]!);
      if (clamp) start = Math.min(Math.max(start, 0), most);
      else if (start < 0 || start > most) return -1;
      corner += start * steps[axis]!;
    }
    return corner;
  });
}

/** Row-major offsets of the windows in a tensor whose dimensions `inside` are theirs, and of those windows in the operand. */
function windows(shape: number[], inside: number[], operand: Tensor, window: number[], collapsed: number[]) {
  const steps = strides(shape), own = strides(operand.shape), outside = shape.map((_, axis) => axis).filter((axis) => !inside.includes(axis));
  const kept = operand.shape.map((_, axis) => axis).filter((axis) => !collapsed.includes(axis));
  const sizes = kept.map((axis) => window[axis]!);
  if (sizes.length !== inside.length || sizes.some((one, index) => one !== shape[inside[index]!]) || window.some((one, axis) => one > operand.shape[axis]!))
    refuse("gathers or scatters windows that do not fit");
  return {
    outer: offsets(outside.map((axis) => shape[axis]!), outside.map((axis) => steps[axis]!)),
    inner: offsets(sizes, inside.map((axis) => steps[axis]!)),
    operand: offsets(sizes, kept.map((axis) => own[axis]!)),
  };
}

function gathered(step: Step, operand: Tensor, indices: Tensor, type: Type): Tensor {
  const window = axes(step.given["slice_sizes"]), inside = axes(step.given["offset_dims"]);
  const places = windows(type.shape, inside, operand, window, [...axes(step.given["collapsed"]), ...axes(step.given["operand_batching"])]);
  const made = zeros(type), into = made.data as Numbers, source = operand.data as Numbers, from = corners(step, operand, indices, window, true);
  if (from.length !== places.outer.length) refuse("gathers another number of windows than it has indices");
  from.forEach((corner, one) => places.inner.forEach((inner, k) => (into[places.outer[one]! + inner] = source[corner + places.operand[k]!]!)));
  return made;
}

function scattered(step: Step, operands: Tensor[]): Tensor {
  const [operand, indices, updates] = operands as [Tensor, Tensor, Tensor];
  if (operands.length !== 3 || large(operand)) refuse("scatters more than one tensor, or tensors of 64 bits");
  const inside = axes(step.given["update_window_dims"]), how = combiner(step, operand.dtype);
  const inserted = [...axes(step.given["inserted"]), ...axes(step.given["operand_batching"])];
  let next = 0;
  const window = operand.shape.map((_, axis) => (inserted.includes(axis) ? 1 : updates.shape[inside[next++]!]!));
  const places = windows(updates.shape, inside, operand, window, inserted), to = corners(step, operand, indices, window, false);
  if (to.length !== places.outer.length) refuse("scatters another number of windows than it has indices");
  const made: Tensor = { ...operand, data: operand.data.slice() }, into = made.data as Numbers, source = updates.data as Numbers;
  to.forEach((corner, one) => {
    if (corner >= 0) places.inner.forEach((inner, k) => (into[corner + places.operand[k]!] = how(into[corner + places.operand[k]!]!, source[places.outer[one]! + inner]!)));
  });
  return made;
}

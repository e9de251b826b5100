/** Operations that put values elsewhere: no index that a program computes leads outside of a tensor. */

import { howOf, isLarge, type Numbers, refuse } from "./elementwise.js";
import { count, type Data, type Step, type Tensor, type Type, zeros } from "./program.js";

export function strides(shape: number[]): number[] {
  const found = new Array<number>(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    found[axis] = step;
    step *= shape[axis]!;
  }
  return found;
}

/** For each index of a shape in row-major order: a sum of strides. */
export function offsets(shape: number[], steps: number[]): Int32Array {
  const found = new Int32Array(count(shape)), at = new Array<number>(shape.length).fill(0);
  let offset = 0;
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

export function axes(given: unknown, rank: number): number[] {
  const found = given as number[];
  if (!Array.isArray(found) || found.some((one) => !(one >= 0 && one < rank)) || new Set(found).size !== found.length) refuse("names a dimension that a tensor has not got");
  return found;
}

function list(given: unknown, length: number): number[] {
  const found = given as number[];
  if (!Array.isArray(found) || found.length !== length || found.some((one) => !(one >= 0))) refuse("has a list of sizes that does not fit");
  return found;
}

/** Copy the values of a shape from one place and strides to others; both lie inside of their tensors. */
function copy(into: Data, to: number, toSteps: number[], from: Data, start: number, steps: number[], shape: number[]): void {
  // Dimensions that lie end to end on both sides are one.
  const sizes: number[] = [], a: number[] = [], b: number[] = [];
  shape.forEach((size, axis) => {
    const last = sizes.length - 1;
    if (size === 1) return;
    if (last >= 0 && a[last] === toSteps[axis]! * size && b[last] === steps[axis]! * size) {
      sizes[last]! *= size;
      a[last] = toSteps[axis]!;
      b[last] = steps[axis]!;
    } else {
      sizes.push(size);
      a.push(toSteps[axis]!);
      b.push(steps[axis]!);
    }
  });
  const target = into as Numbers, source = from as Numbers;
  const inner = sizes.pop() ?? 1, by = a.pop() ?? 1, step = b.pop() ?? 1;
  if (!inner || sizes.includes(0)) return;
  const at = new Array<number>(sizes.length).fill(0), lines = count(sizes), long = inner >= 32;
  for (let line = 0; line < lines; line++) {
    if (long && by === 1 && step === 1) (into as Float32Array).set((from as Float32Array).subarray(start, start + inner), to);
    else if (long && by === 1 && step === 0) (into as Float32Array).fill(source[start]!, to, to + inner);
    else for (let k = 0, x = to, y = start; k < inner; k++, x += by, y += step) target[x] = source[y]!;
    for (let axis = sizes.length - 1; axis >= 0; axis--) {
      to += a[axis]!;
      start += b[axis]!;
      if (++at[axis]! < sizes[axis]!) break;
      to -= a[axis]! * sizes[axis]!;
      start -= b[axis]! * sizes[axis]!;
      at[axis] = 0;
    }
  }
}

function picked(a: Tensor, start: number, steps: number[], type: Type): Tensor {
  const made = zeros(type);
  if (a.dtype !== type.dtype) refuse("moves values into a tensor of another type");
  copy(made.data, 0, strides(type.shape), a.data, start, steps, type.shape);
  return made;
}

export function iota(type: Type, dimension: number): Tensor {
  const made = zeros(type), inner = strides(type.shape)[axes([dimension], type.shape.length)[0]!]!, size = type.shape[dimension]!;
  for (let place = 0; place < made.data.length; place++) {
    const one = Math.floor(place / inner) % size;
    made.data[place] = isLarge(type) ? BigInt(one) : one;
  }
  return made;
}

export function broadcast(a: Tensor, given: unknown, type: Type): Tensor {
  const along = axes(given, type.shape.length), own = strides(a.shape), steps = type.shape.map(() => 0);
  if (along.length !== a.shape.length) refuse("broadcasts a tensor to another shape");
  along.forEach((axis, index) => {
    if (a.shape[index] !== 1 && a.shape[index] !== type.shape[axis]) refuse("broadcasts a tensor to another shape");
    steps[axis] = a.shape[index] === 1 ? 0 : own[index]!;
  });
  return picked(a, 0, steps, type);
}

export function transposed(a: Tensor, given: unknown, type: Type): Tensor {
  const order = axes(given, a.shape.length), own = strides(a.shape);
  if (order.length !== a.shape.length || order.some((axis, place) => a.shape[axis] !== type.shape[place])) refuse("transposes to another shape");
  return picked(a, 0, order.map((axis) => own[axis]!), type);
}

export function reversed(a: Tensor, given: unknown, type: Type): Tensor {
  const turned = axes(given, a.shape.length), own = strides(a.shape);
  if (a.shape.some((size, axis) => size !== type.shape[axis]) || !a.data.length) refuse("reverses to another shape");
  const start = turned.reduce((sum, axis) => sum + (a.shape[axis]! - 1) * own[axis]!, 0);
  return picked(a, start, own.map((step, axis) => (turned.includes(axis) ? -step : step)), type);
}

/** Where a slice begins whose place was computed: moved so that all of it lies inside. */
export function starts(a: Tensor, given: Tensor[], sizes: number[]): number[] {
  if (given.length !== a.shape.length || sizes.length !== a.shape.length) refuse("slices in other dimensions than a tensor has");
  return given.map((one, axis) => Math.min(Math.max(wholeNumber(one.data[0]), 0), a.shape[axis]! - sizes[axis]!));
}

function wholeNumber(value: number | bigint | undefined): number {
  const found = Number(value);
  return Number.isInteger(found) ? found : refuse("uses an index that is no whole number");
}

export function sliced(a: Tensor, from: unknown, by: unknown, type: Type): Tensor {
  const rank = a.shape.length, own = strides(a.shape), start = list(from, rank), step = list(by, rank);
  if (type.shape.length !== rank) refuse("slices to another shape");
  type.shape.forEach((size, axis) => {
    if (size > 0 && !(start[axis]! + (size - 1) * step[axis]! < a.shape[axis]!)) refuse("slices more than a tensor has");
  });
  return picked(a, start.reduce((sum, one, axis) => sum + one * own[axis]!, 0), own.map((one, axis) => one * step[axis]!), type);
}

export function updated(a: Tensor, b: Tensor, start: number[]): Tensor {
  const made: Tensor = { ...a, data: a.data.slice() }, own = strides(a.shape);
  if (a.dtype !== b.dtype || start.some((one) => one < 0)) refuse("updates more than a tensor has");
  copy(made.data, start.reduce((sum, one, axis) => sum + one * own[axis]!, 0), own, b.data, 0, strides(b.shape), b.shape);
  return made;
}

export function concatenated(operands: Tensor[], dimension: number, type: Type): Tensor {
  const made = zeros(type), own = strides(type.shape);
  axes([dimension], type.shape.length);
  let start = 0;
  for (const one of operands) {
    const fits = one.shape.length === type.shape.length && one.shape.every((size, axis) => size <= type.shape[axis]! - (axis === dimension ? start : 0));
    if (!fits || one.dtype !== type.dtype) refuse("concatenates tensors that do not fit");
    copy(made.data, start * own[dimension]!, own, one.data, 0, strides(one.shape), one.shape);
    start += one.shape[dimension]!;
  }
  return made;
}

/** Put values apart, with what fills before, between and after them; less than none takes values away. */
export function padded(step: Step, a: Tensor, value: Tensor, type: Type): Tensor {
  const rank = a.shape.length, low = step.given["low"] as number[], between = list(step.given["interior"], rank).map((one) => one + 1), made = zeros(type);
  if (low.length !== rank || type.shape.length !== rank || a.dtype !== type.dtype || value.dtype !== type.dtype) refuse("pads tensors that do not fit");
  (made.data as Float32Array).fill(value.data[0] as number);
  // Of each dimension, the first value that stays, and how many do.
  const first = low.map((one, axis) => Math.max(0, Math.ceil(-one / between[axis]!)));
  const kept = low.map((one, axis) => Math.max(0, Math.min(a.shape[axis]! - 1, Math.floor((type.shape[axis]! - 1 - one) / between[axis]!)) - first[axis]! + 1));
  const own = strides(a.shape), into = strides(type.shape), sum = (places: number[], steps: number[]): number => places.reduce((total, one, axis) => total + one * steps[axis]!, 0);
  const to = sum(low.map((one, axis) => one + first[axis]! * between[axis]!), into);
  if (count(kept)) copy(made.data, to, into.map((one, axis) => one * between[axis]!), a.data, sum(first, own), own, kept);
  return made;
}

/** Where the windows of a gather or a scatter lie: for each index of the indices, the corner in the operand, or -1 where it is outside. */
function corners(step: Step, operand: Tensor, indices: Tensor, window: number[], clamp: boolean): Int32Array {
  const dimension = step.given["index_vector_dim"] as number, rank = operand.shape.length, beside = axes(step.given["indices_batching"], indices.shape.length);
  const along = axes(step.given["start_index_map"], rank), batched = axes(step.given["operand_batching"], rank);
  const own = strides(operand.shape), at = strides(indices.shape), outer = indices.shape.map((_, axis) => axis).filter((axis) => axis !== dimension);
  const sizes = outer.map((axis) => indices.shape[axis]!), places = offsets(sizes, outer.map((axis) => at[axis]!)), by = at[dimension] ?? 0;
  if (batched.length !== beside.length || along.length !== (indices.shape[dimension] ?? 1) || indices.dtype === "float32" || indices.dtype === "bool")
    refuse("gathers or scatters by indices that do not fit");
  batched.forEach((axis, one) => operand.shape[axis] === indices.shape[beside[one]!] || refuse("gathers or scatters by indices that do not fit"));
  const begins = offsets(sizes, outer.map((axis) => (beside.includes(axis) ? own[batched[beside.indexOf(axis)]!]! : 0)));
  const found = new Int32Array(places.length), most = along.map((axis) => operand.shape[axis]! - window[axis]!);
  for (let one = 0; one < places.length; one++) {
    let corner = begins[one]!;
    for (let k = 0; k < along.length; k++) {
      let start = Number(indices.data[places[one]! + k * by]!);
      if (clamp) start = Math.min(Math.max(start, 0), most[k]!);
      else if (start < 0 || start > most[k]!) {
        // Of windows that lie inside in part, runtimes make different things.
        if (start > -window[along[k]!]! && start < operand.shape[along[k]!]!) refuse("scatters a window that lies outside of a tensor in part");
        corner = -1;
        break;
      }
      corner += start * own[along[k]!]!;
    }
    found[one] = corner;
  }
  return found;
}

/** Row-major offsets of the windows in a tensor whose dimensions `inside` are theirs, and of those windows in the operand. */
function windows(shape: number[], inside: number[], operand: Tensor, window: number[], collapsed: number[]) {
  const steps = strides(shape), own = strides(operand.shape), outside = shape.map((_, axis) => axis).filter((axis) => !inside.includes(axis));
  const kept = operand.shape.map((_, axis) => axis).filter((axis) => !collapsed.includes(axis)), sizes = kept.map((axis) => window[axis]!);
  const fits = sizes.length === inside.length && sizes.every((one, index) => one === shape[inside[index]!]) && collapsed.every((axis) => window[axis] === 1);
  if (!fits || window.length !== operand.shape.length || window.some((one, axis) => !(one <= operand.shape[axis]!))) refuse("gathers or scatters windows that do not fit");
  return {
    outer: offsets(outside.map((axis) => shape[axis]!), outside.map((axis) => steps[axis]!)),
    inner: offsets(sizes, inside.map((axis) => steps[axis]!)),
    operand: offsets(sizes, kept.map((axis) => own[axis]!)),
  };
}

export function gathered(step: Step, operand: Tensor, indices: Tensor, type: Type): Tensor {
  const rank = operand.shape.length, window = list(step.given["slice_sizes"], rank), inside = axes(step.given["offset_dims"], type.shape.length);
  const places = windows(type.shape, inside, operand, window, [...axes(step.given["collapsed"], rank), ...axes(step.given["operand_batching"], rank)]);
  const made = zeros(type), into = made.data as Numbers, source = operand.data as Numbers, from = corners(step, operand, indices, window, true);
  if (from.length !== places.outer.length || operand.dtype !== type.dtype) refuse("gathers another number of windows than it has indices, or of another type");
  for (let one = 0; one < from.length; one++)
    for (let k = 0, to = places.outer[one]!, corner = from[one]!; k < places.inner.length; k++) into[to + places.inner[k]!] = source[corner + places.operand[k]!]!;
  return made;
}

export function scattered(step: Step, operands: Tensor[], combiner: (step: Step) => string): Tensor {
  const [operand, indices, updates] = operands as [Tensor, Tensor, Tensor];
  if (operands.length !== 3 || isLarge(operand) || operand.dtype !== updates.dtype) refuse("scatters more than one tensor, or tensors of 64 bits");
  const rank = operand.shape.length, inside = axes(step.given["update_window_dims"], updates.shape.length), name = combiner(step), how = howOf(name, operand.dtype);
  const inserted = [...axes(step.given["inserted"], rank), ...axes(step.given["operand_batching"], rank)];
  let next = 0;
  const window = operand.shape.map((_, axis) => (inserted.includes(axis) ? 1 : (updates.shape[inside[next++] ?? -1] ?? 0)));
  const places = windows(updates.shape, inside, operand, window, inserted), to = corners(step, operand, indices, window, false);
  if (to.length !== places.outer.length) refuse("scatters another number of windows than it has indices");
  const made: Tensor = { ...operand, data: operand.data.slice() }, into = made.data as Numbers, source = updates.data as Numbers, adds = name === "add";
  for (let one = 0; one < to.length; one++) {
    const corner = to[one]!, from = places.outer[one]!;
    if (corner < 0) continue;
    if (adds) for (let k = 0; k < places.inner.length; k++) into[corner + places.operand[k]!]! += source[from + places.inner[k]!]!;
    else for (let k = 0; k < places.inner.length; k++) into[corner + places.operand[k]!] = how(into[corner + places.operand[k]!]!, source[from + places.inner[k]!]!);
  }
  return made;
}

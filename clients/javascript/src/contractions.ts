/** Operations that add up: products of matrices, and reductions. */

import { howOf, isLarge, LATTER, type Numbers, refuse } from "./elementwise.js";
import { axes, offsets, strides } from "./movement.js";
import { type Step, type Tensor, type Type, zeros } from "./program.js";

interface Sides { batch: Int32Array; inner: Int32Array; free: Int32Array; sizes: number[] }

function sides(tensor: Tensor, batched: unknown, contracted: unknown): Sides {
  const own = strides(tensor.shape), rank = tensor.shape.length, batch = axes(batched, rank), inner = axes(contracted, rank);
  const free = tensor.shape.map((_, axis) => axis).filter((axis) => !batch.includes(axis) && !inner.includes(axis));
  const of = (list: number[]): Int32Array => offsets(list.map((axis) => tensor.shape[axis]!), list.map((axis) => own[axis]!));
  return { batch: of(batch), inner: of(inner), free: of(free), sizes: [...batch, ...inner].map((axis) => tensor.shape[axis]!) };
}

/** Lay the values of one matrix of a batch end to end, `inner` of each line together. */
function packed(into: Float32Array, from: Float32Array, start: number, lines: Int32Array, inner: Int32Array): void {
  const length = inner.length;
  if (length > 1 && endToEnd(inner)) {
    for (let line = 0; line < lines.length; line++) into.set(from.subarray(start + lines[line]!, start + lines[line]! + length), line * length);
    return;
  }
  for (let line = 0, place = 0; line < lines.length; line++) {
    const begin = start + lines[line]!;
    for (let k = 0; k < length; k++) into[place++] = from[begin + inner[k]!]!;
  }
}

/**
 * Multiply matrices, with sums in 64 bits.
 *
 * @param check is called with bytes that are needed beside the result, and again and again for the time
 */
export function dot({ given }: Step, a: Tensor, b: Tensor, type: Type, check: (bytes: number) => void): Tensor {
  if (a.dtype !== "float32" || b.dtype !== "float32" || type.dtype !== "float32") refuse("multiplies matrices of other numbers than float32");
  const x = sides(a, given["lhs_batching"], given["lhs_contracting"]), y = sides(b, given["rhs_batching"], given["rhs_contracting"]);
  const made = zeros(type), into = made.data as Float32Array, inner = x.inner.length, rows = x.free.length, columns = y.free.length;
  if (x.sizes.join() !== y.sizes.join() || into.length !== x.batch.length * rows * columns) refuse("multiplies matrices that do not fit");
  check(4 * inner * (rows + columns));
  const left = new Float32Array(inner * rows), right = new Float32Array(inner * columns);
  for (let batch = 0; batch < x.batch.length; batch++) {
    packed(left, a.data as Float32Array, x.batch[batch]!, x.free, x.inner);
    packed(right, b.data as Float32Array, y.batch[batch]!, y.free, y.inner);
    const start = batch * rows * columns;
    let row = 0;
    for (; row + 1 < rows; row += 2) {
      check(0);
      multiplyTwo(into, start + row * columns, left, row * inner, right, inner, columns);
    }
    if (row < rows) multiplyOne(into, start + row * columns, left, row * inner, right, inner, columns);
  }
  return made;
}

/** Two rows by all columns; four columns at once, since additions wait for each other. */
function multiplyTwo(into: Float32Array, to: number, left: Float32Array, row: number, right: Float32Array, inner: number, columns: number): void {
  let column = 0;
  for (; column + 3 < columns; column += 4) {
    let a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
    const p = column * inner, q = p + inner, r = q + inner, s = r + inner, other = row + inner;
    for (let k = 0; k < inner; k++) {
      const u = left[row + k]!, v = left[other + k]!, w = right[p + k]!, x = right[q + k]!, y = right[r + k]!, z = right[s + k]!;
      a += u * w;
      b += u * x;
      c += u * y;
      d += u * z;
      e += v * w;
      f += v * x;
      g += v * y;
      h += v * z;
    }
    const first = to + column, second = first + columns;
    into[first] = a;
    into[first + 1] = b;
    into[first + 2] = c;
    into[first + 3] = d;
    into[second] = e;
    into[second + 1] = f;
    into[second + 2] = g;
    into[second + 3] = h;
  }
  for (; column < columns; column++) {
    let a = 0, b = 0;
    const p = column * inner;
    for (let k = 0; k < inner; k++) {
      a += left[row + k]! * right[p + k]!;
      b += left[row + inner + k]! * right[p + k]!;
    }
    into[to + column] = a;
    into[to + columns + column] = b;
  }
}

function multiplyOne(into: Float32Array, to: number, left: Float32Array, row: number, right: Float32Array, inner: number, columns: number): void {
  for (let column = 0; column < columns; column++) {
    let sum = 0;
    for (let k = 0, p = column * inner; k < inner; k++) sum += left[row + k]! * right[p + k]!;
    into[to + column] = sum;
  }
}

/** The one operation of a region that combines two values. */
export function combiner(step: Step): string {
  const body = step.regions[0], [first, last] = body?.steps ?? [];
  // A region without an operation keeps what is new.
  if (body?.steps.length === 1 && body.arguments.length === 2 && first!.name === "return" && first!.operands[0] === body.arguments[1]) return LATTER;
  const plain = body?.steps.length === 2 && last!.name === "return" && last!.operands[0] === first!.results[0] && body.arguments.length === 2;
  if (!plain || first!.operands.length !== 2 || new Set([...first!.operands, ...body.arguments]).size !== 2) refuse(`has ${step.name} by more than one operation`);
  return first!.name;
}

export function reduced(step: Step, operands: Tensor[]): Tensor {
  const [a, start] = operands as [Tensor, Tensor], type = step.types[0];
  if (operands.length !== 2 || !type || isLarge(a) || start.dtype !== a.dtype || type.dtype !== a.dtype) refuse("reduces more than one tensor, or tensors of 64 bits");
  const name = combiner(step), how = howOf(name, a.dtype), dropped = axes(step.given["dimensions"], a.shape.length);
  const kept = a.shape.map((_, axis) => axis).filter((axis) => !dropped.includes(axis)), own = strides(a.shape);
  const of = (list: number[]): Int32Array => offsets(list.map((axis) => a.shape[axis]!), list.map((axis) => own[axis]!));
  const outer = of(kept), inner = of(dropped), made = zeros(type), source = a.data as Numbers, into = made.data as Numbers, adds = name === "add" && a.dtype === "float32";
  if (outer.length !== into.length) refuse("reduces to another size");
  const first = start.data[0] as number;
  if (adds && endToEnd(outer) && !endToEnd(inner)) {
    // Sums down columns are made line by line, as the values lie.
    const sums = new Float64Array(outer.length).fill(first);
    for (let k = 0; k < inner.length; k++)
      for (let place = 0, base = inner[k]!; place < sums.length; place++) sums[place]! += source[base + place]!;
    (made.data as Float32Array).set(sums);
    return made;
  }
  for (let place = 0; place < outer.length; place++) {
    const base = outer[place]!;
    let value = first;
    if (adds) for (let k = 0; k < inner.length; k++) value += source[base + inner[k]!]!;
    else if (name === "maximum") for (let k = 0; k < inner.length; k++) value = Math.max(value, source[base + inner[k]!]!);
    else for (let k = 0; k < inner.length; k++) value = how(value, source[base + inner[k]!]!);
    into[place] = value;
  }
  return made;
}

function endToEnd(places: Int32Array): boolean {
  const last = places.length - 1;
  return last < 1 || (places[1] === 1 && places[last] === last);
}

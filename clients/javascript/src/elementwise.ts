/** Operations on the values of tensors one by one, each in a loop of its own: a call for every value would take several times as long. */

import { PlanError } from "./errors.js";
import { count, type Tensor, type Type, zeros } from "./program.js";

export type Numbers = { [index: number]: number; length: number };
export type Both = (a: number, b: number) => number;

export function refuse(what: string): never {
  throw new PlanError(`the plan's program ${what}`);
}

export function isLarge(type: Type): boolean {
  return type.dtype === "int64" || type.dtype === "uint64";
}

function sameSize(name: string, ...tensors: Type[]): void {
  if (tensors.some((one) => count(one.shape) !== count(tensors[0]!.shape))) refuse(`has ${name} of tensors that do not fit`);
}

const HALVES = (a: number): number => {
  const below = Math.floor(a), rest = a - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
};
const UNARY: Record<string, (a: number) => number> = {
  abs: Math.abs, floor: Math.floor, ceil: Math.ceil, sine: Math.sin, cosine: Math.cos, tan: Math.tan, cbrt: Math.cbrt, logistic: (a) => 1 / (1 + Math.exp(-a)),
  exponential_minus_one: Math.expm1, log_plus_one: Math.log1p, sign: Math.sign, round_nearest_even: HALVES,
  round_nearest_afz: (a) => Math.sign(a) * Math.floor(Math.abs(a) + 0.5),
};
const WHOLE_UNARY: Record<string, (a: number) => number> = {
  abs: Math.abs, sign: Math.sign, popcnt: (a) => {
    let bits = 0;
    for (let rest = a >>> 0; rest; rest &= rest - 1) bits++;
    return bits;
  },
};

/** An operation of one operand; null where there is none of that name. */
export function unary(name: string, a: Tensor, type: Type): Tensor | null {
  if (isLarge(a)) return null;
  const made = zeros(type), x = a.data as Numbers, into = made.data as Numbers, length = into.length;
  if (x.length !== length) refuse(`has ${name} of tensors that do not fit`);
  const float = a.dtype === "float32";
  switch (name) {
    case "negate": for (let i = 0; i < length; i++) into[i] = -x[i]!; return made;
    case "exponential": for (let i = 0; i < length; i++) into[i] = Math.exp(x[i]!); return made;
    case "log": for (let i = 0; i < length; i++) into[i] = Math.log(x[i]!); return made;
    case "tanh": for (let i = 0; i < length; i++) into[i] = Math.tanh(x[i]!); return made;
    case "sqrt": for (let i = 0; i < length; i++) into[i] = Math.sqrt(x[i]!); return made;
    case "rsqrt": for (let i = 0; i < length; i++) into[i] = 1 / Math.sqrt(x[i]!); return made;
    case "is_finite": for (let i = 0; i < length; i++) into[i] = x[i]! - x[i]! === 0 ? 1 : 0; return made;
    case "not":
      if (a.dtype === "bool") for (let i = 0; i < length; i++) into[i] = 1 - x[i]!;
      else for (let i = 0; i < length; i++) into[i] = ~x[i]!;
      return made;
    case "count_leading_zeros": {
      const unused = 32 - 8 * a.data.BYTES_PER_ELEMENT;
      for (let i = 0; i < length; i++) into[i] = Math.clz32(x[i]!) - unused;
      return made;
    }
  }
  const how = (float ? UNARY : WHOLE_UNARY)[name];
  if (!how) return null;
  for (let i = 0; i < length; i++) into[i] = how(x[i]!);
  return made;
}

const FLOAT: Record<string, Both> = {
  add: (a, b) => a + b, subtract: (a, b) => a - b, multiply: (a, b) => a * b, divide: (a, b) => a / b, maximum: Math.max, minimum: Math.min, power: Math.pow,
  remainder: (a, b) => a % b, atan2: Math.atan2,
};
const WHOLE: Record<string, Both> = {
  add: FLOAT["add"]!, subtract: FLOAT["subtract"]!, maximum: Math.max, minimum: Math.min, multiply: Math.imul, power: Math.pow,
  divide: (a, b) => (b === 0 ? -1 : Math.trunc(a / b)), remainder: (a, b) => (b === 0 ? a : a % b), and: (a, b) => a & b, or: (a, b) => a | b, xor: (a, b) => a ^ b,
  shift_left: (a, b) => (b >>> 0 > 31 ? 0 : a << b), shift_right_logical: (a, b) => (b >>> 0 > 31 ? 0 : a >>> b),
  shift_right_arithmetic: (a, b) => (a | 0) >> (b >>> 0 > 31 ? 31 : b),
};
const TRUTH: Record<string, Both> = { and: WHOLE["and"]!, or: WHOLE["or"]!, xor: WHOLE["xor"]!, add: WHOLE["or"]!, multiply: WHOLE["and"]!, maximum: Math.max, minimum: Math.min };
const LARGE: Record<string, (a: bigint, b: bigint) => bigint> = {
  add: (a, b) => a + b, subtract: (a, b) => a - b, multiply: (a, b) => a * b, and: (a, b) => a & b, or: (a, b) => a | b, xor: (a, b) => a ^ b,
  shift_left: (a, b) => (b < 0n || b > 63n ? 0n : a << b), shift_right_logical: (a, b) => (b < 0n || b > 63n ? 0n : BigInt.asUintN(64, a) >> b),
  maximum: (a, b) => (a > b ? a : b), minimum: (a, b) => (a < b ? a : b),
};

/** What combines two values to the second of them; no operation has this name. */
export const LATTER = "the latter";

export function howOf(name: string, dtype: string): Both {
  if (name === LATTER) return (_, b) => b;
  return (dtype === "float32" ? FLOAT : dtype === "bool" ? TRUTH : WHOLE)[name] ?? refuse(`has the operation ${name} of ${dtype}, which this client does not run`);
}

export function binary(name: string, a: Tensor, b: Tensor | undefined, type: Type): Tensor {
  if (!b) refuse(`has ${name} of fewer tensors than it takes`);
  sameSize(name, a, b, type);
  const made = zeros(type), length = made.data.length;
  if (isLarge(a)) {
    const how = LARGE[name] ?? refuse(`has the operation ${name} of ${a.dtype}, which this client does not run`);
    if (!isLarge(b) || !isLarge(type)) refuse(`has ${name} of tensors that do not fit`);
    const x = a.data as BigUint64Array, y = b.data as BigUint64Array, into = made.data as BigUint64Array;
    for (let i = 0; i < length; i++) into[i] = how(x[i]!, y[i]!);
    return made;
  }
  if (a.dtype === "float32" && b.dtype === "float32" && type.dtype === "float32") {
    const x = a.data as Float32Array, y = b.data as Float32Array, into = made.data as Float32Array;
    switch (name) {
      case "add": for (let i = 0; i < length; i++) into[i] = x[i]! + y[i]!; return made;
      case "subtract": for (let i = 0; i < length; i++) into[i] = x[i]! - y[i]!; return made;
      case "multiply": for (let i = 0; i < length; i++) into[i] = x[i]! * y[i]!; return made;
      case "divide": for (let i = 0; i < length; i++) into[i] = x[i]! / y[i]!; return made;
      case "maximum": for (let i = 0; i < length; i++) into[i] = Math.max(x[i]!, y[i]!); return made;
    }
  }
  if (a.dtype === "uint32" && b.dtype === "uint32" && type.dtype === "uint32") {
    const x = a.data as Uint32Array, y = b.data as Uint32Array, into = made.data as Uint32Array;
    switch (name) {
      case "add": for (let i = 0; i < length; i++) into[i] = x[i]! + y[i]!; return made;
      case "xor": for (let i = 0; i < length; i++) into[i] = x[i]! ^ y[i]!; return made;
      case "or": for (let i = 0; i < length; i++) into[i] = x[i]! | y[i]!; return made;
      case "multiply": for (let i = 0; i < length; i++) into[i] = Math.imul(x[i]!, y[i]!); return made;
    }
  }
  if (isLarge(b) || isLarge(type)) refuse(`has ${name} of tensors that do not fit`);
  const how = howOf(name, a.dtype), x = a.data as Numbers, y = b.data as Numbers, into = made.data as Numbers;
  for (let i = 0; i < length; i++) into[i] = how(x[i]!, y[i]!);
  return made;
}

export function compared(direction: number, a: Tensor, b: Tensor | undefined, type: Type): Tensor {
  if (!b || isLarge(a) !== isLarge(b)) refuse("compares tensors that do not fit");
  sameSize("compare", a, b, type);
  // Numbers of 64 bits compare by the same signs.
  const made = zeros(type), into = made.data as Numbers, x = a.data as Numbers, y = b.data as Numbers, length = into.length;
  switch (direction) {
    case 0: for (let i = 0; i < length; i++) into[i] = x[i]! === y[i]! ? 1 : 0; return made;
    case 1: for (let i = 0; i < length; i++) into[i] = x[i]! !== y[i]! ? 1 : 0; return made;
    case 2: for (let i = 0; i < length; i++) into[i] = x[i]! >= y[i]! ? 1 : 0; return made;
    case 3: for (let i = 0; i < length; i++) into[i] = x[i]! > y[i]! ? 1 : 0; return made;
    case 4: for (let i = 0; i < length; i++) into[i] = x[i]! <= y[i]! ? 1 : 0; return made;
    case 5: for (let i = 0; i < length; i++) into[i] = x[i]! < y[i]! ? 1 : 0; return made;
  }
  return refuse("compares in an unknown way");
}

export function selected([where, yes, no]: (Tensor | undefined)[], type: Type): Tensor {
  if (!where || !yes || !no || yes.dtype !== type.dtype || no.dtype !== type.dtype) refuse("selects from tensors that do not fit");
  sameSize("select", yes, no, type);
  const made = zeros(type), length = made.data.length;
  if (where.data.length === 1) {
    (made.data as Float32Array).set((where.data[0] ? yes : no).data as Float32Array);
    return made;
  }
  sameSize("select", where, type);
  const into = made.data as Numbers, x = yes.data as Numbers, y = no.data as Numbers, chosen = where.data as Uint8Array;
  for (let i = 0; i < length; i++) into[i] = chosen[i] ? x[i]! : y[i]!;
  return made;
}

export function clamped([least, a, most]: (Tensor | undefined)[], type: Type): Tensor {
  if (!least || !a || !most || isLarge(a) || least.dtype !== a.dtype || most.dtype !== a.dtype) refuse("clamps tensors that do not fit");
  sameSize("clamp", a, type);
  const made = zeros(type), into = made.data as Numbers, x = a.data as Numbers, low = least.data as Numbers, high = most.data as Numbers;
  for (const one of [low, high]) if (one.length !== 1 && one.length !== into.length) refuse("clamps tensors that do not fit");
  const byLow = Number(low.length > 1), byHigh = Number(high.length > 1);
  for (let i = 0; i < into.length; i++) into[i] = Math.min(Math.max(x[i]!, low[i * byLow]!), high[i * byHigh]!);
  return made;
}

const WIDTH: Record<string, [number, number]> = { int32: [-(2 ** 31), 2 ** 31 - 1], uint8: [0, 255], uint16: [0, 65535], uint32: [0, 2 ** 32 - 1] };

export function converted(a: Tensor, type: Type): Tensor {
  sameSize("convert", a, type);
  const made = zeros(type), length = made.data.length, range = WIDTH[type.dtype];
  if (type.dtype === "bool") {
    for (let i = 0; i < length; i++) made.data[i] = a.data[i] ? 1 : 0;
  } else if (isLarge(type)) {
    for (let i = 0; i < length; i++) made.data[i] = typeof a.data[i] === "bigint" ? a.data[i]! : BigInt(Math.trunc(Number(a.data[i]) || 0));
  } else if (isLarge(a)) {
    for (let i = 0; i < length; i++) made.data[i] = range ? Number(BigInt.asUintN(32, a.data[i] as bigint)) : Number(a.data[i]);
  } else if (a.dtype === "float32" && range) {
    const [least, most] = range, x = a.data as Float32Array, into = made.data as Numbers;
    for (let i = 0; i < length; i++) into[i] = Math.min(Math.max(x[i]!, least), most);
  } else {
    (made.data as Float32Array).set(a.data as Float32Array);
  }
  return made;
}

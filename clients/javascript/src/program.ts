/** A program of StableHLO, read from a portable artifact: operations on tensors alone, every name and shape of which was looked at. */

import { type Entry, type Module, type Operation, Reader, type Region, readModule } from "./bytecode.js";
import { PlanError } from "./errors.js";

export type Dtype = "bool" | "float32" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64";
export type Data = Float32Array | Int32Array | BigInt64Array | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;
export interface Type { shape: number[]; dtype: Dtype }
export interface Tensor extends Type { data: Data }
export type Value = number[] | number | string | Tensor | undefined;

/** An operation with what its attributes mean, by their names. */
export interface Step { name: string; given: Record<string, Value>; operands: number[]; results: number[]; types: Type[]; regions: Body[] }
export interface Body { steps: Step[]; arguments: number[]; types: Type[] }

const CODES = { array: 1, boolean: 2, direction: 3, comparison: 4, integer: 9, string: 14, tensor: 15 };
const TENSOR = 20, FUNCTION = 8, MOST_VALUES = 2 ** 31;
const ELEMENTS: Record<number, Dtype> = { 0: "bool", 4: "float32", 13: "int32", 14: "int64", 16: "uint8", 17: "uint16", 18: "uint32", 19: "uint64" };
const ARRAYS = {
  bool: Uint8Array, float32: Float32Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array,
  uint64: BigUint64Array,
};
const PLAIN = `add_v1 and_v1 or_v1 xor_v1 subtract_v1 multiply_v1 divide_v1 maximum_v1 minimum_v1 abs_v1 negate_v1 floor_v1 is_finite_v1 select_v1 convert_v1
  reshape_v1 shift_left_v1 shift_right_logical_v1 sign_v1 optimization_barrier_v1 while_v1 case_v1 return_v1 dynamic_update_slice_v1 power_v1 not_v1
  remainder_v1 ceil_v1 clamp_v1 popcnt_v1 count_leading_zeros_v1 round_nearest_even_v1 round_nearest_afz_v1 shift_right_arithmetic_v1 atan2_v1
  bitcast_convert_v1`;
const ACCURATE = "exponential_v2 log_v2 sqrt_v2 rsqrt_v2 tanh_v2 sine_v2 cosine_v2 logistic_v2 exponential_minus_one_v2 log_plus_one_v2 cbrt_v2 tan_v2";
/** The operations that this client runs, with the names of their attributes in the order in which they travel. */
const ATTRIBUTES = new Map<string, string[]>([
  ...PLAIN.split(/\s+/).map((name): [string, string[]] => [name, []]),
  ...ACCURATE.split(" ").map((name): [string, string[]] => [name, ["result_accuracy"]]),
  ["constant_v1", ["value"]],
  ["broadcast_in_dim_v1", ["broadcast_dimensions"]],
  ["call_v1", ["callee"]],
  ["compare_v1", ["compare_type", "comparison_direction"]],
  ["concatenate_v1", ["dimension"]],
  ["dot_general_v2", ["accumulation_type", "allow_imprecise", "lhs_batching", "lhs_components", "lhs_contracting", "lhs_type", "operations", "precision",
    "rhs_batching", "rhs_components", "rhs_contracting", "rhs_type"]],
  ["dynamic_slice_v1", ["slice_sizes"]],
  ["func_v1", ["arg_attrs", "function_type", "res_attrs", "sym_name", "sym_visibility"]],
  ["gather_v2", ["collapsed", "index_vector_dim", "sorted", "offset_dims", "operand_batching", "slice_sizes", "start_index_map", "indices_batching"]],
  ["iota_v1", ["iota_dimension"]],
  ["pad_v1", ["high", "low", "interior"]],
  ["reduce_v1", ["dimensions"]],
  ["reverse_v1", ["dimensions"]],
  ["scatter_v2", ["index_vector_dim", "sorted", "operand_batching", "inserted", "start_index_map", "indices_batching", "unique", "update_window_dims"]],
  ["slice_v1", ["limit", "start", "strides"]],
  ["transpose_v1", ["permutation"]],
]);
const UNREAD = new Set(["accumulation_type", "allow_imprecise", "lhs_components", "lhs_type", "operations", "precision", "rhs_components", "rhs_type",
  "result_accuracy", "arg_attrs", "res_attrs", "sorted", "unique", "sym_visibility", "function_type"]);

export function count(shape: number[]): number {
  return shape.reduce((product, one) => product * one, 1);
}

export function zeros(type: Type): Tensor {
  return { ...type, data: new ARRAYS[type.dtype](count(type.shape)) };
}

/** The same bits as numbers of another type that is as wide; null where it is not. */
export function bitcast(a: Tensor, type: Type): Tensor | null {
  const made = ARRAYS[type.dtype], { buffer, byteOffset, byteLength, BYTES_PER_ELEMENT: width } = a.data;
  if (a.dtype === "bool" || type.dtype === "bool" || made.BYTES_PER_ELEMENT !== width || count(type.shape) !== a.data.length) return null;
  return { ...type, data: new made(buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer) };
}

export function bytesOf(type: Type): number {
  return count(type.shape) * ARRAYS[type.dtype].BYTES_PER_ELEMENT;
}

/** Read the functions of a program by their names; raises PlanError where it does more than compute, or its constants take more than so many bytes. */
export function readProgram(content: Uint8Array, memoryBytes: number): Map<string, Body> {
  const module = readModule(content);
  const reading = new Reading(module, memoryBytes);
  const [top] = module.top;
  if (module.top.length !== 1 || top?.name !== "builtin.module" || top.regions.length !== 1) throw new PlanError("the plan's program is no single module");
  const functions = new Map<string, Body>();
  for (const one of top.regions[0]!.operations) {
    if (one.name !== "vhlo.func_v1") throw new PlanError(`the plan's program has the operation ${one.name.slice(0, 80)} among its functions`);
    const read = reading.step(one);
    const name = read.given["sym_name"];
    if (typeof name !== "string" || functions.has(name) || read.regions.length !== 1) throw new PlanError("the plan's program has a function without a name, or two of one");
    functions.set(name, read.regions[0]!);
  }
  return functions;
}

/** Lists of dimensions and sizes travel as tensors of 64 bits. */
function plain(name: string, value: Value): Value {
  return typeof value === "object" && "dtype" in value && name !== "value" ? Array.from(value.data, Number) : value;
}

class Reading {
  constructor(private readonly module: Module, private left: number) {}

  step(one: Operation): Step {
    const [dialect, short = ""] = one.name.split(/\.(.*)/s);
    const names = ATTRIBUTES.get(short);
    if (dialect !== "vhlo" || !names) throw new PlanError(`the plan's program has the operation '${one.name.slice(0, 80)}', which this client does not run`);
    if (names.length !== one.attributes.length) throw new PlanError(`the plan's program has ${one.attributes.length} attributes of ${short}, and not ${names.length}`);
    const given: Record<string, Value> = {};
    names.forEach((name, index) => {
      if (!UNREAD.has(name)) given[name] = plain(name, this.attribute(one.attributes[index]!));
    });
    const types = one.types.map((type) => this.type(type));
    return { name: short.replace(/_v\d+$/, ""), given, operands: one.operands, results: one.results, types, regions: one.regions.map((region) => this.body(region)) };
  }

  private body(region: Region): Body {
    const types = region.types.map((type) => this.type(type));
    return { steps: region.operations.map((one) => this.step(one)), arguments: region.arguments, types };
  }

  private entry(list: Entry[], index: number): Reader {
    const found = list[index];
    if (!found?.custom || found.dialect !== "vhlo") throw new PlanError("the plan's program has a type or an attribute that this client does not read");
    return new Reader(found.content);
  }

  private element(index: number): Dtype {
    const code = this.entry(this.module.types, index).count();
    const found = ELEMENTS[code];
    if (!found) throw new PlanError(`the plan's program has numbers of a type (${code}) that this client does not read`);
    return found;
  }

  private type(index: number): Type {
    const reader = this.entry(this.module.types, index);
    const code = reader.count();
    if (code !== TENSOR) throw new PlanError(`the plan's program has a type (${code === FUNCTION ? "function" : code}) where a tensor belongs`);
    const shape = reader.list(() => Number(reader.signed()));
    if (shape.some((one) => one < 0) || count(shape) > MOST_VALUES) throw new PlanError("the plan's program has a tensor without a fixed size, or too large");
    return { shape, dtype: this.element(reader.count()) };
  }

  private attribute(index: number): Value {
    const reader = this.entry(this.module.attributes, index);
    const code = reader.count();
    if (code === CODES.array || code === CODES.boolean) return undefined;
    if (code === CODES.direction || code === CODES.comparison) return reader.count();
    if (code === CODES.string) return this.module.strings[reader.count()];
    if (code === CODES.tensor) return this.tensor(this.type(reader.count()), reader.take(reader.count()));
    if (code !== CODES.integer) throw new PlanError(`the plan's program has an attribute (${code}) that this client does not read`);
    reader.count();
    return Number(reader.signed());
  }

  private tensor(type: Type, bytes: Uint8Array): Tensor {
    this.left -= bytesOf(type);
    if (this.left < 0) throw new PlanError("the plan's program has constants that need more memory than it may have");
    const made = zeros(type);
    const into = new Uint8Array(made.data.buffer);
    const size = ARRAYS[type.dtype].BYTES_PER_ELEMENT;
    if (bytes.length !== into.length && bytes.length !== size) throw new PlanError("the plan's program has a constant of another size than its type");
    for (let place = 0; place < into.length; place += bytes.length) into.set(bytes, place);
    if (type.dtype === "bool") into.forEach((one, place) => (into[place] = one ? 1 : 0));
    return made;
  }
}

/** Tensors as they go into a plan's model and come out of it. */

export type Dtype = "float32" | "int32" | "uint8";
export type Data = Float32Array | Int32Array | Uint8Array;
export interface Type { shape: number[]; dtype: Dtype }
export interface Tensor extends Type { data: Data }

const ARRAYS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };
export const DTYPES = Object.keys(ARRAYS);

export function count(shape: number[]): number {
  return shape.reduce((product, one) => product * one, 1);
}

export function zeros(type: Type): Tensor {
  return { ...type, data: new ARRAYS[type.dtype](count(type.shape)) };
}

export function bytesOf({ shape, dtype }: Type): number {
  return count(shape) * ARRAYS[dtype].BYTES_PER_ELEMENT;
}

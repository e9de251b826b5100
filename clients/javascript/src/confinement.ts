/** Takes from the thread that runs models all that C++ which a model took over could use: its runtime can call whatever has a name there. */

const KEPT = new Set([
  ..."Object Function Array Number Boolean String Symbol BigInt Date Promise RegExp Map Set WeakMap WeakSet WeakRef FinalizationRegistry Proxy Reflect JSON Math".split(" "),
  ..."Error AggregateError EvalError RangeError ReferenceError SyntaxError TypeError URIError Infinity NaN undefined globalThis parseFloat parseInt isFinite isNaN".split(" "),
  ..."ArrayBuffer DataView Int8Array Uint8Array Uint8ClampedArray Int16Array Uint16Array Int32Array Uint32Array Float32Array Float64Array BigInt64Array".split(" "),
  ..."BigUint64Array WebAssembly TextDecoder TextEncoder performance console self constructor onmessage crypto URL ReadableStreamDefaultReader GPUBuffer".split(" "),
]);
const names: [object, string][] = [];
for (let one: object | null = globalThis; one && one !== Object.prototype; one = Object.getPrototypeOf(one) as object | null)
  names.push(...Object.getOwnPropertyNames(one).map((name): [object, string] => [one!, name]));

/** Delete every other name that the thread began with; raises Error where one cannot be. */
export function confine(): void {
  const others = names.filter(([, name]) => !KEPT.has(name)), things = globalThis as Record<string, unknown>;
  for (const [place, name] of others) Reflect.deleteProperty(place, name);
  const left = others.map(([, name]) => name).filter((name) => Object(things[name]) === things[name]);
  if (left.length) throw new Error(`${left.slice(0, 5).join(", ")} cannot be taken from a thread that should have nothing`);
}

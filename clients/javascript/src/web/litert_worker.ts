/** The thread that runs models of LiteRT, in a browser. */

import { litert } from "../litert.js";
import { Answering, type Question } from "../training.js";

// What C++ that a model took over could use of a browser: its runtime can call whatever has a name here.
const KEPT = new Set([
  ..."Object Function Array Number Boolean String Symbol BigInt Date Promise RegExp Map Set WeakMap WeakSet WeakRef FinalizationRegistry Proxy Reflect JSON Math".split(" "),
  ..."Error AggregateError EvalError RangeError ReferenceError SyntaxError TypeError URIError Infinity NaN undefined globalThis parseFloat parseInt isFinite isNaN".split(" "),
  ..."ArrayBuffer DataView Int8Array Uint8Array Uint8ClampedArray Int16Array Uint16Array Int32Array Uint32Array Float32Array Float64Array BigInt64Array".split(" "),
  ..."BigUint64Array WebAssembly TextDecoder TextEncoder performance console self constructor onmessage crypto URL ReadableStreamDefaultReader GPUBuffer".split(" "),
]);
const names: [object, string][] = [];
for (let one: object | null = globalThis; one && one !== Object.prototype; one = Object.getPrototypeOf(one) as object | null)
  names.push(...Object.getOwnPropertyNames(one).map((name): [object, string] => [one!, name]));
const post = postMessage.bind(globalThis);

/** Take everything else from the thread: what the site keeps, above all. */
function confine(): void {
  const others = names.filter(([, name]) => !KEPT.has(name));
  for (const [place, name] of others) Reflect.deleteProperty(place, name);
  const left = others.map(([, name]) => name).filter((name) => Object((globalThis as Record<string, unknown>)[name]) === (globalThis as Record<string, unknown>)[name]);
  if (left.length) throw new Error(`this browser leaves ${left.slice(0, 5).join(", ")} to a thread that should have nothing`);
}

let runtime = new Uint8Array();
const answering = new Answering(litert(() => runtime, confine));
self.onmessage = ({ data }: MessageEvent<Question | { wasm: Uint8Array<ArrayBuffer> }>) => {
  if ("wasm" in data) runtime = data.wasm;
  else void answering.answer(data).then((answer) => post(answer));
};

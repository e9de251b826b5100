/** The thread that runs plans, in a browser. */

import { confine } from "../confinement.js";
import { litert } from "../litert.js";
import { Answering, type Question } from "../training.js";

const post = postMessage.bind(globalThis);
let runtime = new Uint8Array();
const answering = new Answering(litert(() => runtime, confine));
self.onmessage = ({ data }: MessageEvent<Question | { wasm: Uint8Array<ArrayBuffer> }>) => {
  if ("wasm" in data) runtime = data.wasm;
  else void answering.answer(data).then((answer) => post(answer));
};

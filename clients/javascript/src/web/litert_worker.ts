/** The thread that runs models of LiteRT, in a browser. */

import { litert } from "../litert.js";
import { Answering, type Question } from "../training.js";

let runtime = new Uint8Array();
const answering = new Answering(litert(() => runtime));
self.onmessage = ({ data }: MessageEvent<Question | { wasm: Uint8Array<ArrayBuffer> }>) => {
  if ("wasm" in data) runtime = data.wasm;
  else void answering.answer(data).then((answer) => postMessage(answer));
};

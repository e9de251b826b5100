/** The thread that runs plans, on Node. LiteRT.js is for browsers: it is shown a thread of one, and nothing of Node. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { Script } from "node:vm";
import { parentPort } from "node:worker_threads";

import { confine } from "../confinement.js";
import { litert } from "../litert.js";
import { Answering, type Question } from "../training.js";

const folder = join(dirname(createRequire(import.meta.url).resolve("@litertjs/core")), "../wasm"), name = "litert_wasm_compat_internal";
const script = new Script(readFileSync(join(folder, `${name}.js`), "utf8")), wasm = readFileSync(join(folder, `${name}.wasm`));
const port = parentPort!, answering = new Answering(litert(() => wasm, () => {}));
// Node's own console holds streams.
Object.assign(globalThis, { self: globalThis, console: { log() {}, warn() {}, error() {}, info() {}, debug() {} }, importScripts: () => void script.runInThisContext() });
port.on("message", (question: Question) => void answering.answer(question).then((answer) => port.postMessage(answer)));
confine();

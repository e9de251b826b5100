/** The thread that runs plans, on Node. */

import { isMainThread, parentPort, Worker } from "node:worker_threads";

import type { Manifest } from "../manifest.js";
import type { Thread } from "../trainer.js";
import { type Answer, Answering, interpreted, type Question } from "../training.js";

const MEGABYTE = 1 << 20, MOST_MEGABYTES = 4096;

/** Start it without this process's environment and with a bound on its heap; the interpreter bounds its tensors. */
export function startThread(manifest: Manifest): Thread {
  const maxOldGenerationSizeMb = Math.min(Math.ceil(manifest.memoryBytes / MEGABYTE), MOST_MEGABYTES);
  const worker = new Worker(new URL(import.meta.url), { env: {}, execArgv: [], resourceLimits: { maxOldGenerationSizeMb } });
  return {
    post: (question: Question) => worker.postMessage(question),
    answers(taken, ended) {
      worker.on("message", (answer: Answer) => taken(answer));
      worker.on("error", (error: Error) => ended(error.message.slice(0, 200)));
      worker.on("exit", () => ended("without a word"));
    },
    end: () => void worker.terminate(),
  };
}

if (!isMainThread && parentPort) {
  const port = parentPort, answering = new Answering(interpreted);
  port.on("message", (question: Question) => void answering.answer(question).then((answer) => port.postMessage(answer)));
}

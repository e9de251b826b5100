/** Starts the thread that runs plans, on Node. */

import { setFlagsFromString } from "node:v8";
import { Worker } from "node:worker_threads";

import type { Thread } from "../trainer.js";
import type { Answer, Question } from "../training.js";

/** Start it without this process's environment, and without code made of text; the runtime's memory is bounded in the thread. */
export function startThread(): Thread {
  setFlagsFromString("--disallow-code-generation-from-strings");
  const worker = new Worker(new URL("litert_worker.js", import.meta.url), { env: {}, execArgv: [] });
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

/** Starts the thread that runs plans, in a browser. */

import type { Thread } from "../trainer.js";
import type { Answer } from "../training.js";

export function startThread(): Thread {
  const worker = new Worker("worker.js", { type: "module" });
  return {
    post: (question) => worker.postMessage(question),
    answers(taken, ended) {
      worker.onmessage = (event: MessageEvent<Answer>) => taken(event.data);
      worker.onerror = (event) => ended(event.message || "without a word");
    },
    end: () => worker.terminate(),
  };
}

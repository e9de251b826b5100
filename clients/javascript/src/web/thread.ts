/** Starts the thread that runs plans, in a browser. */

import { ClientError, TransportError } from "../errors.js";
import { TIMES } from "../http_answers.js";
import type { Thread } from "../trainer.js";
import type { Answer } from "../training.js";

const RUNTIME = "litert.wasm.gz", INSTEAD = "its operator builds the page again";
let runtime: Uint8Array | null = null;

/** Start the thread of LiteRT.js. It may connect to nothing, so that the runtime is brought to it. */
export async function startThread(): Promise<Thread> {
  runtime ??= await fetchRuntime();
  const worker = new Worker("litert.js");
  worker.postMessage({ wasm: runtime });
  return {
    post: (question) => worker.postMessage(question),
    answers(taken, ended) {
      worker.onmessage = (event: MessageEvent<Answer>) => taken(event.data);
      worker.onerror = (event) => ended(event.message || "without a word");
    },
    end: () => worker.terminate(),
  };
}

async function fetchRuntime(): Promise<Uint8Array> {
  let answer: Response, packed: Blob;
  try {
    answer = await fetch(RUNTIME, { signal: AbortSignal.timeout(1000 * TIMES.transferSeconds), redirect: "error" });
    packed = await answer.blob();
  } catch (error) {
    throw new TransportError(`LiteRT.js did not come: ${(error as Error).message}`);
  }
  if (!answer.ok) throw new ClientError(`this page has no LiteRT.js beside it; ${INSTEAD}`);
  try {
    return new Uint8Array(await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
  } catch (error) {
    throw new ClientError(`${RUNTIME} of this page cannot be unpacked (${(error as Error).message}); ${INSTEAD}`);
  }
}

/** A device's text as lines of `{"text": "..."}` in UTF-8. */

import { ClientError } from "./errors.js";

/** Read all texts; raises ClientError where a line is none. */
export function readLines(content: Uint8Array, name: string): string[] {
  const found: string[] = [];
  let number = 0;
  try {
    for (const line of new TextDecoder("utf-8", { fatal: true }).decode(content).split(/\r\n|\n|\r/)) {
      number++;
      if (!line.trim()) continue;
      const { text } = JSON.parse(line) as { text?: unknown };
      if (typeof text !== "string") throw new TypeError("it has no text");
      found.push(text);
    }
  } catch {
    // What the parser says may hold the text itself, and this may go to a log.
    throw new ClientError(`${name}: expected lines of {"text": "..."} in UTF-8, but ${number ? `line ${number} is none` : "it is not UTF-8"}`);
  }
  return found;
}

/**
 * Which of a person's text is trained on: the lines of a file, and the examples that a text is cut into.
 *
 * The rules are those of docs/protocol.md, and of clients/fedlm_client/fedlm_client/text/text_examples.py: one table of cases tests both.
 */

import { ClientError } from "./errors.js";

/** What makes an example: each sentence of a text, or each text as a whole. */
export type ExampleCut = "sentences" | "texts";
export const CUTS: readonly ExampleCut[] = ["sentences", "texts"];

const LATEST = 1e11; // seconds since 1970; milliseconds passed it in 1973
const WHITE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const SPACES = new RegExp(WHITE), HALF_PAIR = /\p{Cs}/u, BOUNDARY = /[.!?]["'`)\]]* (?=["'`(\[]*[A-Z])/g, INITIAL = /^\p{Uppercase}$/u;
// Without the flag u, so that letters of ASCII alone are the same in both cases.
const ABBREVIATION = /^(?:al|approx|ca|cf|dr|e\.g|eq|fig|i\.e|incl|jr|mrs?|ms|nos?|pp|prof|resp|sec|sr|st|viz|vol|vs)$/i;

/** Cut a text into examples; there are none in a text that has no word, or that is no Unicode. */
export function examplesOf(text: string, cut: ExampleCut): string[] {
  const words = text.split(SPACES).filter(Boolean);
  if (!words.length || HALF_PAIR.test(text)) return [];
  return cut === "sentences" ? sentences(words.join(" ")) : [text];
}

/** Cut at [.!?] before a space and a capital, but not after common abbreviations; white space is single spaces. */
function sentences(paragraph: string): string[] {
  const found: string[] = [];
  let start = 0;
  for (const boundary of paragraph.matchAll(BOUNDARY)) {
    const end = boundary.index + boundary[0].length;
    if (boundary[0].startsWith(".") && isAbbreviation(paragraph, start, boundary.index)) continue;
    found.push(paragraph.slice(start, end - 1));
    start = end;
  }
  return [...found, paragraph.slice(start)];
}

/** Whether the last word before a point is an abbreviation or an initial. */
function isAbbreviation(paragraph: string, start: number, stop: number): boolean {
  if (stop > start && paragraph[stop - 1] === " ") stop--;
  const first = stop > start ? Math.max(start, paragraph.lastIndexOf(" ", stop - 1) + 1) : start;
  const last = paragraph.slice(first, stop).replace(/^["'`(\[]+/, "");
  return (INITIAL.test(last) && last !== "I") || ABBREVIATION.test(last);
}

/** Read the texts of lines `{"text": ..., "added": seconds since 1970}` in UTF-8; raises ClientError where a line is something else. */
export function readLines(content: Uint8Array, name: string): string[] {
  const wrong = (why: string): never => {
    throw new ClientError(`${name}: expected lines of {"text": "..."} in UTF-8, but ${why}`);
  };
  let whole: string;
  try {
    whole = new TextDecoder("utf-8", { fatal: true }).decode(content);
  } catch {
    return wrong("it is not UTF-8");
  }
  return whole.split(/\r\n|\n|\r/).flatMap((line, place) => {
    if (/^[ \t]*$/.test(line)) return [];
    let found: unknown;
    try {
      found = JSON.parse(line);
    } catch {
      // What the parser says may hold the text itself, and this may go to a log.
      wrong(`line ${place + 1} ${line.startsWith("\ufeff") ? "begins with a byte-order mark, which only a file may" : "is not JSON"}`);
    }
    const { text, added = 0 } = (found ?? {}) as { text?: unknown; added?: unknown };
    if (typeof text !== "string") return wrong(`line ${place + 1} is not an object with a text`);
    if (!(typeof added === "number" && added >= 0 && added < LATEST)) return wrong(`line ${place + 1} has a time "added" that is not a number of seconds since 1970`);
    return [text];
  });
}

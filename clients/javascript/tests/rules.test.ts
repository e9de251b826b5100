/** Which texts and lines count, by the table that all clients share; tests/clients/test_javascript.py puts it into the folder PLAN_PROGRAMS. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { ClientError } from "../src/errors.js";
import { readAddress, written } from "../src/addresses.js";
import { CUTS, examplesOf, readLines } from "../src/text_examples.js";

interface Rules {
  examples: { text: string; sentences: string[]; texts: string[] }[];
  lines: { content: string; texts: string[] | null; error: string | null }[];
  addresses: { address: string; host: string | null; port: number | null }[];
}

const { examples, lines, addresses } = JSON.parse(readFileSync(join(process.env["PLAN_PROGRAMS"] ?? "", "client_rules.json"), "utf8")) as Rules;
const name = (found: string): string => JSON.stringify(found).slice(0, 40);

for (const one of examples)
  test(`the examples of ${name(one.text)}`, () => {
    for (const cut of CUTS) assert.deepEqual(examplesOf(one.text, cut), one[cut]);
  });

for (const { content, texts, error } of lines)
  test(`the lines ${name(content)}`, () => {
    const read = (): string[] => readLines(new TextEncoder().encode(content), "mine.jsonl");
    if (texts) return assert.deepEqual(read(), texts);
    assert.throws(read, (found: Error) => found instanceof ClientError && found.message.includes(`mine.jsonl: expected lines of {"text": "..."} in UTF-8, but ${error}`));
  });

for (const { address, host, port } of addresses)
  test(`the address ${name(address)}`, () => {
    if (host) return assert.deepEqual([readAddress(address), written(host, port!)], [{ host, port }, address]);
    assert.throws(() => readAddress(address), (found: Error) => found instanceof ClientError && /but must be HOST:PORT, .* \[::1\]:8470/.test(found.message));
  });

test("bytes that are no text are refused", () => {
  assert.throws(() => readLines(Uint8Array.of(0x22, 0xff), "mine.jsonl"), /is not UTF-8/);
});

/** Tokens are those of the library tokenizers: the folder in PLAN_PROGRAMS is written by tests/clients/test_javascript.py. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { PlanError } from "../src/errors.js";
import { WordPiece } from "../src/tokenizer.js";

const folder = process.env["PLAN_PROGRAMS"] ?? "";
const { texts, cases } = JSON.parse(readFileSync(join(folder, "tokens.json"), "utf8")) as { texts: string[]; cases: { tokenizer: string; ids: number[][] }[] };
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

cases.forEach(({ tokenizer, ids }, number) => {
  test(`tokens with the rules ${number}`, () => {
    const pieces = WordPiece.read(bytes(tokenizer));
    texts.forEach((text, place) => assert.deepEqual(pieces.encode(text), ids[place], JSON.stringify(text)));
  });
});

test("tokenizers of another kind, or none, are refused", () => {
  const other = JSON.parse(cases[0]!.tokenizer) as { model: { type: string } };
  other.model.type = "BPE";
  for (const content of ["", "[]", "{}", JSON.stringify(other), '{"normalizer": null}']) assert.throws(() => WordPiece.read(bytes(content)), PlanError);
});

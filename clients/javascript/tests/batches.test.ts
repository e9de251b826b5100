/** Orders, batches and words are those of the page. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { type Batches, batchRows, randomWords, shuffled, stream } from "../src/batches.js";
import { PlanError } from "../src/errors.js";

interface Vector {
  seed: number; round_number: number; client_index: number; orders: Record<string, number[][]>;
  batches: (Batches & { examples: number; rows: number[][] })[]; random: number[][][];
}
const path = new URL("../../../../tests/fl_core/deployment/protocol/vectors/plan_batches.json", import.meta.url);
const vector = JSON.parse(readFileSync(path, "utf8")) as Vector;
const numbers: [number, number, number] = [vector.seed, vector.round_number, vector.client_index];

test("orders", () => {
  for (const [count, orders] of Object.entries(vector.orders))
    orders.forEach((order, epoch) => assert.deepEqual(shuffled(Number(count), stream(numbers[0], "shuffle", numbers[1], numbers[2], epoch)), order));
});

test("batches", () => {
  for (const one of vector.batches) assert.deepEqual(batchRows(one.examples, one, 1000, ...numbers), one.rows);
});

test("words", () => {
  vector.random.forEach((words, step) => assert.deepEqual(randomWords(vector.batches[0]!.batch_size, ...numbers, step), words));
});

test("devices with many examples have batches of all of them, and plans of too many rows are refused", () => {
  const selection = { batch_size: 10, epochs: 1, max_batches: 1e6, max_examples: null, cap_order: "shuffle_then_cap", batches_across_epochs: false } as const;
  const rows = batchRows(300_005, selection, 1e6, ...numbers).flat();
  assert.deepEqual([rows.length, new Set(rows).size, rows.filter((row) => row < 0).length], [300_010, 300_006, 5]);
  assert.throws(() => batchRows(3, { ...selection, batch_size: 1 << 20, epochs: 1000 }, 1000, ...numbers), PlanError);
});

/** From a device's examples to the batches of a round, as docs/protocol.md says it for all languages. */

import { crc32 } from "./crc32.js";
import { PlanError } from "./errors.js";

export interface Batches extends Selection {
  length: number; pad: number; bos: number; eos: number; oov: number;
}
/** Which examples make up the batches. */
export interface Selection {
  batch_size: number; epochs: number; max_batches: number; max_examples: number | null;
  cap_order: "shuffle_then_cap" | "cap_then_shuffle"; batches_across_epochs: boolean;
}
type Pair = [number, number];

const MOST_ROWS = 1 << 24; // of a round, in memory at once
const ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]];

/** Threefry-2x32 with 20 rounds (Salmon et al. 2011) of the pair (0, counter). */
export function threefry([first, second]: Pair, counter: number): Pair {
  const keys = [first, second, first ^ second ^ 0x1bd11bda];
  let a = keys[0]! >>> 0, b = (counter + keys[1]!) >>> 0;
  for (let group = 0; group < 5; group++) {
    for (const distance of ROTATIONS[group % 2]!) {
      a = (a + b) >>> 0;
      b = (((b << distance) | (b >>> (32 - distance))) ^ a) >>> 0;
    }
    a = (a + keys[(group + 1) % 3]!) >>> 0;
    b = (b + keys[(group + 2) % 3]! + group + 1) >>> 0;
  }
  return [a, b];
}

/** The key of a purpose, round, client, ... from a seed. */
export function stream(seed: number, purpose: string, ...numbers: number[]): Pair {
  return [crc32(new TextEncoder().encode(purpose)), ...numbers].reduce<Pair>((key, number) => threefry(key, number), [0, seed]);
}

/** Order the numbers below a count: the shuffle `threefry-sort`, version 1. */
export function shuffled(count: number, key: Pair): number[] {
  const words = Array.from({ length: count }, (_, index) => threefry(key, index));
  return words.map((_, index) => index).sort((x, y) => words[x]![0] - words[y]![0] || words[x]![1] - words[y]![1] || x - y);
}

/** Which examples make up each local step, -1 where a batch is not filled; at most `most` steps. */
export function batchRows(count: number, batches: Selection, most: number, seed: number, round: number, client: number): number[][] {
  const size = batches.batch_size, kept = batches.max_examples === null ? count : Math.min(count, batches.max_examples);
  const perEpoch = batches.batches_across_epochs ? kept : Math.ceil(kept / size) * size;
  const steps = Math.min(Math.ceil((perEpoch * batches.epochs) / size), batches.max_batches, most);
  if (steps * size > MOST_ROWS) throw new PlanError(`the plan wants ${steps} batches of ${size} rows, but ${MOST_ROWS} rows at most are made`);
  const among = batches.cap_order === "cap_then_shuffle" ? kept : count, rows: number[] = [];
  for (let epoch = 0; epoch < batches.epochs && rows.length < steps * size; epoch++) {
    const order = shuffled(among, stream(seed, "shuffle", round, client, epoch)).slice(0, kept);
    // One by one: a call takes no more arguments than its stack has room for.
    for (let place = 0; place < perEpoch; place++) rows.push(order[place] ?? -1);
  }
  return Array.from({ length: steps }, (_, step) => Array.from({ length: size }, (_, row) => rows[step * size + row] ?? -1));
}

/** The words of a step's examples by which a model drops. */
export function randomWords(size: number, seed: number, round: number, client: number, step: number): Pair[] {
  const key = stream(seed, "dropout", round, client, step);
  return Array.from({ length: size }, (_, row) => threefry(key, row));
}

/** Make `[BOS] w1 .. wk [EOS]` of token ids, cut or padded: a row of `length + 1` for each. */
export function sequencesOf(encoded: number[][], batches: Batches): Int32Array[] {
  return encoded.map((ids) => {
    const row = new Int32Array(batches.length + 1).fill(batches.pad);
    row.set([batches.bos, ...ids.slice(0, batches.length), batches.eos].slice(0, batches.length + 1));
    return row;
  });
}

/** A step's tokens, `[batch_size, length + 1]`, and weights, `[batch_size]`. */
export function batchOf(sequences: Int32Array[], rows: number[], batches: Batches): { tokens: Int32Array; weight: Float32Array } {
  const width = batches.length + 1, tokens = new Int32Array(rows.length * width).fill(batches.pad);
  rows.forEach((row, place) => row >= 0 && tokens.set(sequences[row]!, place * width));
  return { tokens, weight: Float32Array.from(rows, (row) => Number(row >= 0)) };
}

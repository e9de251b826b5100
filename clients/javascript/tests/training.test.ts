/** Plans train as they do in Python: the folder in PLAN_PROGRAMS is written by tests/clients/test_javascript.py. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { readManifest } from "../src/manifest.js";
import { startThread } from "../src/node/thread.js";
import { Trainer } from "../src/trainer.js";

interface Case { manifest: string; model: string; values: number[]; steps: { tokens: number[]; weight: number[]; random: number[] }[]; rate: number; stream: [number, number, number]; sums: number[]; body: string }
const cases = JSON.parse(readFileSync(join(process.env["PLAN_PROGRAMS"] ?? "", "cases.json"), "utf8")) as Record<string, Case>;
const bytes = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, "base64"));

for (const [name, one] of Object.entries(cases))
  test(`${name} gives what it gives in Python`, async () => {
    const described = bytes(one.manifest), manifest = await readManifest(described), trainer = await Trainer.load(startThread, manifest, described, bytes(one.model));
    try {
      await trainer.begin(Float32Array.from(one.values));
      for (const { tokens, weight, random } of one.steps)
        await trainer.step({ tokens: Int32Array.from(tokens), weight: Float32Array.from(weight), random: Uint32Array.from(random), learningRate: one.rate });
      const { sums, finite, body } = await trainer.finish(...one.stream), expected = bytes(one.body);
      assert.deepEqual([finite, body.length], [true, expected.length]);
      sums.forEach((sum, place) => assert.ok(Math.abs(sum - one.sums[place]!) <= 1e-4 * one.sums[place]!));
      if (manifest.finish.outputs.every(({ dtype }) => dtype !== "uint8")) {
        const [made, known] = [body, expected].map((found) => new Float32Array(found.slice().buffer));
        const norm = (found: Float32Array): number => Math.hypot(...found);
        assert.ok(norm(made!.map((value, place) => value - known![place]!)) <= 1e-5 * norm(known!));
      } else {
        // Where rounding puts a value on the other side of a whole number; other words would round every second one otherwise.
        const different = body.filter((byte, place) => byte !== expected[place]).length;
        assert.ok(different <= 0.05 * body.length, `${different} of ${body.length} bytes differ`);
      }
    } finally {
      trainer.close();
    }
  });

test("threads that run plans make no code of text", async () => {
  startThread().end();
  const code = 'let made; try { made = Function("return 1")(); } catch (error) { made = error.name; } require("node:worker_threads").parentPort.postMessage(made)';
  assert.equal(await new Promise((resolve) => new Worker(code, { eval: true }).on("message", resolve)), "EvalError");
});

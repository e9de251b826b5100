/** Programs of plans give what they give elsewhere: the folder in PLAN_PROGRAMS is written by tests/clients/test_javascript.py. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { PlanError } from "../src/errors.js";
import { Interpreter } from "../src/interpreter.js";
import { type Dtype, readProgram, type Tensor, zeros } from "../src/program.js";

interface Known { shape: number[]; dtype: Dtype; data: number[] }
const folder = process.env["PLAN_PROGRAMS"] ?? "";
const cases = JSON.parse(readFileSync(join(folder, "cases.json"), "utf8")) as Record<string, { inputs: Known[]; outputs: Known[] }>;
const bounds = { memoryBytes: 1e9, callSeconds: 60 };

function read(name: string): Uint8Array {
  return new Uint8Array(readFileSync(join(folder, name)));
}

function tensor(one: Known): Tensor {
  const made = zeros(one);
  one.data.forEach((value, place) => (made.data[place] = value));
  return made;
}

for (const [name, { inputs, outputs }] of Object.entries(cases)) {
  test(`${name} gives what JAX gives`, () => {
    const made = new Interpreter(readProgram(read(name), bounds.memoryBytes), bounds).run(inputs.map(tensor));
    assert.equal(made.length, outputs.length);
    made.forEach((one, index) => {
      const expected = outputs[index]!;
      assert.deepEqual([one.shape, one.dtype], [expected.shape, expected.dtype]);
      const codes = one.dtype !== "float32";
      let different = 0;
      expected.data.forEach((value, place) => {
        const found = one.data[place] as number;
        if (codes) different += Number(found !== value);
        else assert.ok(Math.abs(found - value) <= 1e-7 + 1e-5 * Math.abs(value), `${name}: result ${index} is ${found}, and not ${value}`);
        assert.ok(Math.abs(found - value) <= 1);
      });
      // A code may fall to the other side of a boundary where rounding differs in the last place; of 16 bits there are more boundaries.
      assert.ok(different <= 2 + expected.data.length / (one.dtype === "uint16" ? 20 : 1000), `${name}: ${different} codes differ`);
    });
  });
}

test("programs that call what they do not carry, or are cut off, are refused", () => {
  assert.throws(() => readProgram(read("calling"), bounds.memoryBytes), /custom_call.*does not run/);
  const whole = read(Object.keys(cases)[0]!);
  for (let length = 0; length < whole.length; length += 97) assert.throws(() => readProgram(whole.subarray(0, length), bounds.memoryBytes), PlanError);
});

test("tensors without values take no memory that is not counted", () => {
  const program = readProgram(read("empty"), bounds.memoryBytes), given = [zeros({ shape: [0, 2 ** 28], dtype: "float32" })];
  assert.throws(() => new Interpreter(program, { ...bounds, memoryBytes: 1e6 }).run(given), /more memory/);
});

test("programs end that need more memory or time than they may have", () => {
  const [name, { inputs }] = Object.entries(cases)[0]!;
  const given = inputs.map(tensor), program = readProgram(read(name), bounds.memoryBytes);
  assert.throws(() => new Interpreter(program, { ...bounds, memoryBytes: 20_000 }).run(given), /more memory/);
  assert.throws(() => new Interpreter(program, { ...bounds, callSeconds: 0 }).run(given), /longer/);
  assert.throws(() => readProgram(read(name), 10), /constants that need more memory/);
});

/**
 * A round of a plan with the client in TypeScript, as a device runs it: `node measure.mjs FOLDER`, after `npm run build` in clients/javascript.
 *
 * It prints a JSON object.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";

const CLIENT = "../../clients/javascript/build/src", folder = process.argv[2], read = (name) => new Uint8Array(readFileSync(join(folder, name)));
const begin = performance.now();
const { readManifest } = await import(`${CLIENT}/manifest.js`), { startThread } = await import(`${CLIENT}/node/thread.js`), { Trainer } = await import(`${CLIENT}/trainer.js`);
const described = read("manifest.json"), manifest = await readManifest(described), { batch_size, length } = manifest.batches, row = batch_size * (length + 1);
const trainer = await Trainer.load(startThread, manifest, described, read("model.tflite"));
const loadSeconds = (performance.now() - begin) / 1000, tokens = new Int32Array(read("tokens.i32").buffer), seconds = [];
await trainer.begin(new Float32Array(read("values.f32").buffer));
for (let place = 0; place < tokens.length; place += row) {
  const given = { tokens: tokens.slice(place, place + row), weight: new Float32Array(batch_size).fill(1), random: new Uint32Array(2 * batch_size), learningRate: 0.5 };
  const start = performance.now();
  await trainer.step(given);
  seconds.push(performance.now() - start);
}
const last = performance.now(), { finite } = await trainer.finish(11, 3, 4_000_000_000);
if (!finite) throw new Error("the update has a value that is not finite");
const finishMilliseconds = performance.now() - last;
trainer.close();
const sorted = seconds.slice(2).sort((a, b) => a - b), middle = sorted.length >> 1;
const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
console.log(JSON.stringify({
  load_seconds: loadSeconds, step_milliseconds: { median, least: sorted[0] }, finish_milliseconds: finishMilliseconds, peak_memory_bytes: 1024 * process.resourceUsage().maxRSS,
  versions: { node: process.versions.node, v8: process.versions.v8 },
}));

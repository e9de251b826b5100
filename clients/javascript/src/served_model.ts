/** A plan's programs as a model of LiteRT that a server has, for those who accept such; docs/protocol.md describes it. */

import { hex, sha256 } from "./artifacts.js";
import { PlanError } from "./errors.js";
import { type Argument, type Manifest } from "./manifest.js";
import { type PlanModules, type Runtime } from "./messages_pb.js";
import type { Dtype } from "./program.js";
import { checkSignature, MODULES } from "./signature.js";

export const LITERT: Pick<Runtime, "name" | "version" | "target"> = { name: "litert", version: "1", target: "litert" };
const FORMAT = "fedlm-modules", VERSION = 1, SUMS = ["loss", "tokens", "gradient_norm"];
const KNOWN: Dtype[] = ["float32", "int32", "uint8"];

/** The type of an argument or a result of a model: words without a sign are there as int32 of the same bits. */
export function modelType(dtype: Dtype): Dtype {
  return dtype === "uint32" ? "int32" : dtype;
}

/** The name of an argument or a result of a model. */
export function modelName({ role, index }: Argument, manifest: Manifest): string {
  if (role === "state" || role === "download") return `${role}/${manifest[role][index]!.name}`;
  if (role === "sums") return `sums/${SUMS[index]}`;
  return role === "upload" ? `upload/${index}` : role;
}

/** A type that LiteRT.js does not know among those of a plan's programs; undefined where there is none. */
export function unknownType({ step, finish }: Manifest): Dtype | undefined {
  return [step, finish].flatMap(({ inputs, outputs }) => [...inputs, ...outputs]).find(({ dtype }) => !KNOWN.includes(modelType(dtype)))?.dtype;
}

/** Read what is signed of a server's model; raises PlanError where no key has signed it, or it is of another plan, runtime, version or target. */
export async function readStatement(offered: PlanModules, keys: CryptoKey[], manifest: Manifest): Promise<{ sha256: string; bytes: number }> {
  await checkSignature(offered.statement, offered.signature, keys, MODULES);
  let said: unknown[], modules: { sha256: string; bytes: number }[];
  try {
    const found = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(offered.statement));
    said = ["format", "version", "plan", "runtime", "runtime_version", "target"].map((name) => found[name]);
    modules = ["step", "finish"].map((name) => ({ sha256: String(found.modules[name].sha256), bytes: Number(found.modules[name].bytes) }));
  } catch (error) {
    throw new PlanError(`the statement on the plan's modules cannot be read (${(error as Error).message.slice(0, 200)})`);
  }
  const expected = [FORMAT, VERSION, manifest.digest, LITERT.name, LITERT.version, LITERT.target], [model, same] = modules;
  if (said.some((one, place) => one !== expected[place])) throw new PlanError(`the server's model is of ${shown(said)}, but this client takes those of ${shown(expected)}`);
  if (!Number.isSafeInteger(model!.bytes) || model!.bytes < 0) throw new PlanError(`the server's statement says of its model that it has ${model!.bytes} bytes`);
  if (model!.sha256 !== same!.sha256 || model!.bytes !== same!.bytes) throw new PlanError("the server's statement names two models, but one has both programs");
  return model!;
}

/** Refuse, with PlanError, another model than the one that the statement names. */
export async function checkModel(content: Uint8Array, digest: string): Promise<void> {
  if (hex(await sha256(content)) !== digest) throw new PlanError("the server's model is not the one that its statement names");
}

function shown(parts: unknown[]): string {
  const [format, version, plan, ...rest] = parts.map((one) => (JSON.stringify(one) ?? "nothing").slice(0, 64));
  return `${format} ${version} of plan ${plan!.slice(0, 13)} for ${rest.join(" ")}`;
}

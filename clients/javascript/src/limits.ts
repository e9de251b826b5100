/** What the owner of a device lets a server have it do. */

import { ClientError } from "./errors.js";

export interface Limits {
  memoryBytes: number; // of the runtime and its tensors
  loadSeconds: number; // of a plan's model
  callSeconds: number; // of one call of the model, as a local step is
  planBytes: number; // of a plan's model, and of its manifest
  largestDownload: number; // bytes of the parameters or a tokenizer
  maxBatches: number; // local steps in a round, whatever the plan says
  maxTrainingSeconds: number; // of a round's training
  firstBackoff: number; // seconds, about the first wait after a failure; each further one doubles it
  longestBackoff: number; // seconds, about the longest
}

export const LIMITS: Limits = {
  memoryBytes: 2 ** 32, loadSeconds: 600, callSeconds: 60, planBytes: 8 << 20, largestDownload: 2 ** 30, maxBatches: 10_000, maxTrainingSeconds: 3600,
  firstBackoff: 0.5, longestBackoff: 60,
};

/** The name of a limit as an option, such as memory-bytes. */
export function optionOf(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

export function checkLimits(limits: Limits): Limits {
  for (const [name, value] of Object.entries(limits))
    if (!(value > 0)) throw new ClientError(`--${optionOf(name)} is ${value}, but must be a positive number`);
  return limits;
}

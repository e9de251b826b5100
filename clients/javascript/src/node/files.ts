/** A device's text and record, in files. */

import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, statSync, writeSync } from "node:fs";
import { basename, dirname, join } from "node:path";

import type { TextStore } from "../client.js";
import { ClientError } from "../errors.js";
import { readLines } from "../text_examples.js";
import type { RecordStore } from "../own_participation.js";

/** Lines of `{"text": "..."}`. */
export class TextFile implements TextStore {
  constructor(private readonly path: string) {}

  async version(): Promise<string> {
    try {
      const { mtimeNs, size } = statSync(this.path, { bigint: true });
      return `${mtimeNs} ${size}`;
    } catch (error) {
      throw new ClientError(`${this.path}: cannot be read (${(error as Error).message}); give the file of this device's text as --data`);
    }
  }

  async texts(): Promise<string[]> {
    let content: Buffer;
    try {
      content = readFileSync(this.path);
    } catch (error) {
      throw new ClientError(`${this.path}: cannot be read (${(error as Error).message}); give the file of this device's text as --data`);
    }
    return readLines(content, this.path);
  }
}

/** A file that is written beside its place, synced, and renamed. */
export class RecordFile implements RecordStore {
  constructor(readonly name: string) {}

  async read(): Promise<string | null> {
    return existsSync(this.name) ? readFileSync(this.name, "utf8") : null;
  }

  async write(text: string): Promise<void> {
    const folder = dirname(this.name), beside = join(folder, `.${basename(this.name)}.new`), file = openSync(beside, "w", 0o600);
    try {
      writeSync(file, text);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    renameSync(beside, this.name);
    const around = openSync(folder, "r");
    fsyncSync(around);
    closeSync(around);
  }
}

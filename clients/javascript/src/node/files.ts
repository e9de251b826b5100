/** A device's text and record, in files. */

import { spawnSync } from "node:child_process";
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

  /**
   * Hold the record until this process ends, however it ends, against clients in Python too; raises ClientError where another process holds it.
   * Node locks no files, so the program flock locks the one that this process holds open. Where it is missing nothing is held, and false is given.
   */
  holdAlone(): boolean {
    const instead = "name another file with --record, if this one is another device";
    let file: number;
    try {
      file = openSync(`${this.name}.lock`, "a", 0o600);
    } catch (error) {
      throw new ClientError(`${this.name}.lock: cannot be written (${(error as Error).message}), so that this device does not take part; make room, or permit writing there, or ${instead}`);
    }
    const { status } = spawnSync("flock", ["-n", "3"], { stdio: ["ignore", "ignore", "ignore", file] });
    if (status === 1) throw new ClientError(`${this.name}: another client counts its rounds there now; end that one, or ${instead}`);
    return status === 0;
  }

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

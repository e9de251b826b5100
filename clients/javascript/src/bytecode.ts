/** The container of a portable artifact: MLIR's bytecode (https://mlir.llvm.org/docs/BytecodeFormat/), version 6 and those before it that StableHLO writes. */

import { PlanError } from "./errors.js";

const MAGIC = 0x52ef4c4d;
const OLDEST = 5, NEWEST = 6;
const STRINGS = 0, DIALECTS = 1, ENTRIES = 2, OFFSETS = 3, PROGRAM = 4, PROPERTIES = 8;
const HAS = { attributes: 1, results: 2, operands: 4, successors: 8, regions: 16, useOrders: 32, properties: 64 };
const MOST_NESTED = 64;

/** Reads numbers of variable length and bytes, one after another. */
export class Reader {
  place = 0;
  constructor(readonly bytes: Uint8Array) {}

  get done(): boolean {
    return this.place >= this.bytes.length;
  }

  byte(): number {
    if (this.done) throw new PlanError("the plan's program ends too early");
    return this.bytes[this.place++]!;
  }

  take(count: number): Uint8Array {
    if (count > this.bytes.length - this.place) throw new PlanError("the plan's program ends too early");
    return this.bytes.subarray(this.place, (this.place += count));
  }

  /** A number below 2^64, whose first byte says by its lowest bits how many follow. */
  large(): bigint {
    const first = this.byte();
    const more = first === 0 ? 8 : Math.clz32(first & -first) ^ 31;
    let value = first === 0 ? 0n : BigInt(first);
    const rest = this.take(more);
    const begins = first === 0 ? 0 : 1;
    rest.forEach((byte, index) => (value |= BigInt(byte) << BigInt(8 * (index + begins))));
    return first === 0 ? value : value >> BigInt(more + 1);
  }

  count(): number {
    const value = this.large();
    if (value >= 1n << 40n) throw new PlanError("the plan's program has a number that is too large");
    return Number(value);
  }

  signed(): bigint {
    const value = this.large();
    return value & 1n ? -((value + 1n) >> 1n) : value >> 1n;
  }

  counts(): number[] {
    return this.list(() => this.count());
  }

  list<T>(read: () => T): T[] {
    const length = this.count();
    if (length > this.bytes.length) throw new PlanError("the plan's program has a list that is longer than itself");
    return Array.from({ length }, read);
  }

  text(): string {
    const end = this.bytes.indexOf(0, this.place);
    if (end < 0) throw new PlanError("the plan's program ends too early");
    const found = new TextDecoder().decode(this.bytes.subarray(this.place, end));
    this.place = end + 1;
    return found;
  }

  section(): { id: number; content: Reader } {
    const id = this.byte(), length = this.count();
    if (id & 0x80) {
      const alignment = this.count();
      while (alignment > 1 && this.place % alignment) this.byte();
    }
    return { id: id & 0x7f, content: new Reader(this.take(length)) };
  }
}

/** An attribute or a type as it travels. */
export interface Entry {
  dialect: string;
  custom: boolean; // in the dialect's own encoding, else as text
  content: Uint8Array;
}

/** An operation; operands and results are places in the frame of the function around it. */
export interface Operation {
  name: string; // with its dialect
  attributes: number[]; // entries, in the order of the attributes' names
  operands: number[];
  results: number[];
  types: number[]; // of the results
  regions: Region[];
}

export interface Region {
  operations: Operation[];
  arguments: number[];
  types: number[];
  values: number; // places that it needs, in the frame
}

export interface Module {
  strings: string[];
  attributes: Entry[];
  types: Entry[];
  top: Operation[];
}

/** Take bytecode apart; raises PlanError where it is none, or of another version. */
export function readModule(content: Uint8Array): Module {
  const whole = new Reader(content);
  const start = whole.take(4);
  if (new DataView(start.buffer, start.byteOffset).getUint32(0, true) !== MAGIC) throw new PlanError("the plan's program is no bytecode of MLIR");
  const version = whole.count();
  if (version < OLDEST || version > NEWEST) throw new PlanError(`the plan's program is bytecode of version ${version}, but this client reads ${OLDEST} to ${NEWEST}`);
  whole.text();
  const sections = new Map<number, Reader>();
  while (!whole.done) {
    const { id, content: inside } = whole.section();
    sections.set(id, inside);
  }
  const of = (id: number): Reader => {
    const found = sections.get(id);
    if (!found) throw new PlanError("the plan's program lacks a section");
    return found;
  };
  const strings = readStrings(of(STRINGS));
  const { dialects, operations } = readDialects(of(DIALECTS), strings);
  const { attributes, types } = readEntries(of(OFFSETS), of(ENTRIES), dialects);
  const kept = of(PROPERTIES);
  const properties = kept.list(() => {
    const one = new Reader(kept.take(kept.count()));
    const found: number[] = [];
    while (!one.done) found.push(one.count());
    return found;
  });
  return { strings, attributes, types, top: new Program(operations, properties).block(of(PROGRAM)) };
}

function at<T>(list: T[], index: number): T {
  const found = list[index];
  if (found === undefined) throw new PlanError("the plan's program refers to something that it has not got");
  return found;
}

function readStrings(reader: Reader): string[] {
  const lengths = reader.counts().reverse();
  return lengths.map((length) => new TextDecoder().decode(reader.take(length).subarray(0, -1)));
}

function readDialects(reader: Reader, strings: string[]) {
  const dialects = reader.list(() => {
    const named = reader.count();
    if (named & 1) reader.section();
    return at(strings, Math.floor(named / 2));
  });
  const operations: string[] = [];
  reader.count();
  while (!reader.done) {
    const dialect = at(dialects, reader.count());
    for (const name of reader.counts()) operations.push(`${dialect}.${at(strings, Math.floor(name / 2))}`);
  }
  return { dialects, operations };
}

function readEntries(offsets: Reader, content: Reader, dialects: string[]) {
  const wanted = [offsets.count(), offsets.count()];
  const made = wanted.map((count) => {
    const found: Entry[] = [];
    while (found.length < count) {
      const dialect = at(dialects, offsets.count());
      for (const coded of offsets.counts()) found.push({ dialect, custom: (coded & 1) === 1, content: content.take(Math.floor(coded / 2)) });
    }
    return found;
  });
  return { attributes: made[0]!, types: made[1]! };
}

/** Reads blocks, and numbers values as the writer did. */
class Program {
  private next: number[][] = [[0]];
  private sizes: number[] = [0];

  constructor(private readonly names: string[], private readonly properties: number[][]) {}

  block(reader: Reader, into?: Region): Operation[] {
    const coded = reader.count();
    if (coded & 1) this.blockArguments(reader, into);
    return Array.from({ length: Math.floor(coded / 2) }, () => this.operation(reader));
  }

  private blockArguments(reader: Reader, into?: Region): void {
    const types = reader.list(() => {
      const coded = reader.count();
      if (coded & 1) reader.count();
      return Math.floor(coded / 2);
    });
    if (into) {
      into.types = types;
      into.arguments = types.map(() => this.define());
    }
    if (reader.byte()) throw new PlanError("the plan's program has orders of uses, which this client does not read");
  }

  private define(): number {
    const scope = this.next.at(-1)!;
    return scope[scope.length - 1]!++;
  }

  private operation(reader: Reader): Operation {
    const name = at(this.names, reader.count());
    const mask = reader.byte();
    reader.count(); // where it stood in somebody's source
    if (mask & HAS.attributes) reader.count(); // what no operation of VHLO knows
    const property = mask & HAS.properties ? at(this.properties, reader.count()) : [];
    if (mask & (HAS.successors | HAS.useOrders)) throw new PlanError(`the plan's program has an operation ${name} of a kind that this client does not read`);
    const types = mask & HAS.results ? reader.counts() : [];
    const results = types.map(() => this.define());
    const operands = mask & HAS.operands ? reader.counts() : [];
    const regions: Region[] = [];
    if (mask & HAS.regions) {
      const coded = reader.count();
      const isolated = (coded & 1) === 1;
      for (let one = 0; one < Math.floor(coded / 2); one++) regions.push(this.region(isolated ? reader.section().content : reader, isolated));
    }
    return { name, attributes: property, operands, results, types, regions };
  }

  private region(reader: Reader, isolated: boolean): Region {
    const blocks = reader.count();
    const made: Region = { operations: [], arguments: [], types: [], values: 0 };
    if (blocks === 0) return made;
    if (blocks > 1 || this.next.length > MOST_NESTED) throw new PlanError("the plan's program jumps, or is nested too deeply");
    const values = reader.count();
    if (values > reader.bytes.length) throw new PlanError("the plan's program has more values than bytes");
    if (isolated) {
      this.next.push([0]);
      this.sizes.push(values);
    } else {
      const scope = this.next.at(-1)!;
      if (scope.length > MOST_NESTED) throw new PlanError("the plan's program is nested too deeply");
      scope.push(this.sizes.at(-1)!);
      this.sizes[this.sizes.length - 1]! += values;
    }
    made.operations = this.block(reader, made);
    made.values = this.sizes.at(-1)!;
    if (isolated) {
      this.next.pop();
      this.sizes.pop();
    } else {
      this.next.at(-1)!.pop();
      this.sizes[this.sizes.length - 1]! -= values;
    }
    return made;
  }
}

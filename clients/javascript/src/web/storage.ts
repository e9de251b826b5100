/** What a page keeps in its browser: text, whose plans it runs, and what it took part in. Nothing of it is sent anywhere. */

import type { TextStore } from "../client.js";
import type { RecordStore } from "../own_participation.js";

const DATABASE = "fedlm-client", STORE = "kept";

/** A small database of values by their names (IndexedDB, of this page's origin alone). */
export class Kept {
  private constructor(private readonly database: IDBDatabase) {}

  static async open(): Promise<Kept> {
    const asked = indexedDB.open(DATABASE, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE);
    return new Kept(await settled(asked));
  }

  async get<T>(name: string): Promise<T | undefined> {
    return settled<T | undefined>(this.database.transaction(STORE).objectStore(STORE).get(name));
  }

  /** Write values together; when this ends, they are on disk. */
  async put(values: Record<string, unknown>): Promise<void> {
    const transaction = this.database.transaction(STORE, "readwrite", { durability: "strict" }), store = transaction.objectStore(STORE);
    for (const [name, value] of Object.entries(values)) store.put(value, name);
    await new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("the browser kept nothing"));
    });
  }
}

function settled<T>(asked: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error ?? new Error("the browser's database does not answer"));
  });
}

export class KeptText implements TextStore {
  constructor(private readonly kept: Kept) {}

  async version(): Promise<string> {
    return (await this.kept.get<string>("version")) ?? "";
  }

  async texts(): Promise<string[]> {
    return (await this.kept.get<string[]>("texts")) ?? [];
  }

  async add(texts: string[]): Promise<void> {
    await this.replace([...(await this.texts()), ...texts]);
  }

  async replace(texts: string[]): Promise<void> {
    await this.kept.put({ texts, version: crypto.randomUUID() });
  }
}

export class KeptRecord implements RecordStore {
  readonly name = "this browser's record";

  constructor(private readonly kept: Kept) {}

  async read(): Promise<string | null> {
    return (await this.kept.get<string>("record")) ?? null;
  }

  async write(text: string): Promise<void> {
    await this.kept.put({ record: text });
  }
}

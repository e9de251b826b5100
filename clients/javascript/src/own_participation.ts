/** A device's own count of the rounds that it took part in, which holds a server to the plan that it showed first; docs/protocol.md, Participation. */

import { hex, sha256 } from "./artifacts.js";
import { ClientError } from "./errors.js";
import type { RoundConfiguration } from "./messages_pb.js";

/** Where the record is kept; what was written must be there after the device lost its power. */
export interface RecordStore {
  name: string;
  read(): Promise<string | null>;
  write(text: string): Promise<void>;
}

type Promised = [rounds: number, most: number | null, apart: number];
interface Kept { plan: Promised | null; taken: Record<string, string>; told: string[] }

const LONGEST_NAME = 128, LEAST_TOLD = 4;
const PRINTABLE = /^[^\p{C}\p{Z}]*$/u;

export class OwnParticipation {
  /** Parts of the record that clients in other languages keep in it. */
  private others: Record<string, unknown> = {};

  constructor(private readonly store: RecordStore, private accept = false, private readonly require = false, private readonly advice = "start the client with --accept-plan") {}

  /** Why the device may not take part, in a few words, or nothing where it may; raises ClientError where the server promises less than it promised first. */
  async may(asked: RoundConfiguration, examples: string): Promise<string> {
    const promise = promised(asked), record = await this.read(), name = asked.population;
    const known = (): [string, Promised][] => [...record].flatMap(([one, { plan }]) => (plan ? [[one, plan]] : []));
    if (!promise) {
      const before = known().length > 0;
      if (before || this.require)
        throw new ClientError(`the server promises nothing of how often this device takes part${before ? ", but one did before; use another record for one that promises nothing" : ""}`);
      return "";
    }
    if (this.accept || !known().length) {
      record.set(name, { ...of(record, name), plan: promise });
      this.accept = false;
      await this.write(record);
    }
    const advice = `; if its owner agrees, ${this.advice}`, shown = new Map(known());
    const first = shown.get(name);
    if (!first) throw new ClientError(`the server asks for the population ${JSON.stringify(name)}, but this device is of another${advice}`);
    if (promise[0] > first[0] || mostOf(promise) > mostOf(first) || promise[2] < first[2])
      throw new ClientError(`the server's plan of participation allows more than the one that it showed first${advice}`);
    return whyNot(promise, of(record, name), numberOf(asked), await digestOf(asked, examples));
  }

  /** Count what training came to, which a server learns before it says whether it wants the update. */
  async tell(asked: RoundConfiguration, examples: string): Promise<void> {
    if (!asked.participation) return;
    const record = await this.read(), digest = await digestOf(asked, examples), found = of(record, asked.population);
    if (found.told.includes(digest) || Object.values(found.taken).includes(digest)) return;
    record.set(asked.population, { ...found, told: [...found.told, digest] });
    await this.write(record);
  }

  /** Count a round that an update goes to; when this ends, it is kept. */
  async take(asked: RoundConfiguration, examples: string): Promise<void> {
    const record = await this.read(), digest = await digestOf(asked, examples), found = of(record, asked.population);
    const taken = { ...found.taken, [String(numberOf(asked))]: digest }, told = found.told.filter((one) => one !== digest);
    record.set(asked.population, { ...found, taken, told });
    await this.write(record);
  }

  private async read(): Promise<Map<string, Kept>> {
    try {
      const text = await this.store.read();
      if (text === null) return new Map();
      const { populations, ...others } = JSON.parse(text);
      this.others = others;
      return new Map(Object.entries<Kept>(populations).map(([name, kept]) => [name, checked(kept)]));
    } catch (error) {
      throw new ClientError(`${this.store.name}: not a record of what this device took part in (${(error as Error).message}); put it back as it was`);
    }
  }

  private async write(record: Map<string, Kept>): Promise<void> {
    try {
      await this.store.write(`${JSON.stringify({ ...this.others, populations: Object.fromEntries(record) })}\n`);
    } catch (error) {
      throw new ClientError(`${this.store.name}: cannot be written (${(error as Error).message}), so that this device does not take part`);
    }
  }
}

function of(record: Map<string, Kept>, name: string): Kept {
  return record.get(name) ?? { plan: null, taken: {}, told: [] };
}

function checked({ plan, taken, told }: Kept): Kept {
  const positive = (one: unknown): boolean => Number.isSafeInteger(one) && (one as number) >= 1;
  if (plan !== null && !(Array.isArray(plan) && plan.length === 3 && plan.every((one, place) => positive(one) || (place === 1 && one === null))))
    throw new TypeError("a plan is not three numbers");
  if (typeof taken !== "object" || taken === null || Object.entries(taken).some(([number, digest]) => !/^\d+$/.test(number) || typeof digest !== "string"))
    throw new TypeError("its rounds are not numbers with digests");
  if (told !== undefined && !Array.isArray(told)) throw new TypeError("its told updates are not a list");
  return { plan, taken, told: told ?? [] };
}

function mostOf([rounds, most, apart]: Promised): number {
  return Math.min(Math.ceil(rounds / apart), most ?? Infinity);
}

function promised(asked: RoundConfiguration): Promised | null {
  const { population, participation } = asked;
  if ([...population].length > LONGEST_NAME || !PRINTABLE.test(population.replaceAll(" ", ""))) throw new ClientError("the server asks for a population without a proper name");
  if (!participation) return null;
  const { rounds, maxParticipations, minSeparation } = participation;
  if (rounds < 1 || minSeparation < 1 || maxParticipations === 0) throw new ClientError("the server shows a plan without rounds, participations or a separation");
  return [rounds, maxParticipations ?? null, minSeparation];
}

/** Number a round among those of all runs of its population. */
function numberOf({ participation, roundNumber }: RoundConfiguration): number {
  return (participation?.firstRound ?? 0) + roundNumber;
}

function whyNot(promise: Promised, { taken, told }: Kept, round: number, digest: string): string {
  const numbers = Object.keys(taken).map(Number), most = mostOf(promise);
  if (taken[String(round)] === digest) return "";
  if (round >= promise[0]) return `the plan has ${promise[0]} rounds`;
  if (numbers.some((other) => Math.abs(round - other) < promise[2])) return `it took part in a round less than ${promise[2]} rounds away`;
  if (numbers.length >= most) return `it has taken part ${numbers.length} times, as often as the plan allows`;
  if (!told.includes(digest) && told.length >= Math.max(most, LEAST_TOLD)) return `it has reported on ${told.length} trainings whose updates no server took`;
  return "";
}

/** Name all that an update of a plan follows from. */
async function digestOf(asked: RoundConfiguration, examples: string): Promise<string> {
  const { roundNumber, clientIndex, seed, learningRate, parameters, vocabulary, plan } = asked;
  const digests = [parameters, vocabulary, plan?.manifest].map((one) => hex(one?.digest ?? new Uint8Array()));
  return hex(await sha256(new TextEncoder().encode(JSON.stringify([roundNumber, clientIndex, seed, learningRate, ...digests, examples]))));
}

/** The client's end of the thread that runs plans (`training.ts`), which it ends where that takes more than its time. */

import { PlanError } from "./errors.js";
import type { Manifest } from "./manifest.js";
import type { Answer, Finished, Question, Step } from "./training.js";

/** A thread, as Node or a browser has it. */
export interface Thread {
  post(question: Question): void;
  answers(taken: (answer: Answer) => void, ended: (why: string) => void): void;
  end(): void;
}
export type StartThread = () => Thread | Promise<Thread>;

const LONGEST_TIMER = 2 ** 31 - 1;
const UNASKED = "the thread that ran the plan gave an answer to no question";

export class Trainer {
  private gone: string | null = null;
  private waiting: { done: (answer: Answer) => void; failed: (error: PlanError) => void } | null = null;

  private constructor(private readonly thread: Thread, private readonly manifest: Manifest) {
    thread.answers((answer) => this.waiting?.done(answer), (why) => this.close(`the thread that ran the plan ended (${why}); it may have needed more memory than it may have`));
  }

  /** Load a plan whose limits the owner allows; raises PlanError where it is no plan that this client runs. */
  static async load(start: StartThread, manifest: Manifest, described: Uint8Array, model: Uint8Array): Promise<Trainer> {
    const trainer = new Trainer(await start(), manifest);
    await trainer.ask({ ask: "load", manifest: described, model }, manifest.loadSeconds);
    return trainer;
  }

  async begin(values: Float32Array): Promise<void> {
    await this.ask({ ask: "begin", values });
  }

  async step(step: Step): Promise<void> {
    await this.ask({ ask: "step", ...step });
  }

  async finish(seed: number, round: number, client: number): Promise<Finished> {
    const answer = await this.ask({ ask: "finish", seed, round, client });
    if (!("finished" in answer) || !answer.finished) throw new PlanError(UNASKED);
    return answer.finished;
  }

  /** End the thread. */
  close(why = "it was ended"): void {
    this.gone ??= why;
    this.thread.end();
    this.waiting?.failed(new PlanError(this.gone));
  }

  private ask(question: Question, seconds = this.manifest.callSeconds): Promise<Answer> {
    return new Promise<Answer>((resolve, reject) => {
      if (this.gone !== null) return reject(new PlanError(this.gone));
      const timer = setTimeout(() => this.close(`a call of the plan's model took more than ${seconds} seconds, and was ended`), Math.min(1000 * seconds, LONGEST_TIMER));
      const over = (): void => {
        clearTimeout(timer);
        this.waiting = null;
      };
      const failed = (error: PlanError): void => {
        over();
        reject(error);
      };
      const done = (answer: Answer): void => {
        if (typeof answer !== "object" || answer === null) return this.close(UNASKED);
        over();
        if (!("error" in answer)) return resolve(answer);
        this.close(answer.error);
        reject(new PlanError(answer.error));
      };
      this.waiting = { done, failed };
      this.thread.post(question);
    });
  }
}

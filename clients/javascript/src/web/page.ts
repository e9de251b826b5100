/** The page: its user's text, whose plans run, and what happens. */

import { Client, type Settings } from "../client.js";
import { ClientError } from "../errors.js";
import { isLoopback } from "../http_answers.js";
import { checkLimits, type Limits, LIMITS, optionOf } from "../limits.js";
import { readLines } from "../text_examples.js";
import { OwnParticipation } from "../own_participation.js";
import { readPublicKeys } from "../signature.js";
import { PageChannel } from "./channel.js";
import { Kept, KeptRecord, KeptText } from "./storage.js";
import { startThread } from "./thread.js";

const LOCK = "fedlm-client", MOST_LINES = 500;

function found<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

function say(words: string, wrong = false): void {
  const line = document.createElement("li");
  line.textContent = `${new Date().toLocaleTimeString()}  ${words}`;
  line.className = wrong ? "wrong" : "";
  const log = found("log");
  log.append(line);
  while (log.childElementCount > MOST_LINES) log.firstElementChild!.remove();
  line.scrollIntoView({ block: "nearest" });
}

/** Do what a button is for; what goes wrong is said in the page. */
function on(id: string, kind: string, act: () => Promise<void>): void {
  found(id).addEventListener(kind, (event) => {
    event.preventDefault();
    act().catch((error: Error) => say(error instanceof ClientError ? error.message : `${error.name}: ${error.message}`, true));
  });
}

class Page {
  private client: Client | null = null;

  constructor(private readonly kept: Kept, private readonly text: KeptText) {}

  async show(): Promise<void> {
    const texts = await this.text.texts(), letters = texts.reduce((sum, one) => sum + one.length, 0), key = await this.kept.get<string>("planKey");
    found("amount").textContent = texts.length ? `${texts.length} texts, ${letters.toLocaleString()} letters, are kept in this browser.` : "There is no text yet.";
    found("key-state").textContent = key ? "A key is kept: plans that are signed with it run." : "There is no key yet, so that no plan runs.";
    found<HTMLButtonElement>("start").disabled = found<HTMLFieldSetElement>("choices").disabled = this.client !== null;
    found<HTMLButtonElement>("stop").disabled = this.client === null;
    found("state").textContent = this.client ? "Taking part" : "Not taking part";
    document.body.dataset["state"] = this.client ? "taking-part" : "idle";
  }

  async add(): Promise<void> {
    const box = found<HTMLTextAreaElement>("text"), lines = box.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!lines.length) throw new ClientError("there is no text to add: write some, one text a line");
    await this.text.add(lines);
    box.value = "";
    await navigator.storage?.persist?.();
    await this.show();
  }

  async addFile(): Promise<void> {
    const file = found<HTMLInputElement>("file").files?.[0];
    if (!file) return;
    await this.text.add(readLines(new Uint8Array(await file.arrayBuffer()), file.name));
    await this.show();
  }

  async forget(): Promise<void> {
    if (!confirm("Forget all text that this browser keeps?")) return;
    await this.text.replace([]);
    await this.show();
  }

  async addKey(): Promise<void> {
    const file = found<HTMLInputElement>("key").files?.[0];
    if (!file) return;
    const pem = await file.text();
    await readPublicKeys(pem, file.name);
    await this.kept.put({ planKey: pem });
    await this.show();
  }

  /** Take part until the run is over, or the user ends it; in one tab at a time, since all of them have one record. */
  async start(): Promise<void> {
    await navigator.locks.request(LOCK, { ifAvailable: true }, async (lock) => {
      if (!lock) throw new ClientError("another tab of this browser takes part already");
      const pem = await this.kept.get<string>("planKey");
      if (!pem) throw new ClientError("there is no key for plans yet; give the file plan.pub that the server's operator gave you");
      const accept = found<HTMLInputElement>("accept"), ticked = (id: string): boolean => found<HTMLInputElement>(id).checked;
      const channel = new PageChannel(location, ticked("insecure"), found<HTMLInputElement>("name").value.trim());
      const record = new OwnParticipation(new KeptRecord(this.kept), accept.checked, ticked("require"), "tick 'accept the plan shown now'");
      const settings: Settings = { text: this.text, keys: await readPublicKeys(pem, "the key that is kept"), startThread, limits: this.limits(), notice: say };
      accept.checked = false;
      this.client = new Client(channel, settings, record);
      try {
        await this.show();
        say(`taking part as ${channel.name}`);
        say((await this.client.run()) ? "the run is over" : "this client's part is over");
      } finally {
        this.client = null;
        await this.show();
      }
    });
  }

  async stop(): Promise<void> {
    this.client?.stop();
    say("it ends when the round under way has ended");
  }

  private limits(): Limits {
    return checkLimits(Object.fromEntries(Object.keys(LIMITS).map((name) => [name, Number(found<HTMLInputElement>(optionOf(name)).value)])) as unknown as Limits);
  }
}

function showLimits(): void {
  for (const [name, value] of Object.entries(LIMITS)) {
    const label = document.createElement("label"), input = document.createElement("input");
    Object.assign(input, { type: "number", id: optionOf(name), value: String(value), min: "0", step: "any" });
    label.append(optionOf(name).replaceAll("-", " "), input);
    found("limits").append(label);
  }
}

async function open(): Promise<void> {
  const encrypted = location.protocol === "https:", loopback = isLoopback(location.hostname);
  found("origin").textContent = encrypted
    ? `Server ${location.host}, over TLS; it knows you by the certificate that your browser shows.`
    : `Server ${location.host}, in plain text${loopback ? " on this machine." : ": refused, since others could listen. Open this page over https."}`;
  found("plain").hidden = encrypted;
  showLimits();
  if (!window.isSecureContext) return say("this browser checks no signatures for a page that did not come over https or from this machine", true);
  const kept = await Kept.open(), page = new Page(kept, new KeptText(kept));
  on("add", "click", () => page.add());
  on("file", "change", () => page.addFile());
  on("forget", "click", () => page.forget());
  on("key", "change", () => page.addKey());
  on("start", "click", () => page.start());
  on("stop", "click", () => page.stop());
  await page.show();
}

void open().catch((error: Error) => say(`${error.name}: ${error.message}`, true));

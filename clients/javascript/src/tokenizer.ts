/** WordPiece from the JSON that a server sends, as the library tokenizers encodes with it; docs/protocol.md says how. */

import { PlanError } from "./errors.js";

const CHINESE = [
  [0x4e00, 0x9fff], [0x3400, 0x4dbf], [0x20000, 0x2a6df], [0x2a700, 0x2b73f], [0x2b740, 0x2b81f], [0x2b920, 0x2ceaf], [0xf900, 0xfaff], [0x2f800, 0x2fa1f],
] as const;
const WHITE = /^\p{White_Space}$/u, CONTROL = /^[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]$/u, MARK = /^\p{Mn}$/u, PUNCTUATION = /^[\p{P}!-/:-@[-`{-~]$/u;

const LONGEST_WORD = 1000; // letters, since what a word takes grows with the square of its length

interface Rules { clean: boolean; chinese: boolean; accents: boolean; lowercase: boolean }

export class WordPiece {
  private constructor(
    private readonly ids: Map<string, number>, private readonly unknown: number, private readonly prefix: string, private readonly longest: number,
    private readonly rules: Rules,
  ) {}

  /** Read a tokenizer; raises PlanError where it is damaged, or of another kind. */
  static read(content: Uint8Array): WordPiece {
    try {
      const found = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content));
      const { normalizer, pre_tokenizer, model } = found, kinds = [normalizer, pre_tokenizer, model].map((one) => String(one.type));
      if (kinds.join() !== "BertNormalizer,BertPreTokenizer,WordPiece" || found.added_tokens?.length)
        throw new PlanError(`the server's tokenizer is of ${kinds.join(", ").slice(0, 200)}, but this client knows WordPiece alone`);
      const ids = new Map(Object.entries<unknown>(model.vocab).map(([piece, id]) => [piece, whole(id)]));
      const { lowercase, strip_accents: accents, clean_text: clean, handle_chinese_chars: chinese } = normalizer;
      return new WordPiece(
        ids, whole(ids.get(model.unk_token)), String(model.continuing_subword_prefix), whole(model.max_input_chars_per_word, LONGEST_WORD + 1),
        { clean: !!clean, chinese: !!chinese, accents: !!(accents ?? lowercase), lowercase: !!lowercase },
      );
    } catch (error) {
      if (error instanceof PlanError) throw error;
      throw new PlanError(`the server's tokenizer cannot be read (${(error as Error).message.slice(0, 200)})`);
    }
  }

  /** The ids of a text's pieces; a word that the vocabulary does not make is one unknown piece. */
  encode(text: string): number[] {
    return words(normalized(text, this.rules)).flatMap((word) => this.pieces(word));
  }

  private pieces(word: string[]): number[] {
    if (word.length > this.longest) return [this.unknown];
    const found: number[] = [];
    for (let start = 0; start < word.length; ) {
      const prefix = start ? this.prefix : "";
      let end = word.length, id = this.ids.get(prefix + word.slice(start, end).join(""));
      while (id === undefined && --end > start) id = this.ids.get(prefix + word.slice(start, end).join(""));
      if (id === undefined) return [this.unknown];
      found.push(id);
      start = end;
    }
    return found;
  }
}

function whole(found: unknown, below = 2 ** 31): number {
  if (!Number.isSafeInteger(found) || (found as number) < 0 || (found as number) >= below) throw new TypeError("a number is missing, or is not a count");
  return found as number;
}

function normalized(text: string, rules: Rules): string[] {
  let letters = [...text];
  if (rules.clean) letters = letters.filter((one) => !isControl(one)).map((one) => (WHITE.test(one) ? " " : one));
  if (rules.chinese) letters = letters.flatMap((one) => (isChinese(one.codePointAt(0)!) ? [" ", one, " "] : one));
  if (rules.accents) letters = [...letters.join("").normalize("NFD")].filter((one) => !MARK.test(one));
  // Letter by letter: the rule for a sigma at a word's end is not applied.
  return rules.lowercase ? letters.flatMap((one) => [...one.toLowerCase()]) : letters;
}

function isControl(one: string): boolean {
  return one !== "\t" && one !== "\n" && one !== "\r" && CONTROL.test(one);
}

function isChinese(code: number): boolean {
  return code >= CHINESE[1][0] && CHINESE.some(([first, last]) => code >= first && code <= last);
}

/** Cut at white space, and around each sign of punctuation. */
function words(letters: string[]): string[][] {
  const found: string[][] = [];
  let word: string[] = [];
  for (const one of letters) {
    const mark = PUNCTUATION.test(one);
    if (!mark && !WHITE.test(one)) {
      word.push(one);
      continue;
    }
    if (word.length) found.push(word);
    word = [];
    if (mark) found.push([one]);
  }
  if (word.length) found.push(word);
  return found;
}

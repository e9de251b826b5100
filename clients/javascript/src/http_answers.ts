/** What the answers of a server over HTTP mean to a client, and where it may speak in plain text. */

import { ClientError, GoneError, TransportError } from "./errors.js";
import { printable } from "./client.js";

export const LONGEST_MESSAGE = 1 << 22;
/** How long a server may take: until something comes, and for a whole answer that is a message; and for a whole download or upload. */
export const TIMES = { answerSeconds: 30, transferSeconds: 3600 };
const OK = 200, NOT_FOUND = 404, AUTHENTICATE_PROXY = 407;

/** Raise what the server says where a call failed. */
export function checkAnswer(status: number, said: string): void {
  if (status === OK) return;
  const why = `${status}: ${printable(said)}`;
  if (status === NOT_FOUND) throw new GoneError(why);
  if (status >= 400 && status <= AUTHENTICATE_PROXY) throw new ClientError(`the server turns this client away: ${why}`);
  throw new TransportError(why);
}

export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || host === "[::1]" || /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(host);
}

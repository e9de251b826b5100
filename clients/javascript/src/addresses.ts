/** Addresses, read by the rule of clients/fedlm_client/fedlm_client/link/host_and_port.py: one table of cases tests both. */

import { ClientError } from "./errors.js";

const LABEL = /^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$/, NUMBER = /^(\d+|0[xX][0-9A-Fa-f]*)$/, IPV4 = /^(0|[1-9]\d{0,2})(\.(0|[1-9]\d{0,2})){3}$/;
const MOST_LETTERS = 253, PORTS = 1 << 16;

/** Take an address to dial apart; the host of IPv6 loses its brackets; raises ClientError. */
export function readAddress(address: string): { host: string; port: number } {
  const found = /^([^]*):(\d{1,5})$/.exec(address), host = found && hostOf(found[1]!), port = Number(found?.[2]);
  if (!host || !(port > 0 && port < PORTS) || address.endsWith("\n"))
    throw new ClientError(
      `the address is ${JSON.stringify(address)}, but must be HOST:PORT, with a port from 1 to 65535, such as fl.example.org:8470, 127.0.0.1:8470 or [::1]:8470, and nothing before or after it`,
    );
  return { host, port };
}

/** Put an address together. */
export function written(host: string, port: number): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Read a host that can be dialled, without brackets; null where it is none. */
function hostOf(host: string): string | null {
  if (host.startsWith("[") && host.endsWith("]")) {
    // The language's own parser of addresses takes no other names in brackets than those of IPv6.
    const found = !host.includes("%") && URL.canParse(`http://${host}/`) ? new URL(`http://${host}/`).hostname.slice(1, -1) : "";
    return !found || found === "::" || found.startsWith("ff") ? null : found;
  }
  const labels = host.split(".");
  if (NUMBER.test(labels.at(-1)!)) {
    const [first = 0, ...rest] = IPV4.test(host) ? labels.map(Number) : [];
    const known = rest.length === 3 && [first, ...rest].every((one) => one < 256), none = host === "0.0.0.0" || host === "255.255.255.255" || (first >= 224 && first < 240);
    return known && !none ? host : null;
  }
  return host.length <= MOST_LETTERS && labels.every((one) => LABEL.test(one)) ? host : null;
}

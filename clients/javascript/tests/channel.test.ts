/** Calls end, whatever a server answers. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import { create } from "@bufbuild/protobuf";

import { Assembly } from "../src/artifacts.js";
import type { Channel } from "../src/client.js";
import { TransportError } from "../src/errors.js";
import { LIMITS } from "../src/limits.js";
import { CheckInRequestSchema, UploadHeaderSchema } from "../src/messages_pb.js";
import { NodeChannel } from "../src/node/channel.js";
import { PageChannel } from "../src/web/channel.js";
import { MemoryServer, type Offer } from "./server.js";

const ANSWERS = {
  "another protocol": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
  "another place": "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
  "another length": "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc",
  "two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
  "no protocol": "what?",
  nothing: "",
};

for (const [name, answer] of Object.entries(ANSWERS)) {
  test(`an answer of ${name} ends a call`, { timeout: 20_000 }, async () => {
    const server = createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", () => socket.end(answer));
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    const channel = new NodeChannel(`127.0.0.1:${(server.address() as AddressInfo).port}`, undefined, "ann");
    let counted = 0;
    const sent = channel.upload(create(UploadHeaderSchema), new Uint8Array(10), async () => void counted++);
    await assert.rejects(sent, TransportError);
    assert.equal(counted, 0);
    channel.close();
    server.close();
  });
}

// What only a collected object would have ended must end all the same.
setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc") as () => void;

// Something comes each 20 milliseconds, less often than never and more often than the silence that ends a call.
const TIMES = { answerSeconds: 0.4, transferSeconds: 0.8 }, LONG = { answerSeconds: 15, transferSeconds: 15 }, PIECE = "x".repeat(1 << 16), HEAD = "HTTP/1.1 STATUS Said\r\nTransfer-Encoding: chunked\r\n\r\n";
const WAYS = [[503, "that drips", "\0", 20, /took more than 0\.[48] seconds/], [200, "without an end", PIECE, 0, /sends more than/]] as const;
const CHANNELS: Record<string, (port: number, times: typeof TIMES) => Channel> = {
  Node: (port, times) => new NodeChannel(`127.0.0.1:${port}`, undefined, "ann", times),
  "a browser": (port, times) => {
    const { fetch } = globalThis;
    globalThis.fetch = (path, request) => fetch(new URL(path as string, `http://127.0.0.1:${port}`), request).finally(() => (globalThis.fetch = fetch));
    return new PageChannel({ protocol: "http:", hostname: "127.0.0.1" }, true, "ann", times);
  },
};
const described = await new MemoryServer({} as Offer).artifact(new Uint8Array(5000), "float32");
const CALLS: Record<string, (channel: Channel) => Promise<unknown>> = {
  "check-in": (channel) => channel.checkIn(create(CheckInRequestSchema)),
  upload: (channel) => channel.upload(create(UploadHeaderSchema), new Uint8Array(10), async () => {}),
  download: async (channel) => channel.download(await Assembly.of(described, { ...LIMITS, largestDownload: 5000 }, "largestDownload")),
};

for (const [where, dial] of Object.entries(CHANNELS))
  for (const [what, call] of Object.entries(CALLS))
    for (const [status, way, piece, every, why] of WAYS)
      test(`${where}: an answer ${status} ${way} ends a ${what}`, { timeout: 20_000 }, async () => {
        const server = createServer((socket) => {
          let timer: NodeJS.Timeout | undefined;
          const go = (): void => {
            if (every) collect();
            socket.write(`${piece.length.toString(16)}\r\n${piece}\r\n`);
            timer = setTimeout(go, every);
          };
          socket.on("error", () => {}).on("close", () => clearTimeout(timer));
          socket.once("data", () => {
            socket.write(HEAD.replace("STATUS", String(status)));
            go();
          });
        }).listen(0, "127.0.0.1");
        await once(server, "listening");
        // On a machine that does much else, what has no end is long in coming.
        const channel = dial((server.address() as AddressInfo).port, every ? TIMES : LONG);
        try {
          await assert.rejects(call(channel), (error) => error instanceof TransportError && why.test(error.message));
        } finally {
          channel.close();
          server.close();
        }
      });

test("an answer to an upload that was not read does not hold the next call up", { timeout: 20_000 }, async () => {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket.on("error", () => {}));
    socket.once("data", () => {
      socket.write("HTTP/1.1 100 Continue\r\n\r\n");
      socket.pause();
      setTimeout(() => socket.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), 50);
    });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const channel = new NodeChannel(`127.0.0.1:${(server.address() as AddressInfo).port}`, undefined, "ann", TIMES);
  // More than what the buffers of a connection hold.
  await channel.upload(create(UploadHeaderSchema), new Uint8Array(50_000_000), async () => {});
  await channel.checkIn(create(CheckInRequestSchema));
  assert.equal(sockets.length, 2);
  channel.close();
  for (const socket of sockets) socket.destroy();
  server.close();
});

test("an upload is wanted once, however often a server says so", { timeout: 20_000 }, async () => {
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () => {
      for (let time = 0; time < 3; time++) socket.write("HTTP/1.1 100 Continue\r\n\r\n");
      setTimeout(() => socket.end("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), 50);
    });
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const channel = new NodeChannel(`127.0.0.1:${(server.address() as AddressInfo).port}`, undefined, "ann", TIMES);
  let counted = 0;
  await channel.upload(create(UploadHeaderSchema), new Uint8Array(10), async () => void counted++);
  channel.close();
  server.close();
  assert.equal(counted, 1);
});

for (const [where, dial] of Object.entries(CHANNELS))
  test(`${where}: silence ends a report without an update as soon as any other call`, { timeout: 20_000 }, async () => {
    const server = createServer((socket) => void socket.on("error", () => {})).listen(0, "127.0.0.1");
    await once(server, "listening");
    const channel = dial((server.address() as AddressInfo).port, TIMES);
    await assert.rejects(channel.upload(create(UploadHeaderSchema), new Uint8Array(), async () => {}), /0\.4 seconds/);
    channel.close();
    server.close();
  });

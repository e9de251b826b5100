/** Calls end, whatever a server answers. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";

import { TransportError } from "../src/errors.js";
import { UploadHeaderSchema } from "../src/messages_pb.js";
import { NodeChannel } from "../src/node/channel.js";

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

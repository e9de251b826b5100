/** The thread that runs plans, in a browser. */

import { Answering, type Question } from "../training.js";

const answering = new Answering();
self.onmessage = (event: MessageEvent<Question>) => void answering.answer(event.data).then((answer) => postMessage(answer));

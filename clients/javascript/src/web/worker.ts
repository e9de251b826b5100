/** The thread that interprets plans, in a browser. */

import { Answering, interpreted, type Question } from "../training.js";

const answering = new Answering(interpreted);
self.onmessage = (event: MessageEvent<Question>) => void answering.answer(event.data).then((answer) => postMessage(answer));

/** What goes wrong, by what a client does about it. */

/** The owner of the device, or the operator of the server, must do something. */
export class ClientError extends Error {}

/** A plan is not one that this client runs. */
export class PlanError extends ClientError {}

/** What answers is not what this client was set up to talk to; trying again soon does not help. */
export class WrongServerError extends ClientError {}

/** A call failed, and is worth another try. */
export class TransportError extends Error {}

/** What was asked for is not offered any more: the round is over. */
export class GoneError extends Error {}

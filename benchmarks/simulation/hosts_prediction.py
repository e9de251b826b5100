"""What a round over several hosts takes, on paper: from measured constants to numbers of hosts that nobody has here.

A round is the training of the longest lane and one exchange of sums. In an exchange of `n` processes each sends every
part of its vector to the one that adds it up, and the part that it has added up to all: 2 (n - 1) / n vectors, those of
a stage all at once.

    seconds = fixed + each_peer (n - 1) + each_byte V        what processes compute, slower where they share a core
              + (waits + of_slow_start S) R                  round trips R
              + of_wire 2 (n - 1) / n  V / bandwidth         1 where the link is always full

A connection that was idle begins again with ten packets and doubles them with every round trip (slow start), until it
has sent its V / n bytes or fills the link: S round trips, if none of it overlaps with anything.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from benchmarks.simulation.namespaces import Link
from fedlm.simulations.engine.lanes import balance_lanes

PACKET_BYTES = 1448
FIRST_PACKETS = 10
FRAME_SHARE = 1448 / 1538
"""Of a link's bits that are payload: 1,448 bytes of each 1,538 that a frame of Ethernet takes, its gap included."""


class Exchange(NamedTuple):
    """One exchange of sums.

    Attributes:
      processes: that take part, one a host.
      vector_bytes: of the sum.
      link: of each host.
      share: processes that share a core, 1 where each has its own.
    """

    processes: int
    vector_bytes: int
    link: Link
    share: float = 1.0


class Constants(NamedTuple):
    """What was measured.

    Attributes:
      fixed: seconds of an exchange.
      each_peer: seconds for each other process.
      each_byte: seconds for each byte of the vector: adding, copying, the kernel.
      waits: round trips of an exchange, without those of slow start.
      of_slow_start: part of the round trips of slow start that an exchange waits for.
      of_wire: how many times as long as at the link's rate bytes take.
    """

    fixed: float
    each_peer: float
    each_byte: float
    waits: float
    of_slow_start: float
    of_wire: float


def sent_bytes(processes: int, vector_bytes: int) -> float:
    """Count the bytes that a host sends in an exchange, and receives.

    Example:
      >>> sent_bytes(2, 100), sent_bytes(4, 100)
      (100.0, 150.0)
    """
    return 2 * (processes - 1) / processes * vector_bytes


def seconds_on_the_wire(exchange: Exchange) -> float:
    """Compute how long the bytes of an exchange take at the link's rate; 0 where nothing limits it."""
    if exchange.link.megabits is None:
        return 0.0
    sent = sent_bytes(exchange.processes, exchange.vector_bytes)
    return sent / (exchange.link.megabits * 125e3 * FRAME_SHARE)


def slow_start_trips(exchange: Exchange) -> float:
    """Count the round trips in which a connection that was idle does not fill its link yet.

    Example:
      >>> slow_start_trips(Exchange(2, 2 * 10 * 1448, Link("", None, 1.0)))
      1.0
    """
    if exchange.processes == 1:
        return 0.0
    packets = exchange.vector_bytes / exchange.processes / PACKET_BYTES
    if exchange.link.megabits is not None:
        of_link = exchange.link.megabits * 125 * exchange.link.round_trip_ms / PACKET_BYTES
        packets = min(packets, of_link / (exchange.processes - 1))
    return math.log2(1 + packets / FIRST_PACKETS)


def _terms(exchange: Exchange) -> np.ndarray:
    """Give what each constant is multiplied with: float [constants]."""
    share, trip = exchange.share, exchange.link.round_trip_ms / 1e3
    return np.array(
        [
            share,
            share * (exchange.processes - 1),
            share * exchange.vector_bytes,
            trip,
            trip * slow_start_trips(exchange),
            seconds_on_the_wire(exchange),
        ]
    )


def exchange_seconds(exchange: Exchange, constants: Constants) -> float:
    """Predict the seconds of an exchange, from the last process' arrival to the last one's end."""
    return 0.0 if exchange.processes == 1 else float(_terms(exchange) @ np.array(constants))


def fit_constants(exchanges: Sequence[Exchange], seconds: Sequence[float]) -> Constants:
    """Find the constants, none below 0, whose relative errors have the least squares.

    Args:
      exchanges: that were measured.
      seconds: of each.
    """
    terms = np.array([_terms(exchange) for exchange in exchanges]) / np.asarray(seconds)[:, None]
    # The columns differ by many powers of ten.
    scale = np.maximum(terms.max(axis=0), np.finfo(float).tiny)
    found, _ = nnls(terms / scale, np.ones(len(exchanges)))
    return Constants(*(found / scale).tolist())


class Training(NamedTuple):
    """What hosts compute in a round.

    Attributes:
      steps: int [clients], local steps of the clients of the population, from which cohorts are drawn.
      step_seconds: of one local step on one lane.
      lanes: of a host.
    """

    steps: np.ndarray
    step_seconds: float
    lanes: int = 1


def efficiency(
    exchange: Exchange, training: Training, cohort: int, constants: Constants, draws: int = 5, seed: int = 0
) -> float:
    """Predict the part of the hosts' time that is training: what they would need if lanes were equally long and nothing
    were exchanged, over what the round takes.

    Args:
      exchange: of the round.
      training: of its clients.
      cohort: how many clients are drawn.
      constants: of `fit_constants`.
      draws: of cohorts, over which the times are averaged.
      seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    lanes = exchange.processes * training.lanes
    longest, mean = 0.0, 0.0
    for _ in range(draws):
        steps = rng.choice(training.steps, cohort)
        longest += max(int(steps[lane].sum()) for lane in balance_lanes(steps, lanes)) / draws
        mean += steps.sum() / lanes / draws
    whole = longest * training.step_seconds + exchange_seconds(exchange, constants)
    return mean * training.step_seconds / whole

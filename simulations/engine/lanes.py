"""Cutting a ragged cohort into equally long lanes of client batches.

A lane is a stream of local steps: all steps of one client, then all of the next. Lanes travel to the devices
in chunks of a fixed number of steps, so that no two cohorts need different array shapes.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedlm.fl_core.rounds.local_sgd import LocalTraining, batch_rows, dropout_keys
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.data.federated_data import FederatedData


@dataclass(frozen=True)
class LaneShape:
    """The fixed shape of a chunk."""

    devices: int  # that run lanes, of all processes together
    lanes: int  # on each device
    steps: int  # local steps in a chunk
    length: int  # target tokens of a sequence


class LaneChunk(NamedTuple):
    """Some steps of every lane. D devices of this process, S steps, L lanes."""

    tokens: np.ndarray  # int32 [D, S, L, batch, length + 1]
    weight: np.ndarray  # float32 [D, S, L, batch]
    first: np.ndarray  # bool [D, S, L], whether it is its client's first
    last: np.ndarray  # bool [D, S, L], whether it is its client's last
    client: np.ndarray  # int32 [D, S, L], the client's index
    place: np.ndarray  # int32 [D, S, L], the client's place in the cohort
    num_examples: np.ndarray  # float32 [D, S, L], how many examples the client trains on
    num_steps: np.ndarray  # int32 [D], how many of the S steps hold work on any of the device's lanes
    dropout: np.ndarray | None  # uint32 [D, S, L, batch, 2], the examples' keys; None where nothing is dropped


def balance_lanes(steps: np.ndarray, num_lanes: int) -> list[list[int]]:
    """Give clients to lanes so that lanes are about equally long: longest first, to the shortest lane.

    `steps` is int [clients], the local steps of each. Returns for each lane the positions of its clients, without those
    that have no steps. The longest lane is at most 4/3 of the best possible (Graham 1969).
    """
    lanes: list[list[int]] = [[] for _ in range(num_lanes)]
    shortest = [(0, lane) for lane in range(num_lanes)]
    for position in np.argsort(-steps, kind="stable"):
        if steps[position] > 0:
            load, lane = heapq.heappop(shortest)
            lanes[lane].append(int(position))
            heapq.heappush(shortest, (load + int(steps[position]), lane))
    return lanes


def lane_chunks(
    data: FederatedData,
    plan: RoundPlan,
    training: LocalTraining,
    shape: LaneShape,
    *,
    own_devices: Sequence[int] | None = None,
) -> Iterator[LaneChunk]:
    """Lay a cohort's local steps out in lanes and cut the lanes of some devices, or of all, into chunks.

    Which lane a client is in follows from the plan alone. So several processes, each of which makes the lanes of its
    own devices, agree without a word, also on the number of chunks: as many as the longest lane of all devices needs.
    """
    own_devices = range(shape.devices) if own_devices is None else own_devices
    steps = training.count_steps(data.num_examples[plan.clients])
    balance = balance_lanes(steps, shape.devices * shape.lanes)
    longest = max(int(steps[positions].sum()) for positions in balance)
    lanes = [
        [
            _Lane(positions, data, plan, training)
            for positions in balance[device * shape.lanes : (device + 1) * shape.lanes]
        ]
        for device in own_devices
    ]
    for _ in range(-(-longest // shape.steps)):
        chunk = empty_chunk(shape, training, len(lanes))
        for device, of_device in enumerate(lanes):
            chunk.num_steps[device] = max(lane.fill(chunk, device, row) for row, lane in enumerate(of_device))
        yield chunk


class _Lane:
    """Where one lane stands: which client is next, and which of the current client's steps are left."""

    def __init__(self, places: list[int], data: FederatedData, plan: RoundPlan, training: LocalTraining):
        self._places = places[::-1]
        self._data, self._plan, self._training = data, plan, training
        self._place = self._client = -1
        self._tokens = np.empty((0, training.batch_size, 0), np.int32)
        self._weight = np.empty((0, training.batch_size), np.float32)
        self._dropout = np.empty((0, training.batch_size, 2), np.uint32)
        self._next_step = 0

    @property
    def finished(self) -> bool:
        return not self._places and self._next_step == len(self._tokens)

    def fill(self, chunk: LaneChunk, device: int, lane: int) -> int:
        """Copy as many steps as fit; returns how many."""
        capacity = chunk.last.shape[1]
        step = 0
        while step < capacity and not self.finished:
            if self._next_step == len(self._tokens):
                self._start_next_client()
            taken = min(capacity - step, len(self._tokens) - self._next_step)
            here = (device, slice(step, step + taken), lane)
            those = slice(self._next_step, self._next_step + taken)
            chunk.tokens[here], chunk.weight[here] = self._tokens[those], self._weight[those]
            if chunk.dropout is not None:
                chunk.dropout[here] = self._dropout[those]
            chunk.client[here], chunk.place[here] = self._client, self._place
            chunk.first[device, step, lane] = self._next_step == 0
            chunk.num_examples[here] = self._training.count_examples(self._data.num_examples[self._client])
            self._next_step += taken
            step += taken
            chunk.last[device, step - 1, lane] = self._next_step == len(self._tokens)
        return step

    def _start_next_client(self) -> None:
        self._place = self._places.pop()
        self._client = int(self._plan.clients[self._place])
        num_examples = int(self._data.num_examples[self._client])
        rows = batch_rows(num_examples, self._training, self._plan.shuffling(self._client))
        real = rows >= 0
        wanted = self._data.sequences(self._client, np.maximum(rows, 0).reshape(-1))
        self._tokens = wanted.reshape(*rows.shape, -1)
        self._tokens[~real] = PAD_ID
        self._weight = real.astype(np.float32)
        if self._training.draws_dropout:
            self._dropout = dropout_keys(rows, self._plan.dropout(self._client))
        self._next_step = 0


def empty_chunk(shape: LaneShape, training: LocalTraining, devices: int | None = None) -> LaneChunk:
    """Make a chunk without any work, for all devices or for so many."""
    devices = shape.devices if devices is None else devices
    grid, batch_size = (devices, shape.steps, shape.lanes), training.batch_size
    return LaneChunk(
        tokens=np.zeros((*grid, batch_size, shape.length + 1), np.int32),
        weight=np.zeros((*grid, batch_size), np.float32),
        first=np.zeros(grid, bool),
        last=np.zeros(grid, bool),
        client=np.zeros(grid, np.int32),
        place=np.zeros(grid, np.int32),
        num_examples=np.zeros(grid, np.float32),
        num_steps=np.zeros(devices, np.int32),
        dropout=np.zeros((*grid, batch_size, 2), np.uint32) if training.draws_dropout else None,
    )

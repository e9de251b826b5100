"""Who has taken part in which released rounds, by name, on disk before the rounds are released.

Samplers draw the same cohorts again from their seed; this holds a run to what was promised whatever else has changed:
the order of clients, the generator of random numbers, the sampler itself. One JSON object a line: `round`, `clients`.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlm.fl_core.atomic_files import append_whole, disk_errors, write_atomically
from fedlm.fl_core.errors import CheckpointError, setting
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation, EpochParticipation
from fedlm.fl_core.privacy.participation.realised import RealisedParticipation
from fedlm.fl_core.rounds.cohorts import CohortSampler

PARTICIPATION_FILE = "participation.jsonl"


class ParticipationRecord:
    """The record of a run, in the process that uses its folder."""

    def __init__(self, path: Path, client_ids: Sequence[str], promised: BoundedParticipation | EpochParticipation):
        """Open a record, which need not exist yet.

        Args:
          client_ids: the names of the clients that the sampler numbers.
          promised: what holds of every client.
        """
        self._path, self._ids, self._promised = path, client_ids, promised
        self._rounds: dict[str, list[int]] = {}
        self._unwritten: dict[int, list[str]] = {}
        self._last = -1  # the last round that was noted
        self._length = 0

    def settle(self, rounds: int) -> None:
        """Go back to what is known of the rounds that count as released. Raises CheckpointError where the record does
        not have them all."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        kept = []
        for line in lines:
            try:
                record = json.loads(line)
                number, clients = int(record["round"]), list(record["clients"])
            except (ValueError, KeyError, TypeError):
                break
            if number >= rounds:
                break
            kept.append(line)
            self._admit(number, clients)
        if len(kept) < rounds:
            raise CheckpointError(
                f"{self._path}: knows who took part in {len(kept)} rounds, but {rounds} were released: it is "
                f"damaged, or an older copy. Put back the one that belongs to the run, or give another {setting('out')}"
            )
        content = b"".join(kept)
        if len(kept) < len(lines):
            write_atomically(self._path, content, private=True)
        self._length, self._last = len(content), rounds - 1

    def beside_plan(self, done: int, rounds: int) -> dict[str, Any]:
        """Put how clients took part in the rounds that are done beside what is promised of all; see
        `RealisedParticipation.beside`."""
        # The round after the last is drawn already.
        realised = RealisedParticipation.of([one for one in taken if one < done] for taken in self._rounds.values())
        return realised.beside(self._promised.bounded(rounds), rounds)

    def note(self, round_number: int, cohort: np.ndarray) -> None:
        """Hold a cohort to the promise, and keep it for `write`. Raises CheckpointError where a client of it may not
        take part."""
        if round_number <= self._last:
            return
        clients = [self._ids[index] for index in cohort]
        self._admit(round_number, clients)
        self._unwritten[round_number], self._last = clients, round_number

    def write(self) -> None:
        """Write down what was noted; when this returns, it is on disk. Raises DiskError where it cannot be written."""
        lines = [{"round": number, "clients": self._unwritten[number]} for number in sorted(self._unwritten)]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        with disk_errors(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._length = append_whole(descriptor, content, self._length)
            finally:
                os.close(descriptor)
        self._unwritten = {}

    def _admit(self, number: int, clients: Sequence[str]) -> None:
        for client in clients:
            before = self._rounds.setdefault(client, [])
            if not self._promised.may(before, number):
                raise CheckpointError(
                    f"{self._path}: client {client!r} took part in rounds {', '.join(map(str, before[-3:]))} and may "
                    f"not take part in round {number} ({self._promised}). The data or the software are not "
                    f"those that the run was begun with; go on with these, or give another {setting('out')}"
                )
            before.append(number)


class RecordedSampler:
    """A sampler of which a record hears."""

    def __init__(self, sampler: CohortSampler, record: ParticipationRecord):
        self._sampler, self._record = sampler, record

    def sample(self, round_number: int) -> np.ndarray:
        cohort = self._sampler.sample(round_number)
        self._record.note(round_number, cohort)
        return cohort

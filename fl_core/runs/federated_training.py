"""Federated rounds in the folder of their run: what a simulation and a deployment have in common."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlm.fl_core.client_algorithms.interface import check_private, sent_by_client
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.processes import from_first, gather
from fedlm.fl_core.rounds.aggregation import WeightedMean
from fedlm.fl_core.rounds.cohorts import CohortSampler
from fedlm.fl_core.rounds.round_loop import Averaging, CohortRunner, FederatedOptimization, PlainAveraging, Rounds
from fedlm.fl_core.rounds.server_optimizers import ServerState
from fedlm.fl_core.runs.absurd_steps import AbsurdSteps, standing_rows
from fedlm.fl_core.runs.driver import Run, Step
from fedlm.fl_core.runs.round_rows import WENT_BACK, WENT_BACK_TO, round_row
from fedlm.models.base import Params

if TYPE_CHECKING:
    # A run without privacy need not load the libraries of privacy.
    from fedlm.fl_core.privacy.distributed_rounds import BeginSum, DistributedRounds
    from fedlm.fl_core.privacy.private_rounds import PrivacyState, PrivateAggregation, PrivateRounds

Score = Callable[[Params], dict[str, Any]]
"""From parameters to what is known of them, by name, for the round's row."""


class PrivateCheckpoint(NamedTuple):
    """What a checkpoint of a private run holds."""

    server: Any  # the `ServerState`, without the client algorithm's memory where that is nothing
    privacy: "PrivacyState"  # what is durable of the noise and the clip norm


class _Plain(NamedTuple):
    """What a checkpoint holds of a `ServerState` whose client algorithm remembers nothing."""

    params: Params
    optimizer: Any


def _stored(server: ServerState) -> Any:
    # Checkpoints have names of fields; that of nothing would be one more.
    remembers = jax.tree_util.tree_leaves(server.algorithm)
    return server if remembers else _Plain(server.params, server.optimizer)


class FederatedTraining:
    """The rounds of a run that are left.

    Attributes:
      rounds_done: that it has seen, or that count as released.
    """

    def __init__(
        self,
        run: Run,
        optimization: FederatedOptimization,
        fresh: ServerState,
        private: "PrivateAggregation | None" = None,
        *,
        averaging: PlainAveraging = WeightedMean(),  # noqa: B008
        goes_back: bool = False,
        in_place: bool = False,
    ):
        """Begin, or go back to the newest checkpoint; see `Run.resume`.

        Args:
          private: makes means private, and the run has the terms of its plan; without it the run is not private.
          averaging: makes means of the sums of a run that is not private.
          goes_back: whether a step that makes the held-out loss absurd is undone; not with privacy.
          in_place: whether a step takes the memory of the state before it, whose arrays nobody else may hold then.
        """
        self.run, self._optimization, self._in_place = run, optimization, in_place
        # What a run without a checkpoint goes back to.
        self._first: ServerState | None = None
        self._absurd: AbsurdSteps | None = None
        self._plain: PlainAveraging | None = None
        self._private: PrivateRounds | DistributedRounds | None = None
        self._averaging: Averaging = averaging
        if private is not None:
            self._resume_privately(fresh, private)
        else:
            self._resume_plainly(fresh, averaging, goes_back)
        self.rounds_done = run.standing.first

    def _resume_plainly(self, fresh: ServerState, averaging: PlainAveraging, goes_back: bool) -> None:
        self.server = ServerState(*from_first(self.run.resume(_stored(fresh))))
        rows = gather(self.run.folder.rows)[0]
        self._plain, self._averaging_state = averaging, averaging.after(standing_rows(rows))
        if goes_back:
            # A step in place would use up the very arrays that are gone back to.
            self._first = jax.tree_util.tree_map(jnp.copy, fresh) if self._in_place else fresh
            self._absurd = AbsurdSteps(rows)

    def _resume_privately(self, fresh: ServerState, aggregation: "PrivateAggregation") -> None:
        from fedlm.fl_core.privacy.distributed_rounds import private_averaging

        check_private(self._optimization.algorithm, fresh.params)
        like = sent_by_client(self._optimization.algorithm, fresh.params)
        # Which secret and which rounds does not matter for shapes.
        shapes = private_averaging(aggregation, bytes(32), like)
        found = self.run.resume(PrivateCheckpoint(_stored(fresh), shapes.durable(shapes.init())))
        standing, durable = self.run.standing, found.privacy
        assert standing.noise_from is not None
        secret = bytes.fromhex(standing.secret)
        private = private_averaging(aggregation, secret, like, first=standing.noise_from, end=standing.end)
        self._private = self._averaging = private
        self.server = ServerState(*from_first(found.server))
        if not standing.checkpoint:
            self._averaging_state = private.init()
            return
        if jax.process_count() > 1:
            # Every process draws the noise by itself, on a device of its own.
            durable = jax.device_get(from_first(durable))
        fresh_noise = standing.fresh_noise
        self._averaging_state = private.init(float(durable.clip_norm)) if fresh_noise else private.restore(durable)

    def simulated(self, runner: CohortRunner, begin_sum: "BeginSum | None" = None) -> CohortRunner:
        """Let a simulation's clients do with their updates what the run's privacy asks of clients.

        Args:
          runner: of cohorts.
          begin_sum: adds up clients' integers in another way than in the clear, where they add noise.
        """
        return runner if self._private is None else self._private.over(runner, begin_sum)

    def rounds(
        self,
        runner: CohortRunner,
        sampler: CohortSampler,
        score: Score | None = None,
        evaluate_every: int = 1,
        *,
        secret: bytes | None = None,
    ) -> Iterator[Step]:
        """Run the rounds that are left, scoring the model every so many rounds, and after the last.

        What clients shuffle and round by follows from the secret, where there is one. It goes by their numbers, so that
        by a seed that is known one client more would change the updates of all behind it.
        """
        rounds = Rounds(
            self.server,
            self.run.remaining,
            runner,
            sampler,
            optimization=dataclasses.replace(self._optimization, secret=secret),
            averaging=self._averaging,
            averaging_state=self._averaging_state,
            in_place=self._in_place,
        )
        began = time.monotonic()
        for result in rounds:
            self.server, self.rounds_done = result.state, result.round_number + 1
            row = round_row(result, self._optimization.algorithm.trains)
            if score is not None and (
                self.rounds_done % evaluate_every == 0 or self.rounds_done == self.run.standing.end
            ):
                scores = score(result.state.params)
                if taken := row.keys() & scores.keys():
                    raise ConfigurationError(f"scores have the names of other metrics: {', '.join(sorted(taken))}")
                row |= scores
                if self._absurd is not None and self._is_absurd(self._absurd, scores, score):
                    row[WENT_BACK] = self._absurd.in_a_row
                    row[WENT_BACK_TO], self.server = self._earlier(self._absurd, score)
                    rounds.go_back(self.server, self._averaging_after(row))
            began, row["seconds"] = time.monotonic(), time.monotonic() - began
            state = functools.partial(self.checkpoint, result.mean.state)
            yield Step(self.rounds_done, row | result.mean.metrics, state)
            # The next round needs the memory.
            del result, state

    def _is_absurd(self, absurd: AbsurdSteps, scores: dict[str, Any], score: Score) -> bool:
        first = self._first
        found = absurd.look(scores, lambda: score(first.params) if first else {})
        if self.run.saved:
            self._first = None
        return found

    def _earlier(self, absurd: AbsurdSteps, score: Score) -> tuple[int, ServerState]:
        """Read the newest state whose score is not absurd, or the oldest that there is, and the rounds it has seen."""
        found = None if self._first is None else (0, self._first)
        for rounds, stored in self.run.earlier(_stored(self.server)):
            found = rounds, ServerState(*from_first(stored))
            if not absurd.is_absurd(score(found[1].params)):
                break
        assert found is not None
        return found

    def _averaging_after(self, row: dict[str, Any]) -> Any:
        """Find the averaging's state after a row that tells of going back."""
        assert self._plain is not None
        # Honest updates from a ruined model are long: a bound that remembered them would let the next lie through.
        return self._plain.after(standing_rows([*gather(self.run.folder.rows)[0], row]))

    def checkpoint(self, averaging_state: Any = None) -> Any:
        """Make what a checkpoint holds; with privacy, after the round that left this state of what makes means."""
        if self._private is None:
            return _stored(self.server)
        return PrivateCheckpoint(_stored(self.server), self._private.durable(averaging_state))

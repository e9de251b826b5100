"""The sum of a round's reports where the server sees no single one: masked vectors, added modulo 2^b."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from cryptography import x509

from fedlm.fedlm_client.secure_aggregation.keys import AttemptName
from fedlm.fedlm_client.secure_aggregation.masks import MOST_BITS, packed_size
from fedlm.fedlm_client.secure_aggregation.roster import Parameters
from fedlm.fedlm_client.secure_aggregation.sum_vector import SumLayout, Told
from fedlm.fedlm_client.secure_aggregation.taking_part import Reply, Step
from fedlm.fl_core.deployment.secure_aggregation.attempt import SecureAttempt
from fedlm.fl_core.deployment.secure_aggregation.errors import AbandonedError
from fedlm.fl_core.deployment.secure_aggregation.parameter_rule import Strangers, choose_graph
from fedlm.fl_core.deployment.secure_aggregation.secure_round import SecureRound
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report, StreamingSum
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.exact_sums import grid_step, number_of_coordinates, shaped
from fedlm.fl_core.rounds.aggregation import CohortAggregate, empty_aggregate
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums
from fedlm.fl_core.updates.update_bytes import WireError
from fedlm.models.base import Params

_MOST_LOSS, _MOST_NORM, _MOST_GRADIENT = 32.0, 64.0, 1024.0


@dataclass(frozen=True)
class SecureSettings:
    """How a run's sums are secure.

    Attributes:
      like: arrays, or shapes, of an update.
      layout: of a client's integers.
      bits: b; sums are modulo 2^b.
      least_cohort: members of which a sum must be.
      authorities: who signs certificates of clients.
      save: writes an attempt where it survives a crash.
    """

    like: Params
    layout: SumLayout
    bits: int
    least_cohort: int
    authorities: tuple[x509.Certificate, ...]
    save: Callable[[SecureAttempt], None]

    @property
    def length(self) -> int:
        """Integers of a client's vector."""
        return number_of_coordinates(self.like) + len(self.layout.bounds)

    @property
    def upload_bytes(self) -> int:
        """Bytes of a masked vector."""
        return packed_size(self.length, self.bits)

    def rules(self, members: int) -> Parameters:
        """Make the rules for so many members; raises `AbandonedError` where there are none."""
        try:
            graph = choose_graph(members, Strangers())
        except (ConfigurationError, ValueError) as error:
            raise AbandonedError(f"no secure sum of {members} members") from error
        return Parameters(
            *graph,
            least_cohort=self.least_cohort,
            bits=self.bits,
            length=self.length,
            largest=self.layout.largest,
            clip_norm=self.layout.clip_norm,
            scale=1 / self.layout.step,
            variance=0.0,
            rotation=b"",
        )


def sum_layout(like: Params, clip_norm: float, training: LocalTraining, length: int) -> SumLayout:
    """Lay out clients' integers: the grid of private sums, and bounds that honest clients do not reach.

    Args:
      like: arrays, or shapes, of an update.
      clip_norm: of an update.
      training: of clients.
      length: target tokens of a sequence.
    """
    steps = float(training.max_batches)
    rows = steps * training.batch_size
    bounds = Told(
        clipped=1.0,
        update_norm=_MOST_NORM * clip_norm,
        examples=rows,
        loss=rows * length * _MOST_LOSS,
        tokens=rows * length,
        gradient_norm=steps * _MOST_GRADIENT,
    )
    step = float(grid_step(jnp.float32(clip_norm), number_of_coordinates(like)))
    return SumLayout(clip_norm, step, bounds)


def fitting(layout: SumLayout, most: int) -> tuple[SumLayout, int]:
    """Make a grid coarser until sums of so many clients fit into 32 bits, and give the bits that they need."""
    while (bits := (2 * layout.largest * most).bit_length()) > MOST_BITS:
        layout = layout._replace(step=2 * layout.step)
    if layout.largest < 1 << 8:
        raise ConfigurationError(
            f"{setting('aggregation')} is secure, which has room for sums of fewer than {most} clients; give a smaller "
            f"{setting('cohort_size')}"
        )
    return layout, max(bits, 8)


class SecureSum(StreamingSum):
    """A `StreamingSum` of masked vectors. Used in the thread that adds reports, but for `begin`."""

    def __init__(self, settings: SecureSettings):
        """Begin with nothing."""
        self._settings, self._owners = settings, dict[int, str]()
        self._unusable = 0
        self.round: SecureRound | None = None

    def begin(self, name: AttemptName) -> SecureRound:
        """Open the attempt whose sum this is."""
        settings = self._settings
        self.round = SecureRound(name, settings.rules, settings.authorities, settings.save)
        return self.round

    def compile(self) -> None:
        pass

    def answer(self, client: int, owner: str, step: Step, content: bytes) -> Reply:
        """Answer a call of a client, by its number and the name in its certificate."""
        assert self.round is not None
        self._owners[client] = owner
        return self.round.answer(owner, step, content)

    def add(self, report: Report) -> None:
        assert self.round is not None
        owner = self._owners.get(report.client, "")
        reply = self.round.answer(owner, "vector", bytes(report.content))
        if reply.state == "over":
            raise WireError(reply.reason)

    def add_unusable(self) -> None:
        self._unusable += 1

    def finish(self) -> CohortAggregate:
        assert self.round is not None
        assert self.round.total is not None
        settings, count = self._settings, len(self.round.attempt.survivors)
        values, told = settings.layout.read(self.round.total, settings.bits)
        return empty_aggregate({})._replace(
            delta=shaped(values, settings.like),
            weight=jnp.float32(count),
            clients=jnp.float32(count + self._unusable),
            dropped=jnp.float32(self._unusable),
            clipped=jnp.float32(told.clipped),
            update_norm=jnp.float32(told.update_norm),
            training=TrainingSums(*map(jnp.float32, (told.loss, told.tokens, told.gradient_norm))),
            examples=jnp.float32(told.examples),
        )

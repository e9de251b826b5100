"""One client's part in a round: train on its own examples, and answer with the bytes of an upload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.client_algorithms.interface import Broadcast, all_finite
from fedlm.fl_core.rounds.local_sgd import LocalTraining, TrainingSums, train_client
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.updates.compressors import Compressor, compress_update
from fedlm.fl_core.updates.update_bytes import pack_update
from fedlm.models.base import Model


@dataclass(frozen=True)
class ClientProgram:
    """What the server tells every client to run."""

    model: Model
    training: LocalTraining
    compressor: Compressor


class ClientReport(NamedTuple):
    """What a client sends back.

    Attributes:
      upload: the compressed update, as `fedlm.fl_core.updates.update_bytes.pack_update` writes it.
      num_examples: that the client trains on.
      training: sums over its local steps.
      kept: what it keeps to itself, and does not send.
    """

    upload: bytes
    num_examples: int
    training: TrainingSums
    kept: Any = ()


def train_locally(
    program: ClientProgram,
    server: Broadcast,
    sequences: np.ndarray,
    plan: RoundPlan,
    *,
    client: int,
    before_step: Callable[[], None] | None = None,
    kept: Any = None,
) -> ClientReport | None:
    """Train from what the server sent on a client's examples, int32 [examples, length + 1], and from what it has kept
    to itself; None where it takes part for the first time.

    Returns:
      The report; None where the client has no example, or its update is not finite (quantizing one would poison it).
    """
    if len(sequences) == 0:
        return None
    training = program.training
    streams = {"rng": plan.shuffling(client), "dropout_rng": plan.dropout(client)}
    local, sums = train_client(
        program.model,
        server,
        sequences,
        training,
        learning_rate=plan.learning_rate,
        before_step=before_step,
        kept=kept,
        **streams,
    )
    delta, kept = training.algorithm.finish(server, local), training.algorithm.keep(local)
    if not all_finite((delta, kept)):
        return None
    compressed = _compress(program.compressor, jax.random.fold_in(plan.upload_key(), client), delta)
    upload = pack_update(program.compressor, compressed, delta)
    num_examples = int(training.count_examples(len(sequences)))
    return ClientReport(upload, num_examples, jax.device_get(sums), kept)


_compress = jax.jit(compress_update, static_argnums=0)

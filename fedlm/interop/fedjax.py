"""FedJAX: our models as `fedjax.Model`, our splits as `fedjax.FederatedData`, and FedJAX's data as ours.

Batches there are dicts with the features `x` and `y`, int32 [batch, length], of FedJAX's own language data: the tokens
that are read, and those that are predicted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.core.client_datasets import EXAMPLE_MASK_KEY, buffered_shuffle

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.rounds.local_sgd import LocalTraining, batch_rows, gather_batch
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.interop.older_jax import supply_missing
from fedlm.models.base import Batch, Model, Params, weigh_examples
from fedlm.models.losses import ExampleSums
from fedlm.models.special_tokens import OOV_ID, PAD_ID
from fedlm.simulations.data.federated_data import Split
from fedlm.simulations.data.in_memory import DataInMemory

supply_missing()


def model_for_fedjax(model: Model) -> fedjax.Model:
    """Make a `fedjax.Model` of a causal language model.

    `fedjax.model_grad` of it is the gradient of our loss, the mean over the target tokens of a batch. Its metrics are
    our scores, but that `log_perplexity` is the logarithm of the perplexity. Nothing is dropped in training.

    Raises:
      ConfigurationError: the model does not predict next tokens, or has parameters that are not trained.
    """
    if model.objective != "causal" or model.with_frozen is not None:
        what = "has parameters that are not trained" if model.with_frozen is not None else f"is {model.objective}"
        raise ConfigurationError(f"model {model.name!r} {what}; FedJAX is given causal models that are trained whole")
    ends = (PAD_ID, model.special_tokens.eos)

    def train_loss(batch: Mapping[str, Any], sums: ExampleSums) -> jax.Array:
        # FedJAX takes the mean over examples of what is returned.
        weighted = weigh_examples(sums, _batch(batch))
        tokens = jnp.maximum(jnp.sum(weighted.tokens), 1.0)
        return weighted.loss * (jnp.sum(_weight(batch)) / tokens)

    return fedjax.Model(
        init=model.init,
        apply_for_train=lambda params, batch, rng: model.loss(params, _batch(batch)),
        apply_for_eval=lambda params, batch: model.apply(params, batch["x"]),
        train_loss=train_loss,
        eval_metrics={
            "loss": fedjax.metrics.SequenceTokenCrossEntropyLoss(masked_target_values=(PAD_ID,)),
            "log_perplexity": fedjax.metrics.SequenceTokenCrossEntropyLoss(masked_target_values=ends),
            "accuracy": fedjax.metrics.SequenceTokenAccuracy(masked_target_values=ends),
            "in_vocabulary_accuracy": fedjax.metrics.SequenceTokenAccuracy(masked_target_values=(*ends, OOV_ID)),
        },
    )


def _weight(batch: Mapping[str, Any]) -> jax.Array:
    mask = batch.get(EXAMPLE_MASK_KEY)
    return jnp.ones(len(batch["y"])) if mask is None else jnp.asarray(mask, jnp.float32)


def _batch(batch: Mapping[str, Any]) -> Batch:
    return Batch(jnp.concatenate([batch["x"][:, :1], batch["y"]], axis=1), _weight(batch))


class SplitForFedJax(fedjax.FederatedData):
    """A split of ours as FedJAX's data, read when it is asked for.

    Clients with examples are in it, by their ids as bytes, in the order of the split; `fedjax.SubsetFederatedData`
    chooses among them.
    """

    def __init__(self, split: Split, length: int) -> None:
        """Give examples of a split, which must have no prompts, cut or padded to so many tokens that are read."""
        if split.has_completions:
            raise ConfigurationError(
                "the split has prompts and completions, which FedJAX would not tell from each other; give data that "
                "was imported as texts"
            )
        self._split, self._length = split, length
        self._clients = {
            name.encode(): client for client, name in enumerate(split.client_ids) if split.num_examples[client]
        }
        self._client_preprocessor = fedjax.ClientPreprocessor()
        self._batch_preprocessor = fedjax.BatchPreprocessor()

    def _changed(self, **changes: Any) -> "SplitForFedJax":
        other = object.__new__(type(self))
        other.__dict__ = self.__dict__ | changes
        return other

    def slice(self, start: bytes | None = None, stop: bytes | None = None) -> "SplitForFedJax":
        kept = {
            name: client
            for name, client in self._clients.items()
            if (start is None or name >= start) and (stop is None or name < stop)
        }
        return self._changed(_clients=kept)

    def preprocess_client(self, fn: Callable[[bytes, Any], Any]) -> "SplitForFedJax":
        return self._changed(_client_preprocessor=self._client_preprocessor.append(fn))

    def preprocess_batch(self, fn: Callable[[Any], Any]) -> "SplitForFedJax":
        return self._changed(_batch_preprocessor=self._batch_preprocessor.append(fn))

    def num_clients(self) -> int:
        return len(self._clients)

    def client_ids(self) -> Iterator[bytes]:
        return iter(self._clients)

    def client_sizes(self) -> Iterator[tuple[bytes, int]]:
        return ((name, self.client_size(name)) for name in self._clients)

    def client_size(self, client_id: bytes) -> int:
        return int(self._split.num_examples[self._clients[client_id]])

    def clients(self) -> Iterator[tuple[bytes, fedjax.ClientDataset]]:
        return self.get_clients(self._clients)

    def shuffled_clients(
        self, buffer_size: int, seed: int | None = None
    ) -> Iterator[tuple[bytes, fedjax.ClientDataset]]:
        rng = np.random.RandomState(seed)
        while True:
            yield from buffered_shuffle(self.clients(), buffer_size, rng)

    def get_clients(self, client_ids: Iterable[bytes]) -> Iterator[tuple[bytes, fedjax.ClientDataset]]:
        return ((name, self.get_client(name)) for name in client_ids)

    def get_client(self, client_id: bytes) -> fedjax.ClientDataset:
        sequences = self._split.sequences(self._clients[client_id], self._length)
        return fedjax.ClientDataset(
            self._client_preprocessor(client_id, _inputs_and_targets(sequences)), self._batch_preprocessor
        )


def _inputs_and_targets(sequences: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": sequences[:, :-1], "y": sequences[:, 1:]}


def data_from_fedjax(
    train: fedjax.FederatedData,
    heldout: fedjax.FederatedData,
    test: fedjax.FederatedData,
    *,
    vocabulary_size: int,
    unknown_id: int | None = None,
) -> DataInMemory:
    """Read FedJAX's data into memory as ours.

    Args:
      train: clients with the features `x` and `y`, int [examples, length], y being x one token later.
      heldout: others to select by.
      test: others to report.
      vocabulary_size: ids that there are, the special ones included.
      unknown_id: the highest of FedJAX's ids, which words that are not in the vocabulary have, as FedJAX's tokenizers
        number; it becomes our id 3, and words move up by one. Ids stay as they are where None.

    Raises:
      DataError: a client has no such features.
    """
    splits = (
        {name.decode(): _rows(name, client.all_examples(), unknown_id) for name, client in found.clients()}
        for found in (train, heldout, test)
    )
    clients, of_heldout, of_test = splits
    return DataInMemory.from_rows(clients, vocabulary_size, heldout=of_heldout, test=of_test)


def _rows(client_id: bytes, examples: Mapping[str, np.ndarray], unknown_id: int | None) -> np.ndarray:
    inputs, targets = examples.get("x"), examples.get("y")
    if inputs is None or targets is None or inputs.shape != targets.shape or _is_other(inputs, targets):
        raise DataError(
            f"client {client_id!r}: found the features {', '.join(sorted(examples))}, expected x and y, int "
            "[examples, length] each, with y the tokens of x one place earlier; preprocess with a tokenizer of FedJAX's"
        )
    rows = np.concatenate([inputs[:, :1], targets], axis=1).astype(np.int32)
    if unknown_id is None:
        return rows
    return np.where(rows == unknown_id, OOV_ID, np.where(rows >= OOV_ID, rows + 1, rows)).astype(np.int32)


def _is_other(inputs: np.ndarray, targets: np.ndarray) -> bool:
    """Say whether anything is read that was not predicted one place before; FedJAX does not read EOS."""
    read = inputs[:, 1:]
    return bool(((read != targets[:, :-1]) & (read != PAD_ID)).any())


class PlannedClient:
    """A client for FedJAX's algorithms that gives the very batches that our clients train on in a round.

    FedJAX's own `shuffle_repeat_batch` draws others, and fills the last one up with examples of one epoch more.
    """

    def __init__(self, sequences: np.ndarray, training: LocalTraining, plan: RoundPlan, client: int) -> None:
        self._sequences, self._training, self._plan, self._client = sequences, training, plan, client

    def __len__(self) -> int:
        return int(self._training.count_examples(len(self._sequences)))

    def shuffle_repeat_batch(self, hparams: Any = None, **overridden: Any) -> list[dict[str, np.ndarray]]:
        """List the batches; how many and of which size, is said by our settings, not by FedJAX's."""
        steps = batch_rows(len(self._sequences), self._training, self._plan.shuffling(self._client))
        gathered = (gather_batch(self._sequences, rows) for rows in steps)
        return [{**_inputs_and_targets(tokens), EXAMPLE_MASK_KEY: weight > 0} for tokens, weight in gathered]


def planned_cohort(
    split: Split, length: int, training: LocalTraining, plan: RoundPlan
) -> list[tuple[bytes, PlannedClient, Params]]:
    """Make of a round's plan the cohort that `apply` of a FedJAX algorithm takes."""
    names, keys = split.client_ids, jax.random.split(jax.random.PRNGKey(plan.round_number), len(plan.clients))
    return [
        (names[client].encode(), PlannedClient(split.sequences(client, length), training, plan, client), key)
        for client, key in zip(map(int, plan.clients), keys, strict=True)
    ]

"""Whose text the clients of a fleet have: of a data set's training clients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedlm.clients.fleet.population import Population
from fedlm.fedlm_client.text.text_examples import ExampleCut
from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE

_Read = Callable[[int], list[Any]]
"""From a person's number to the person's examples."""


class _Texts:
    """What one virtual client has; never changes."""

    def __init__(self, read: _Read, person: int, people: int, wanted: int | None):
        self._read, self._person, self._people, self._wanted = read, person, people, wanted

    def version(self) -> tuple[int, int]:
        return (0, 0)

    def examples(self, cut: ExampleCut) -> Any:
        found = list(self._read(self._person % self._people))  # which the import has cut
        if self._wanted is None:
            return found
        # Where a person has too few, the next ones lend theirs, and the first again after the last.
        for lender in range(self._person + 1, self._person + self._people):
            if len(found) >= self._wanted:
                break
            found += self._read(lender % self._people)
        whole = -(-self._wanted // len(found)) if found else 0
        return (found * whole)[: self._wanted]


def texts_of(data: Path, population: Population) -> tuple[Callable[[int], Any], Any]:
    """Read whose text there is; returns from a client's number to its text, and how its tokens are made. Raises
    UserError where a fleet cannot have it."""
    from fedlm.simulations.data.federated_data import refuse_completions
    from fedlm.simulations.data.store.token_store import TokenStore, refuse_item_sequences
    from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

    store = TokenStore.open(data)
    refuse_completions(store, "a fleet")
    refuse_item_sequences(store, "a fleet")
    if (data / BUDGET_FILE).exists():
        raise ConfigurationError(
            f"{data}: has a privacy budget, from which a server that others connect to reserves nothing; give another "
            "data set"
        )
    split = store.split("train")
    people = split.num_clients
    if not people:
        raise DataError(f"{data}: has no training client; give a data set that has some")

    def read(person: int) -> list[Any]:
        examples = split.client(person)
        return [examples.example(index) for index in range(examples.num_examples)]

    def read_vocabulary(content: bytes) -> Any:
        if Tokenizer(json.loads(content)).fingerprint != store.fingerprint:
            raise ConfigurationError(
                f"{data}: has another tokenizer than the server; give the data set whose tokenizer the server was given"
            )
        return lambda examples: examples

    return lambda number: _Texts(read, number, people, population.examples_of(number)), read_vocabulary

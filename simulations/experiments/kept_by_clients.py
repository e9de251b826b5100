"""What the clients of a simulated run keep to themselves: where it lies, and how the model scores with it."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from fedlm.fl_core.client_algorithms.interface import Broadcast, kept_by_client
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.rounds.scores import example_sums
from fedlm.fl_core.rounds.server_optimizers import ServerState
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.models.base import Batch, Params
from fedlm.models.losses import ExampleSums
from fedlm.simulations.engine.client_states import CLIENTS_FILE, ClientStates
from fedlm.simulations.evaluation.personal_scores import NEW_PEOPLE, People, people_of, personal_scores
from fedlm.simulations.experiments.preparation import PreparedExperiment


class KeptByClients:
    """What clients keep in a run whose clients may keep something.

    Attributes:
      states: of clients; None where they keep nothing.
    """

    def __init__(self, prepared: PreparedExperiment, folder: RunFolder, rounds: int, params: Params):
        """Open it for a run that goes on after so many rounds. Raises UserError where it does not belong to the run."""
        self._prepared, self._people = prepared, dict[str, People]()
        self.states: ClientStates | None = None
        if not jax.tree_util.tree_leaves(kept_by_client(prepared.training.work.training.algorithm, params)):
            return
        if jax.process_count() > 1:
            raise ConfigurationError("clients keep something to themselves, which one process alone can simulate")
        oldest = lambda: min(folder.checkpoint_rounds(), default=0)  # noqa: E731
        self.states = folder.closing(ClientStates(folder.directory / CLIENTS_FILE, rounds, oldest))

    def scores(self, split: str, server: ServerState, whole: Callable[[Params], Params]) -> dict[str, Any]:
        """Score the people of a split who took part, each with what they kept.

        Args:
          split: heldout or test.
          server: the newest state.
          whole: makes parameters of the whole model of those that are trained.

        Returns:
          Numbers by name; none with privacy, since no noise hides what people keep.
        """
        prepared, states = self._prepared, self.states
        if states is None or prepared.privacy is not None:
            return {}
        training, (data, most) = prepared.training, prepared.scoring.of(split)
        if split not in self._people:
            self._people[split] = people_of(split, data, training.clients.client_ids, most)
        algorithm, sent = training.work.training.algorithm, Broadcast(server.params, server.algorithm)
        first = algorithm.init_client(server.params)

        def score(client: int, batches: Iterable[Batch]) -> ExampleSums | None:
            if not states.has(client):
                return None
            kept = jax.tree_util.tree_map(lambda leaf: leaf[0], states.read(np.array([client]), first))
            return example_sums(prepared.model, whole(algorithm.begin(sent, kept).params), batches)

        return personal_scores(self._people[split], training.length, score)

    def summary(self, server: ServerState, whole: Callable[[Params], Params]) -> dict[str, Any]:
        """Make what the summary says of it."""
        return {} if self.states is None else {"scores_of": NEW_PEOPLE} | self.scores("test", server, whole)

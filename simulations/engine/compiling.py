"""Compiling what a first round needs on other threads, while the run's first state is made on its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import jax

from fedlm.fl_core.client_algorithms.interface import Broadcast, kept_by_client, sent_by_client
from fedlm.fl_core.processes import on_all_devices
from fedlm.fl_core.rounds.round_loop import FederatedOptimization, compile_step
from fedlm.fl_core.rounds.server_optimizers import ServerState
from fedlm.models.precision import Precision, precision_scope
from fedlm.simulations.engine.cohort_engine import CohortEngine, placed


def begin_compiling(
    engine: CohortEngine,
    optimization: FederatedOptimization,
    first_state: Callable[[], ServerState],
    *,
    clip_norm: float | None,
    precision: Precision,
) -> Callable[[], None]:
    """Begin to compile a round that is not private, from the shapes of its arrays alone.

    Several processes compile nothing ahead: each would have to begin its programs in the same order. What fails here
    fails again where it is needed, and is told there.

    Args:
      engine: of the cohorts.
      optimization: with the server's step.
      first_state: makes the server's state, only to see its shapes.
      clip_norm: that updates are scaled down to.
      precision: in which all of it computes; a thread knows nothing of the scope that it was begun in.

    Returns:
      What waits until all is done. A program that is needed before is compiled twice.
    """
    if jax.process_count() > 1:
        return lambda: None

    def compile_cohort(first: ServerState) -> None:
        if not jax.tree_util.tree_leaves(kept_by_client(optimization.algorithm, first.params)):
            engine.compile(Broadcast(first.params, first.algorithm), clip_norm)

    def compile_server(first: ServerState) -> None:
        mean = sent_by_client(optimization.algorithm, first.params)
        compile_step(optimization, placed(first, on_all_devices()), placed(mean, engine.everywhere))

    def work(compile_part: Callable[[ServerState], None]) -> None:
        with precision_scope(precision):
            compile_part(jax.eval_shape(first_state))

    threads = ThreadPoolExecutor(2, "compile")
    begun = [threads.submit(work, part) for part in (compile_cohort, compile_server)]
    threads.shutdown(wait=False)

    def wait_for_all() -> None:
        wait(begun)

    return wait_for_all

"""Contestant: Flower's simulation engine on Ray, with a PyTorch client and Flower's own federated averaging.

One simulation lasts as long as this program: its server app waits for requests, so that Ray is started once.

Usage: python -m benchmarks.simulation.peers.flower_round TASK [ACTORS]
"""

import logging
import os
import sys
from typing import TextIO

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.simulation.peers.flower_client import client_app
from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task
from benchmarks.simulation.peers.torch_models import create, evaluation_loss


class FlowerRound:
    """Flower's server side of a round."""

    variants = ("flower",)
    packages = ("flwr", "ray", "torch", "numpy")

    def __init__(self, task: Task, grid: Grid, configuration: str):
        self._grid, self.configuration = grid, configuration
        self._module = create(task.settings.model, task.params)
        self._evaluation, self._steps = task.evaluation, task.steps
        self._start = ArrayRecord(self._module.state_dict())
        clients = len(task.clients)
        self._strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients, weighted_by_key="num-examples"
        )

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`."""
        seconds, result = timed(lambda: self._strategy.start(self._grid, self._start, num_rounds=1, timeout=None))
        self._module.load_state_dict(result.arrays.to_torch_state_dict())
        return RoundAnswer(seconds, self._steps, evaluation_loss(self._module, self._evaluation))


def main(path: str, actors: str = "") -> None:
    answers = private_standard_output()
    task = load_task(path)
    processes = int(actors or task.settings.cores)
    threads = max(1, task.settings.cores // processes)
    configuration = f"{processes} Ray actor(s), {threads} PyTorch thread(s) each"
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=_server_app(task, answers, configuration),
        client_app=client_app(path, threads),
        num_supernodes=len(task.clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": processes, "include_dashboard": False, "logging_level": logging.ERROR},
        },
    )


def _server_app(task: Task, answers: TextIO, configuration: str) -> ServerApp:
    app = ServerApp()

    @app.main()
    def serve_rounds(grid: Grid, context: Context) -> None:
        serve(FlowerRound(task, grid, configuration), sys.stdin, answers)

    return app


if __name__ == "__main__":
    main(*sys.argv[1:])

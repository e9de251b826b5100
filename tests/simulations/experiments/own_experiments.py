"""What experiments of a program of one's own have in common: a tiny model, settings, callbacks that watch or stop."""

import dataclasses

import fedlm
from tests.support.plain_runs import UNIGRAM as TINY

SETTINGS = {
    "model": TINY,
    "rounds": 4,
    "cohort_size": 5,
    "length": 6,
    "client_learning_rate": 0.5,
    "evaluate_every": 1,
    "checkpoint_every": 2,
}
PRIVATE = {
    "privacy": "gaussian",
    "noise_multiplier": 2.0,
    "update_clip_norm": 0.1,
    "cohort_sampler": "min_separation",
}


class Watch(fedlm.Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.settings, self.rounds, self.ended, self.failed = None, [], [], []

    def on_begin(self, settings):
        self.settings = dict(settings)

    def on_round(self, finished):
        self.rounds.append(finished)

    def on_end(self, summary):
        self.ended.append(summary["status"])

    def on_failure(self, error):
        self.failed.append(str(error))


class StopAt(fedlm.Callback):
    may_stop = True

    def __init__(self, round_number):
        self.round_number = round_number

    def on_round(self, finished):
        return finished.row["round"] == self.round_number


@dataclasses.dataclass(frozen=True)
class HalfSteps(fedlm.ClientAlgorithm):
    """Local SGD of half the rate."""

    def step(self, server, local, gradient, learning_rate):
        return local._replace(params=gradient.descend(local.params, learning_rate / 2))

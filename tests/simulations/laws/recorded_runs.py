"""Folders of federated runs, as `fedlm simulate` leaves them, without training anything."""

import json
from pathlib import Path

from fedlm.fl_core.composed_settings import compose, settings_as_json
from fedlm.simulations.experiments.configuration import Experiment

SETTINGS = {
    **{"model": "transformer_1x32", "data": Path("store"), "rounds": 8, "cohort_size": 4, "length": 6},
    **{"cohort_sampler": "min_separation", "min_separation": 2, "update_clip_norm": 0.5},
}


def recorded_run(directory, noise=0.0, losses=None, summary=None, **changes):
    """Write the folder of a run; of so much noise, or of what `changes` say of privacy."""
    if noise:
        changes = {"privacy": "tree", "noise_multiplier": noise} | changes
    experiment = compose(Experiment, **SETTINGS | changes)
    losses = [5.0 - 0.25 * number for number in range(experiment.rounds)] if losses is None else losses
    said = {"status": "finished", "rounds": experiment.rounds, "parameters": 13_536, "noise_multiplier": noise or None}
    said |= {"training_data_sha256": "text", "vocabulary_sha256": "words", "experiment": settings_as_json(experiment)}
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text(json.dumps(said | (summary or {})))
    rows = [
        {"round": number, "train_loss": loss, "examples": 1 + number % 2}
        | ({"heldout_loss": 6.0} if number == len(losses) - 1 else {})
        for number, loss in enumerate(losses)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory

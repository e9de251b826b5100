"""`fedlm recommend`: items that the model of a run expects next."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options, set_up_devices
from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.json_text import json_text
from fedlm.fl_core.number_ranges import Count
from fedlm.fl_core.text_encodings import printable


@dataclass(frozen=True, kw_only=True)
class RecommendCommand:
    """Let the model of a run recommend items to users, by their histories: a line for each, best first, with tabs
    between the items.

    The run, federated or central, was trained on data of `fedlm data import recommendation`. Of a private run the
    newest released checkpoint is used, and its privacy statement is printed once. The statement is not about the
    histories that you give here, which the model only reads.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    user_history: tuple[str, ...] | None = None
    """Items that a user has met, in the order of time. Give none for an unknown user."""
    histories: Path | None = None
    """File of histories, one a line, items with spaces between. If it ends in .jsonl, the list `items` of each line,
    whose names may have spaces."""
    top: Count = 10
    """Items to recommend for each history."""
    keep_history: bool = False
    """Recommend items of the history, too."""
    data: Path | None = None
    """Folder of the run's data set, which has the names of the items, if it was moved."""
    json: bool = False
    """Print JSON Lines: first a line of the run and its privacy, then a line for each history. It has the items, best
    first, with the model's scores (logits)."""


def main(argv: list[str]) -> int:
    """Run `fedlm recommend`."""
    command = read_options(RecommendCommand, argv, "fedlm recommend")
    from fedlm.simulations.evaluation.recommendation.recommending import read_histories, recommend

    histories = [] if command.user_history is None else [list(command.user_history)]
    histories += read_histories(command.histories) if command.histories else []
    if not histories:
        raise ConfigurationError("there is no history; give --user-history ITEM ... or --histories FILE")
    set_up_devices(1)
    from fedlm.fl_core.runs.outcome import stated_privacy
    from fedlm.simulations.evaluation.trained_models import open_model

    trained = open_model(command.run, command.data)
    found = recommend(trained, histories, command.top, command.keep_history)
    privacy = stated_privacy(command.run)
    if command.json:
        print(json_text({"run": str(command.run), "privacy": privacy}))
        for history, items in zip(histories, found, strict=True):
            recommended = [{"item": item, "logit": logit} for item, logit in items]
            print(json_text({"history": history, "recommended": recommended}))
        return 0
    print(f"privacy: {privacy}", file=sys.stderr, flush=True)
    for items in found:
        print("\t".join(printable(item) for item, _ in items))
    return 0


COMMAND = Command(RecommendCommand, main)

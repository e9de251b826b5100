"""`fedlm data relevance`: count how often each token occurs in what training clips as a whole."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedlm.command_line.command import Command
from fedlm.command_line.options import read_options
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, Positive
from fedlm.fl_core.privacy.accounting.delta import Delta
from fedlm.simulations.data.relevance import Packing, count_relevance
from fedlm.simulations.data.store.token_store import TokenStore


@dataclass(frozen=True)
class RelevanceCommand:
    """Count how often each token occurs in the units that training clips, for models with re-attention.

    The counts, and every model that is trained with them, tell something of the people whose text was counted. So
    there are three kinds, and `fedlm pretrain` and `fedlm simulate` state which one they used. Counts with noise
    (--epsilon, --delta): the statement of a run composes what they spent with what the run spends. Counts in public
    text (--origin public). Counts without noise: a run with them is NOT PRIVATE. The noise of private counts is fresh
    each time, and a second count spends as much again: use one file in all runs.
    """

    directory: tyro.conf.Positional[Path]
    """Directory of the token store; its train split is counted."""
    out: Path
    """The file to write."""
    unit: Literal["example", "client"] = "example"
    """What is clipped as a whole. example: one sequence, as in `fedlm pretrain`. client: all text of a client, as in
    `fedlm simulate` and in `fedlm pretrain --unit user`. Items are always counted by client."""
    length: Count = 128
    """Tokens that a model reads in a sequence."""
    packing: Packing | None = None
    """packed: a client's texts are laid end to end and cut into sequences. none: each stored example is a sequence. If
    not given, as in `fedlm pretrain`: packed for texts, none for everything else."""
    epsilon: Positive | None = None
    """Count with (this, delta)-differential privacy for each client. Needs --packing none or --unit client, because one
    packed sequence may hold data of several clients."""
    delta: Delta | None = None
    """The delta of epsilon: far below one over the number of clients."""
    tokens_per_unit: Annotated[Count, OnlyWith("epsilon")] = 100
    """For a private count: how many distinct tokens of a unit count fully. If a unit has more, all count for less. The
    noise grows with the square root of this number."""
    origin: Literal["public"] | None = None
    """Say that the text is public: no guarantee has to protect anybody who wrote it. Every model's statement repeats
    this."""

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.delta is None):
            missing = "epsilon" if self.epsilon is None else "delta"
            raise ConfigurationError(
                f"{setting(missing)} is not given: a private count needs both an epsilon and a delta"
            )
        if self.epsilon is not None and self.origin is not None:
            raise ConfigurationError(
                f"{setting('epsilon')} is given for text that is said to be public; leave one of them out"
            )


def main(argv: list[str]) -> int:
    """Run `fedlm data relevance`."""
    command = read_options(RelevanceCommand, argv, "fedlm data relevance")
    if command.out.exists():
        raise ConfigurationError(
            f"{command.out}: exists already, and runs may have been trained with it; give another --out"
        )
    private = None
    if command.epsilon is not None and command.delta is not None:
        # Which imports dp-accounting, for a second or two.
        from fedlm.fl_core.privacy.promise.counts.relevance_spending import plan_relevance

        private = plan_relevance(command.epsilon, command.delta, command.tokens_per_unit)
    store = TokenStore.open(command.directory)
    found = count_relevance(
        store, command.unit, command.length, command.packing, private=private, public=command.origin == "public"
    )
    found.write(command.out)
    print(f"relevances of {len(found.values):,} tokens are in {command.out}: {found.origin.sentence()}")
    return 0


COMMAND = Command(RelevanceCommand, main)

"""Measuring what a run has memorised."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.number_ranges import Count, Range, Seed
from fedlm.fl_core.runs.files.checkpoints import parameters_digest
from fedlm.fl_core.runs.outcome import stated_privacy
from fedlm.models.decoding import decoder_of
from fedlm.models.precision import precision_scope
from fedlm.simulations.data.store.token_store import refuse_item_sequences
from fedlm.simulations.evaluation.memorization.exposure import canary_exposures
from fedlm.simulations.evaluation.memorization.extraction import (
    APPROXIMATE,
    CONFIDENCE,
    extraction_rates,
    most_edits,
    rate_difference,
)
from fedlm.simulations.evaluation.memorization.greedy_decoding import greedy_suffixes
from fedlm.simulations.evaluation.memorization.sequences import Candidates, Lengths, choose_lengths
from fedlm.simulations.evaluation.trained_models import NOT_COVERED, TrainedModel, open_model
from fedlm.simulations.pretraining.batches.opening_units import open_units
from fedlm.simulations.pretraining.batches.privacy_units import Units
from fedlm.simulations.pretraining.inserted_canaries import canaries_of

BASELINE = "heldout"
"""The split whose sequences the model has not seen."""

Observer = Callable[[int, int], None]
"""Called with how many continuations are decoded, and how many there are in all."""


@dataclass(frozen=True, kw_only=True)
class MemorizationSettings:
    """What to measure."""

    split: Literal["train", "heldout", "test"] = "train"
    """Whose sequences the model is asked to continue."""
    prefix: tuple[Count, ...] = ()
    """Tokens that the model is shown, BOS among them. Several values are measured one after another, all on sequences
    that are long enough for the largest. If not given, 50, or as many as enough sequences allow."""
    suffix: Count | None = None
    """Tokens that the model continues with. If not given, 50, or as many as enough sequences allow."""
    examples: Count = 1000
    """Most sequences of each split, drawn at random among those that are long enough."""
    references: Annotated[int, Range(least=2, most=1 << 30)] = 2000
    """Random sequences among which canaries are ranked, if the run was trained on canaries."""
    seed: Seed = 0
    """Chooses the sequences."""

    def __post_init__(self) -> None:
        check_value_types(self)


def measure_memorization(
    run: Path,
    data: Path | None,
    *,
    cache: Path | None,
    settings: MemorizationSettings,
    observe: Observer = lambda done, total: None,
) -> dict[str, Any]:
    """Measure what the model of a run of `fedlm simulate` or `fedlm pretrain` can be made to repeat.

    Sequences are cut, and packed, as the run cut them. The tokens of the data are kept in `cache`, where None in the
    folder `cache` of the data (see `open_stream`); `data` is as for `open_model`. Returns JSON-able facts, extraction
    rates and exposures. Raises UserError where the run, the data or the settings do not fit.
    """
    trained = open_model(run, data)
    decoder_of(trained.model)  # which refuses models that do not continue text
    refuse_item_sequences(trained.store, "a measurement of memorisation")
    cache = cache or trained.store.path / "cache"
    candidates = Candidates(_units(trained, settings.split, cache), settings.seed)
    lengths = choose_lengths(
        candidates.counts,
        trained.settings["length"],
        prefixes=settings.prefix,
        suffix=settings.suffix,
        examples=settings.examples,
    )
    splits: dict[str, Candidates] = {settings.split: candidates}
    if settings.split != BASELINE and trained.store.split(BASELINE).header.examples:
        splits[BASELINE] = Candidates(_units(trained, BASELINE, cache), settings.seed)
    sequences = {name: found.take(lengths.total, settings.examples) for name, found in splits.items()}
    canaries = canaries_of(trained.settings, trained.store.vocabulary_size, trained.store.special_tokens)
    with precision_scope(trained.precision):
        extraction = _measure_extraction(trained, sequences, lengths, observe)
        exposures = canaries and canary_exposures(trained.model, trained.params, canaries, settings.references)
    return {
        "run": str(run),
        "command": trained.command,
        "model": trained.settings["model"],
        "steps": trained.steps,
        "parameters_sha256": parameters_digest(trained.params),
        "privacy": stated_privacy(run),
        "privacy_of_these_numbers": NOT_COVERED,
        "split": settings.split,
        "sequences": {
            name: {
                "seen": len(found.counts),
                "long_enough": int((found.counts >= lengths.total).sum()),
                "tested": len(sequences[name]),
            }
            for name, found in splits.items()
        },
        "suffix": lengths.suffix,
        "approximate_within": APPROXIMATE,
        "confidence": CONFIDENCE,
        "extraction": extraction,
        "canaries": exposures,
        "seed": settings.seed,
    }


def _units(trained: TrainedModel, split: str, cache: Path) -> Units:
    settings, names = trained.settings, ("unit", "packing", "sequences_per_unit", "seed")
    as_examples = {"unit": "example", "packing": "none", "sequences_per_unit": 1, "seed": 0}
    cut = as_examples if trained.command == "simulate" else {name: settings[name] for name in names}
    return open_units(trained.store, split, settings["length"], cache=cache, **cut)


def _measure_extraction(
    trained: TrainedModel, sequences: dict[str, NDArray[np.int32]], lengths: Lengths, observe: Observer
) -> list[dict[str, Any]]:
    """Measure each prefix on each split, the one asked for first."""
    total = len(lengths.prefixes) * sum(map(len, sequences.values()))
    before, rows = 0, []
    for prefix in lengths.prefixes:
        row: dict[str, Any] = {"prefix": prefix}
        for name, tokens in sequences.items():
            if not len(tokens):
                continue
            parted = tokens[:, : prefix + lengths.suffix]

            def advance(done: int, before: int = before) -> None:
                observe(before + done, total)

            edits = most_edits(lengths.suffix)
            found = greedy_suffixes(trained.model, trained.params, parted, prefix, most_edits=edits, observe=advance)
            before += len(tokens)
            row[name] = extraction_rates(found, parted[:, prefix:])
        rows.append(row | {"beyond_heldout": _beyond_heldout(row)})
    return rows


def _beyond_heldout(row: dict[str, Any]) -> dict[str, Any] | None:
    measured = [rates for name, rates in row.items() if name != "prefix"]
    if len(measured) < 2:
        return None
    one, heldout = measured
    return {kind: rate_difference(one[kind], heldout[kind]) for kind in one}

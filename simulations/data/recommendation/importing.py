"""From interactions to a token store of items: one sequence a user, in the order of time.

1. *read*: worker processes read the files, as an import of text does (`fedlm.simulations.data.import_stages`).
2. *filter*: users and items with few interactions are left out, or the items that a catalogue has not.
3. *write*: of each user the last items are held out, and all before them are for training.

The items are the words of the store's vocabulary. Memory holds four bytes an interaction, and the names of users and
items.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.origins.private_words import contribution, noisy_words
from fedlm.fl_core.privacy.origins.vocabulary_origin import (
    TOKENIZER_FILE,
    PrivateVocabulary,
    origin_of_import,
    tokenizer_file,
)
from fedlm.fl_core.worker_processes import WorkerPool, cpu_cores
from fedlm.models.special_tokens import OOV_ID, SPECIAL_TOKENS
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.grouping import NUM_GROUPS, RunSummary, read_clients
from fedlm.simulations.data.import_stages import (
    describe_source_files,
    import_workspace,
    jsonable,
    read_source,
    refuse_nothing,
    runs_in,
    skipped_in,
)
from fedlm.simulations.data.importing import ImportSummary
from fedlm.simulations.data.recommendation.filtering import filter_by_count, has_enough
from fedlm.simulations.data.recommendation.settings import RecommendationSettings
from fedlm.simulations.data.sources.base import Progress
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.splits import split_of
from fedlm.simulations.data.store.format import read_header
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.given_vocabulary import given_origin
from fedlm.simulations.data.vocabulary.item_level import item_tokenizer, read_catalogue
from fedlm.simulations.data.vocabulary.private_vocabulary import plan_of
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

RECOMMENDATION = "recommendation"
"""What such an import is called, and the source in a store's header."""
_AT_ONCE = 500_000
"""Interactions whose names are in memory at once, about."""
_SHOWN = 1000
"""Users from one report of progress to the next."""


class _Interactions(NamedTuple):
    """All interactions, user after user, each user's in the order of time."""

    user_names: list[str]  # in the order of a store
    item_names: list[str]
    users: NDArray[np.int32]  # [interactions], numbers of the names
    items: NDArray[np.int32]  # [interactions]


def import_recommendation(
    source: Interactions,
    out: Path | str,
    settings: RecommendationSettings | None = None,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    progress: Progress = lambda phase, done, total, unit: None,
) -> ImportSummary:
    """Import interactions into a token store of items, or the rest of it where the same import was interrupted.

    Without a number of workers there is one for each CPU core. Raises DataError where the source cannot be read, a
    worker was killed, too little is left for a store, or `out` may not be written; ConfigurationError where another
    process imports into `out`.
    """
    settings = settings or RecommendationSettings()
    if workers is not None and workers < 1:
        raise ConfigurationError(f"{setting('workers')} is {workers}, but must be at least 1")
    out = Path(os.path.abspath(out))
    StoreWriter.check(out, overwrite)
    given = None if settings.catalogue is None else _given_catalogue(settings.catalogue)
    private = plan_of(settings)
    origin = origin_of_import(private)
    if given is not None and settings.catalogue is not None:
        origin = given_origin(settings.catalogue, given.fingerprint, settings.vocabulary_origin)
    plan = {
        **describe_source_files(RECOMMENDATION, source),
        "settings": jsonable(settings),
        "vocabulary": given.fingerprint if given else None,
    }
    with import_workspace(out, json.dumps(plan, sort_keys=True)) as workspace:
        with WorkerPool(workers or len(cpu_cores())) as pool:
            summaries = read_source(source, workspace, pool, progress)
        skipped = skipped_in(summaries)
        refuse_nothing(source, summaries, skipped, "interaction")
        found = _load(runs_in(workspace), summaries)
        if given is None and private is not None:
            given = _private_catalogue(found, private, workspace)
        tokenizer, tokens, kept = _filtered(found, settings, given, skipped)
        parameters = {**jsonable(settings), **jsonable(source), "filter": settings.filtered, "splits": _split(settings)}
        with StoreWriter(
            out,
            RECOMMENDATION,
            tokenizer,
            parameters=parameters,
            overwrite=overwrite,
            vocabulary_origin=origin,
            item_sequences=True,
        ) as writer:
            _write(writer, found.user_names, found.users[kept], tokens[kept], settings=settings, progress=progress)
            writer.record_skipped(skipped)
    return ImportSummary(out, read_header(out))


def _given_catalogue(path: Path) -> Tokenizer:
    path = tokenizer_file(path)
    return Tokenizer.load(path) if path.suffix == ".json" else item_tokenizer(read_catalogue(path))


def _load(runs: Sequence[Path], summaries: Sequence[RunSummary]) -> _Interactions:
    """Number users and items."""
    total = sum(summary.texts for summary in summaries)
    step = max(1, min(NUM_GROUPS, NUM_GROUPS * _AT_ONCE // max(total, 1)))
    user_names: list[str] = []
    numbers: dict[str, int] = {}
    lengths: list[int] = []
    items: list[NDArray[np.int32]] = []
    for first in range(0, NUM_GROUPS, step):
        for client in read_clients(runs, range(first, min(first + step, NUM_GROUPS))):
            names = [name for some in client.texts for name in some.sentences]
            user_names.append(client.client_id)
            lengths.append(len(names))
            items.append(np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32))
    users = np.repeat(np.arange(len(user_names), dtype=np.int32), lengths)
    return _Interactions(user_names, list(numbers), users, np.concatenate(items))


def _private_catalogue(found: _Interactions, plan: PrivateVocabulary, workspace: Path) -> Tokenizer:
    """Choose items by noised counts of users; what an interrupted import has chosen is kept."""
    path = workspace / TOKENIZER_FILE
    if path.exists():
        return Tokenizer.load(path)
    counts = Counter[str]()
    for user, items in _sequences(found.users, found.items):
        words = Counter(found.item_names[item] for item in items.tolist())
        counts.update(contribution(found.user_names[user], words, plan.words_per_client))
    kept = noisy_words(counts, plan)
    ranked = [item for item in sorted(kept, key=lambda item: (-kept[item], item)) if item not in SPECIAL_TOKENS]
    if not ranked:
        raise DataError(
            f"with {setting('vocabulary_epsilon')} {plan.epsilon:g} no item has enough users to be chosen: some "
            f"{plan.threshold * plan.words_per_client**0.5:,.0f} of {plan.words_per_client} items each. Give a larger "
            f"{setting('vocabulary_epsilon')}, fewer {setting('vocabulary_words_per_client')}, or a public "
            f"{setting('catalogue')}."
        )
    tokenizer = item_tokenizer(ranked)
    tokenizer.save(path)
    return tokenizer


def _filtered(
    found: _Interactions, settings: RecommendationSettings, given: Tokenizer | None, skipped: SkippedCounts
) -> tuple[Tokenizer, NDArray[np.int32], NDArray[np.bool_]]:
    """Choose what is left. Returns the catalogue as a tokenizer, the token of each interaction's item, int32
    [interactions], and which interactions are kept, bool [interactions]."""
    users, items, least = found.users, found.items, settings.min_interactions
    named = np.array([name not in SPECIAL_TOKENS for name in found.item_names])[items]
    if given is None and settings.filtered != "users":
        kept = named.copy()
        kept[named] = filter_by_count(users[named], items[named], least, settings.filtered == "iterated")
    elif given is None:
        kept = named & has_enough(users, named, least)
    else:
        tokens = _tokens(given, found.item_names)[items]
        known = tokens != OOV_ID
        if not known.all():
            first = int(np.argmin(known))
            place = f"item {found.item_names[items[first]]!r} of user {found.user_names[users[first]]!r}"
            skipped.add("interaction with an item that the catalogue has not", int((~known).sum()), place)
        kept = known & has_enough(users, known, least)
    _count_left_out("user", users, kept, settings=settings, names=found.user_names, skipped=skipped)
    if given is None:
        _count_left_out("item", items, kept, settings=settings, names=found.item_names, skipped=skipped)
        counts = np.bincount(items[kept], minlength=len(found.item_names))
        left = sorted(np.flatnonzero(counts).tolist(), key=lambda item: (-counts[item], found.item_names[item]))
        if not left:
            raise DataError(
                f"no user and no item has {least} interactions ({settings.filtered}), so nothing is left of "
                f"{len(users):,}. Give a smaller {setting('min_interactions')}."
            )
        given = item_tokenizer([found.item_names[item] for item in left])
        tokens = _tokens(given, found.item_names)[items]
    return given, tokens, kept


def _tokens(tokenizer: Tokenizer, names: Sequence[str]) -> NDArray[np.int32]:
    """Return the token of each item, int32 [items], `OOV_ID` where the catalogue has it not."""
    return np.array([ids[0] if len(ids) == 1 else OOV_ID for ids in tokenizer.encode_batch(names)], np.int32)


def _count_left_out(
    noun: str,
    numbers: NDArray[np.int32],
    kept: NDArray[np.bool_],
    *,
    settings: RecommendationSettings,
    names: Sequence[str],
    skipped: SkippedCounts,
) -> None:
    """Count users or items of whom nothing is left."""
    least = settings.min_interactions
    gone = np.bincount(numbers[kept], minlength=len(names)) == 0
    few = gone & (np.bincount(numbers, minlength=len(names)) < least)
    for reason, these in (
        (f"{noun} with fewer than {least} interactions", few),
        (f"{noun} with fewer than {least} interactions after others were left out", gone & ~few),
    ):
        if these.any():
            skipped.add(reason, int(these.sum()), f"{noun} {names[int(np.argmax(these))]!r}")


def _split(settings: RecommendationSettings) -> str:
    """Say in words what is held out."""
    if settings.validation_item:
        return "leave one out: of each user with three items or more the last for test, the one before for heldout"
    return (
        "leave one out, without a validation item: of each user with two items or more the last, of a tenth of the "
        "users for heldout, of the others for test"
    )


def _write(
    writer: StoreWriter,
    user_names: Sequence[str],
    users: NDArray[np.int32],
    tokens: NDArray[np.int32],
    *,
    settings: RecommendationSettings,
    progress: Progress,
) -> None:
    """Write the users' sequences, each without the items that are held out into train, and with them where they are."""
    scored, total = False, len(np.unique(users))
    for done, (user, sequence) in enumerate(_sequences(users, tokens), start=1):
        name = user_names[user]
        ends = {split_of(name, settings.seed).replace("train", "test"): len(sequence)}
        if settings.validation_item:
            ends = {"heldout": len(sequence) - 1, "test": len(sequence)}
        before = min(ends.values()) - 1
        if before < 1:  # which is too little to hold something out
            writer.add("train", name, [sequence])
        else:
            writer.add("train", name, [sequence[:before]])
            for split, end in ends.items():
                writer.add(split, name, [sequence[:end]], [end - 1])
            scored = True
        if done % _SHOWN == 0 or done == total:
            progress("write", done, total, "users")
    if not scored:
        raise DataError(
            f"no user has {3 if settings.validation_item else 2} items, so none can be held out. Give more "
            f"interactions, a catalogue with more of their items, or {setting('validation_item', False)}."
        )


def _sequences(users: NDArray[np.int32], values: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield each user's number and values, of interactions that lie user after user."""
    firsts = np.flatnonzero(np.diff(users, prepend=-1))
    for first, last in zip(firsts.tolist(), [*firsts[1:].tolist(), len(users)], strict=True):
        yield int(users[first]), values[first:last]

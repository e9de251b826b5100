"""What a run's model recommends after histories that are given."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.text_encodings import utf8_text
from fedlm.models.precision import precision_scope
from fedlm.models.special_tokens import OOV_ID, PAD_ID
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.evaluation.recommendation.ranking import best_items, model_scorer, padded_rows, rows_at_once
from fedlm.simulations.evaluation.trained_models import TrainedModel


def recommend(
    run: TrainedModel, histories: Sequence[Sequence[str]], top: int, keep_history: bool = False
) -> list[list[tuple[str, float]]]:
    """Recommend items to users.

    Args:
      run: of data of recommendation.
      histories: the items that each user has met, in the order of time; an empty one is of a user of whom nothing is
        known. The model reads the last ones.
      top: items to recommend to each, or all where there are fewer.
      keep_history: whether items of the history may be recommended.

    Returns:
      For each history items with their logits, best first.

    Raises:
      ConfigurationError: the run's data is none of recommendation, or `top` is below 1.
      DataError: an item is not in the catalogue.
    """
    if not run.store.item_sequences:
        raise ConfigurationError(
            f"{run.store.path}: has no items to recommend; give a run on data of `fedlm data import recommendation`"
        )
    if top < 1:
        raise ConfigurationError(f"{setting('top')} is {top}, but must be at least 1")
    tokens = [_tokens(run.store, history, number) for number, history in enumerate(histories, start=1)]
    length, size = run.settings["length"], run.store.vocabulary_size
    rows, found = rows_at_once(size), []
    with precision_scope(run.precision):
        scorer = model_scorer(run.model, run.params)
        score = jax.jit(scorer.score)
        for first in range(0, len(tokens), rows):
            some = tokens[first : first + rows]
            read = [np.array([run.store.special_tokens.bos, *items[-(length - 1) :]][:length]) for items in some]
            counts = np.array([len(row) for row in read], np.int32)
            hidden = [np.array(() if keep_history else items, np.int64) for items in some]
            scores = score(scorer.params, padded_rows(read, length), counts)
            found += list(zip(*map(np.asarray, best_items(scores, padded_rows(hidden), top)), strict=True))
    return [_named(run.store, items, logits) for items, logits in found]


def read_histories(path: Path) -> list[list[str]]:
    """Read histories from a file: JSON Lines with a list `items` where it ends in .jsonl, else a history a line, its
    items with spaces between.

    Raises:
      DataError: the file cannot be read, or a line is not what it should be.
    """
    try:
        # Other characters that Python takes for ends of lines may be part of a name.
        lines = [line.removesuffix("\r") for line in utf8_text(path, path.read_bytes()).split("\n")]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}), expected histories, one a line in UTF-8.") from error
    if path.suffix != ".jsonl":
        return [line.split() for line in (lines[:-1] if lines[-1] == "" else lines)]
    return [_items_in(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _items_in(line: str, place: str) -> list[str]:
    try:
        items = json.loads(line)["items"]
        if not isinstance(items, list) or not all(map(_is_name, items)):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f'{place}: found {line[:60]!r}, expected an object with a list of items: {{"items": ["a", "b"]}}.'
        ) from error
    return [str(item) for item in items]


def _is_name(item: object) -> bool:
    return isinstance(item, str | int) and not isinstance(item, bool)


def _tokens(store: TokenStore, history: Sequence[str], number: int) -> list[int]:
    for item in history:
        try:
            item.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"history {number}: {item!r} is not Unicode text, which names of items are") from error
    tokens = [int(ids[0]) if len(ids) == 1 else OOV_ID for ids in store.tokenizer.encode_batch(history)]
    if OOV_ID in tokens:
        unknown = history[tokens.index(OOV_ID)]
        raise DataError(f"history {number}: the catalogue of {store.path} has no item {unknown!r}; leave it out")
    return tokens


def _named(store: TokenStore, items: Any, logits: Any) -> list[tuple[str, float]]:
    pairs = zip(items.tolist(), logits.tolist(), strict=True)
    return [(store.tokenizer.decode([item]), logit) for item, logit in pairs if item != PAD_ID]

"""From settings to the privacy units of a split."""

from pathlib import Path

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.pretraining.batches.privacy_units import Packing, Unit, Units
from fedlm.simulations.pretraining.batches.token_stream import open_stream


def open_units(
    store: TokenStore,
    split: str,
    length: int,
    *,
    unit: Unit,
    packing: Packing,
    sequences_per_unit: int,
    seed: int,
    cache: Path,
    check: bool = False,
) -> Units:
    """Open the privacy units of a split.

    Args:
      length: tokens that a model reads in one sequence, at least 1.
      unit: `example`, one sequence each, or `user`, all that a client has, up to `sequences_per_unit` sequences.
      packing: `none` makes each stored example a sequence, cut or padded; of one of items the last are kept. `packed`
        lays examples end to end and cuts them into sequences without padding: all clients' for the unit `example`, each
        client's for `user`. Prompts with their completions, and items, cannot be packed.
      sequences_per_unit: K; 1 for the unit `example`.
      seed: chooses, with a user's name, the sequences of users who have more than K; not negative, of any size.
      cache: a folder for the tokens; see `open_stream`.
      check: whether to see that what is there is still what was written.

    Raises:
      ConfigurationError: a setting is out of range, or two contradict each other.
      DataError: the split does not exist, is empty or damaged, or the cache cannot be written.
    """
    for name, value, choices in (("unit", unit, ("example", "user")), ("packing", packing, ("none", "packed"))):
        if value not in choices:
            raise ConfigurationError(f"{setting(name)} is {value!r}, but must be one of {', '.join(choices)}")
    for name, number in (("length", length), ("sequences_per_unit", sequences_per_unit)):
        if number < 1:
            raise ConfigurationError(f"{setting(name)} is {number}, but must be at least 1")
    if seed < 0:
        raise ConfigurationError(f"{setting('seed')} is {seed}, but must not be negative")
    if unit == "example" and sequences_per_unit != 1:
        raise ConfigurationError(
            f"{setting('sequences_per_unit')} is {sequences_per_unit}, but must be 1 where the unit is an example. "
            f"Choose the unit user, or leave {setting('sequences_per_unit')} away"
        )
    if packing == "packed" and store.has_completions:
        raise ConfigurationError(
            f"{setting('packing')} is packed, but {store.path} has prompts and completions, each pair a sequence of "
            f"its own; leave {setting('packing')} out, or give none"
        )
    if packing == "packed" and store.item_sequences:
        raise ConfigurationError(
            f"{setting('packing')} is packed, but {store.path} has sequences of items, each of which is one by itself; "
            f"leave {setting('packing')} out, or give none"
        )
    stream = open_stream(store, split, cache, check)
    return Units(stream, split, length, unit, packing, sequences_per_unit, seed, store.without_users)

"""Made-up interactions, and stores of them, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedlm.simulations.data.recommendation.importing import import_recommendation
from fedlm.simulations.data.recommendation.settings import RecommendationSettings
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.store.token_store import TokenStore


def made_up_sequences(users: int = 40, items: int = 12, seed: int = 0) -> dict[str, list[str]]:
    """Each user meets 1 to 14 items, small numbers more often, some of them twice."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, items + 1)
    chances /= chances.sum()
    return {
        f"user{user}": [f"item{item}" for item in rng.choice(items, rng.integers(1, 15), p=chances)]
        for user in range(users)
    }


def write_pairs(path: Path, sequences: Mapping[str, Sequence[str]]) -> Path:
    """Write lines `user item`, users in turn."""
    longest = max(map(len, sequences.values()))
    lines = [
        f"{user} {items[place]}\n"
        for place in range(longest)
        for user, items in sequences.items()
        if place < len(items)
    ]
    path.write_text("".join(lines))
    return path


def import_sequences(folder: Path, sequences: Mapping[str, Sequence[str]], **settings: object) -> TokenStore:
    """Import sequences, of which nothing is left out unless settings say so."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Interactions((write_pairs(folder / "pairs.txt", sequences),), format="pairs")
    chosen = RecommendationSettings(**{"min_interactions": 1, **settings})  # type: ignore[arg-type]
    import_recommendation(source, folder / "store", chosen, workers=1)
    return TokenStore.open(folder / "store")


def read_sequences(store: TokenStore, split: str) -> dict[str, list[str]]:
    """Read the items of each user of a split, the held-out one among them."""
    found = store.split(split)
    return {
        found.client_id(user): [store.tokenizer.decode([token]) for token in found.client(user).example(0)]
        for user in range(found.num_clients)
    }

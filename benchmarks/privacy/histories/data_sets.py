"""Data sets of all kinds, imported once for all histories."""

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.privacy.histories.recorder import PUBLIC, at_risk
from fedlm.fl_core.privacy import private_words
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore

WORDS = ("the cat sat on a mat while some dog ran to one tree and no bird sang any song about old stone walls").split()
CROWDS = {"all": range(0, 18), "fewer": range(4, 18), "others": range(4, 22), "strangers": range(40, 58)}


class Stored(NamedTuple):
    """A data set that histories import."""

    path: Path
    family: str  # data sets of one family have one vocabulary
    crowd: str


class Stores:
    """Data sets of all kinds, imported once.

    Attributes:
      stores: by family and crowd.
      vocabulary: of families with a private vocabulary: its noise multiplier, and of whose text it was made.
    """

    def __init__(self, folder: Path):
        """Import them into a folder."""
        self.folder = folder
        self.stores: dict[tuple[str, str], Stored] = {}
        self.vocabulary: dict[str, tuple[float, frozenset[str]]] = {}
        self.people: dict[tuple[str, str], frozenset[str]] = {}
        self._opened: dict[tuple[str, str], TokenStore] = {}
        given = self._import("words", "strangers", ImportSettings(vocabulary_size=60)).path / "tokenizer.json"
        # Beside a copy nothing says whose text it was made of.
        alone = Path(shutil.copy(given, folder / "vocabulary.json"))
        for crowd in (*CROWDS, PUBLIC):
            self._import("given", crowd, ImportSettings(vocabulary=given))
            self._import("public", crowd, ImportSettings(vocabulary=alone, vocabulary_origin="public"))
        deviations: list[int] = []
        real = private_words.rounded_gaussian

        def noted(deviation: int, *others: Any) -> int:
            deviations.append(deviation)
            return real(deviation, *others)

        for family, settings in {
            "training": ImportSettings(vocabulary_size=60),
            "private": ImportSettings(vocabulary_size=120, vocabulary_epsilon=2.0, vocabulary_delta=1e-6),
        }.items():
            with patch.object(private_words, "rounded_gaussian", noted):
                first = self._import(family, "all", settings).path / "tokenizer.json"
            for crowd in (*CROWDS, PUBLIC):
                if crowd != "all":
                    self._import(family, crowd, ImportSettings(vocabulary=first))
        multiplier = max(deviations) / private_words.COUNT_NORM
        self.vocabulary["private"] = (multiplier * 1.0001, self.people["private", "all"])

    def _import(self, family: str, crowd: str, settings: ImportSettings) -> Stored:
        out = self.folder / f"{family}-{crowd}"
        if crowd == PUBLIC:
            names = [f"{PUBLIC} {number}" for number in range(18)]
        else:
            names = [f"client {number}" for number in CROWDS[crowd]]
        texts = []
        for name in names:
            rng = random.Random(name)
            sentences = [" ".join(rng.choices(WORDS, k=6)) for _ in range(rng.randint(1, 3))]
            texts.append(ClientText(name, sentences, "train"))
        texts += [ClientText(f"{split} client", ["the cat sat on a mat"], split) for split in ("heldout", "test")]
        import_text("made up", InMemoryText(texts), out, settings, workers=1)
        self.stores[family, crowd] = Stored(out, family, crowd)
        self._opened[family, crowd] = opened = TokenStore.open(out)
        self.people[family, crowd] = at_risk(opened.split("train").client_ids)
        return self.stores[family, crowd]

    def open(self, stored: Stored, path: Path) -> TokenStore:
        """Open a copy of a data set, without reading it again."""
        known = self._opened[stored.family, stored.crowd]
        copied = TokenStore(path, known.header, known.tokenizer)
        copied._splits = known._splits
        return copied

"""A made-up federated text whose entropy is known, so that a model's distance from the best possible one is.

A sentence has one topic, drawn from its client's mixture, and so many words. Its first word is one of the topic's own
opening words, and says which topic it is. Every other word is said in a state: one of some classes of words, and one of
some modes. The class says which words there are and the topic how likely each is; state and word say the next state. So
whoever reads from the beginning knows topic and state: the hidden Markov source is unifilar (Shannon 1948, section 7;
Crutchfield and Young 1989), and its entropy is a sum over states. Mode and topic do not show in the last word: a model
must remember both.

    python -m benchmarks.architectures.synthetic_text --out runs/synthetic
"""

import argparse
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.atomic_files import write_atomically
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.jsonl import JsonLines
from fedlm.simulations.data.store.token_store import TokenStore

ENTROPY_FILE = "entropy.json"
"""Beside the store: what `describe` says of the source."""
_SYLLABLES = tuple(consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou")


class Sentences(NamedTuple):
    """Sentences of some clients.

    Attributes:
      words: int [sentences, length], numbers of words.
      topics: int [sentences].
      clients: int [sentences].
    """

    words: NDArray[np.int64]
    topics: NDArray[np.int64]
    clients: NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """The source, all of which follows from these.

    Attributes:
      topics: number of topics.
      classes: classes of words.
      modes: of each class.
      class_words: words of a class; all words but the opening ones are in one class.
      opening_words: of a topic.
      length: words of a sentence.
      topic_strength: standard deviation of the logarithm of what a topic multiplies a word's probability by.
      concentration: of the Dirichlet distribution of clients' mixtures, all topics together: the smaller, the more
        clients differ.
      seed: of the source itself.
    """

    topics: int = 16
    classes: int = 12
    modes: int = 3
    class_words: int = 320
    opening_words: int = 15
    length: int = 20
    topic_strength: float = 1.5
    concentration: float = 4.0
    seed: int = 0

    @property
    def num_words(self) -> int:
        """Words that there are."""
        return self.topics * self.opening_words + self.classes * self.class_words

    @functools.cached_property
    def topic_probability(self) -> NDArray[np.float64]:
        """Of each topic over all clients, [topics]."""
        return _falling(self.topics, 0.5)

    @functools.cached_property
    def opening(self) -> NDArray[np.float64]:
        """Probabilities of a topic's opening words, [opening words]."""
        return _falling(self.opening_words, 1.0)

    @functools.cached_property
    def emission(self) -> NDArray[np.float64]:
        """Probabilities of words, [topics, classes, words of a class]."""
        rng = self._rng("emission")
        # As frequent as ranks by Zipf's law, in an order that topics change.
        logarithms = np.log(_falling(self.class_words, 1.0))
        boosts = self.topic_strength * rng.normal(size=(self.topics, self.classes, self.class_words))
        weights = np.exp(logarithms + boosts)
        return weights / weights.sum(axis=-1, keepdims=True)

    @functools.cached_property
    def next_state(self) -> NDArray[np.int64]:
        """The state after each word, [states, words of a class]; a state is `class * modes + mode`."""
        rng = self._rng("states")
        # Words go in groups, whose members lead to the same state.
        groups = rng.integers(4, size=(self.classes, self.class_words))
        after = rng.integers(self.classes, size=(self.classes * self.modes, 4))
        states = np.arange(self.classes * self.modes)
        classes, modes = states // self.modes, states % self.modes
        group = groups[classes]
        mode = (modes[:, None] + (group == 0)) % self.modes
        return np.take_along_axis(after, group, axis=1) * self.modes + mode

    @functools.cached_property
    def first_state(self) -> NDArray[np.int64]:
        """The state after each opening word, [topics, opening words]."""
        return self._rng("opening").integers(self.classes, size=(self.topics, self.opening_words)) * self.modes

    def _rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose.encode()])

    def entropy(self) -> float:
        """Compute the entropy of a sentence divided by its words, in nats: what no model's mean loss is below that does
        not know whose sentence it is."""
        topic_entropy = _entropy(self.topic_probability)
        per_class = _entropy(self.emission)
        total = topic_entropy + _entropy(self.opening)
        for topic, probability in enumerate(self.topic_probability):
            state = np.bincount(self.first_state[topic], self.opening, self.classes * self.modes)
            words = np.repeat(self.emission[topic], self.modes, axis=0)
            for _ in range(self.length - 1):
                total += probability * state @ np.repeat(per_class[topic], self.modes)
                flow = (state[:, None] * words).ravel()
                state = np.bincount(self.next_state.ravel(), flow, len(state))
        return float(total / self.length)

    def draw(self, clients: int, sentences: tuple[int, int], seed: int) -> Sentences:
        """Draw the text of so many clients, each with a number of sentences within bounds."""
        rng = np.random.default_rng([self.seed, seed])
        mixtures = rng.dirichlet(self.concentration * self.topic_probability, size=clients)
        # Numbers are spread evenly in their logarithm.
        numbers = np.exp(rng.uniform(*np.log(sentences), size=clients)).astype(int)
        owners = np.repeat(np.arange(clients), numbers)
        topics = _draw_rows(rng, np.cumsum(mixtures, axis=1)[owners])
        openers = _draw_rows(rng, np.broadcast_to(np.cumsum(self.opening), (len(owners), self.opening_words)))
        words = [topics * self.opening_words + openers]
        state, cumulated = self.first_state[topics, openers], np.cumsum(self.emission, axis=-1)
        for _ in range(self.length - 1):
            classes = state // self.modes
            within = _draw_rows(rng, cumulated[topics, classes])
            words.append(self.topics * self.opening_words + classes * self.class_words + within)
            state = self.next_state[state, within]
        return Sentences(np.stack(words, axis=1), topics, owners)

    def ideal_losses(self, words: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score sentences as one who knows the source does, and reads from the beginning: nats of each word.

        Args:
          words: int [sentences, length].

        Returns:
          float [sentences, length].
        """
        topics, openers = np.divmod(words[:, 0], self.opening_words)
        losses = [-np.log(self.topic_probability[topics] * self.opening[openers])]
        state = self.first_state[topics, openers]
        for word in words.T[1:]:
            classes, within = np.divmod(word - self.topics * self.opening_words, self.class_words)
            # What the state does not allow is impossible.
            possible = classes == state // self.modes
            losses.append(np.where(possible, -np.log(self.emission[topics, classes, within]), np.inf))
            state = self.next_state[state, within]
        return np.stack(losses, axis=1)

    def describe(self) -> dict[str, float]:
        """Give what models are measured by; JSON-able, nats a word."""
        return {"entropy": self.entropy(), "perplexity": float(np.exp(self.entropy())), "words": self.num_words}


def _falling(number: int, power: float) -> NDArray[np.float64]:
    weights = np.arange(1, number + 1) ** -power
    return weights / weights.sum()


def _entropy(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.sum(probabilities * np.log(probabilities), axis=-1)


def _draw_rows(rng: np.random.Generator, cumulated: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw a number by each row of cumulated probabilities, [rows, numbers]."""
    thresholds = rng.random(len(cumulated)) * cumulated[:, -1]
    return np.minimum((cumulated < thresholds[:, None]).sum(axis=1), cumulated.shape[1] - 1)


def spelled(number: int) -> str:
    """Spell a word's number with letters."""
    first, second = divmod(number, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second]


def _lines(sentences: Sentences) -> Iterator[str]:
    names = np.array([spelled(number) for number in range(int(sentences.words.max()) + 1)])
    for client, words in zip(sentences.clients, sentences.words, strict=True):
        yield json.dumps({"user": f"client {client:06d}", "text": " ".join(names[words])}) + "\n"


def write_store(out: Path, source: Source, clients: int, sentences: tuple[int, int], seed: int = 0) -> Path:
    """Write a token store of words, and what is known of the source beside it; returns the store's folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = out.with_name(f"{out.name}.jsonl")
    write_atomically(lines, "".join(_lines(source.draw(clients, sentences, seed))))
    settings = ImportSettings(tokenizer="words", vocabulary_size=source.num_words)
    import_text("jsonl", JsonLines((lines,), examples="texts"), out, settings, overwrite=True)
    lines.unlink()
    write_atomically(out / ENTROPY_FILE, json.dumps(source.describe() | {"length": source.length}) + "\n")
    return out


def known_entropy(store: Path) -> float | None:
    """Read the entropy of a store's text, in nats a word; None where it is not known."""
    path = store / ENTROPY_FILE
    return json.loads(path.read_text(encoding="utf-8"))["entropy"] if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/synthetic"), help="folder of the data set")
    parser.add_argument("--clients", type=int, default=2500)
    parser.add_argument("--sentences", type=int, nargs=2, default=(20, 200), help="of a client, at least and at most")
    arguments = parser.parse_args()
    source = Source()
    store = write_store(arguments.out, source, arguments.clients, tuple(arguments.sentences))
    train = TokenStore.open(store).split("train")
    print(
        f"{store}: {train.num_clients} clients to train on; {source.num_words} words; entropy "
        f"{source.entropy():.4f} nats a word, a perplexity of {np.exp(source.entropy()):.2f}"
    )


if __name__ == "__main__":
    main()

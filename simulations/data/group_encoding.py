"""What worker processes do with the clients of some groups in an import: count words, split, tokenize and write."""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fedlm_client.text.text_examples import with_tokens
from fedlm.fl_core.atomic_files import disk_errors, write_atomically
from fedlm.fl_core.privacy.origins.private_words import contribution
from fedlm.fl_core.privacy.origins.vocabulary_origin import TOKENIZER_FILE
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.grouping import GroupedClient, client_digest, read_clients
from fedlm.simulations.data.import_settings import ImportSettings
from fedlm.simulations.data.splits import SPLITS, SplitRule
from fedlm.simulations.data.store.format import split_file
from fedlm.simulations.data.store.split_writer import SplitWriter
from fedlm.simulations.data.vocabulary.private_vocabulary import counted_texts
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words

ENCODE_SENTENCES = 20_000
"""Sentences tokenized at once: enough to keep the tokenizer's threads busy."""
NOTHING_TO_COMPLETE = "prompt or completion without a token"
"""Why a pair is left out."""
ENCODE_CHARACTERS = 4 << 20
"""Characters tokenized at once, about: documents are longer than sentences, and their words are all in memory."""


class GroupedText(NamedTuple):
    """The text of all clients, and what is to be made of it; travels to worker processes."""

    runs: Sequence[Path]
    settings: ImportSettings
    rule: SplitRule
    words_are_separated: bool
    completions: bool = False  # whether sentences are prompts, which others complete


class EncodedGroups(NamedTuple):
    """What was written of some groups: a file a split, and what was left out."""

    files: dict[str, Path]
    skipped: SkippedCounts


def sampled_words(text: GroupedText, share: float, groups: range) -> Counter[str]:
    """Count the words of a share of the training clients, chosen by their ids."""
    sentences = (
        sentence
        for client in read_clients(text.runs, groups)
        if int.from_bytes(client_digest(client.client_id)[8:16]) < share * 2**64
        for some in client.texts
        if text.rule.split(client.client_id, some.split) == "train"
        for sentence in some.text
    )
    return count_words(sentences, text.settings, text.words_are_separated)


def count_contributions(text: GroupedText, groups: range) -> Counter[str]:
    """Add up what clients may add to the counts of a private vocabulary, each a function of its own text alone."""
    settings, total = text.settings, Counter[str]()
    for client in read_clients(text.runs, groups):
        texts = [(some.split, some.text) for some in client.texts]
        sentences = counted_texts(client.client_id, texts, settings.resplit, settings.seed)
        words = count_words(sentences, settings, text.words_are_separated)
        total.update(contribution(client.client_id, words, settings.vocabulary_words_per_client))
    return total


def encode_groups(text: GroupedText, workspace: Path, fingerprint: str, groups: range) -> EncodedGroups:
    """Tokenize and write the clients of some groups, where an interrupted import has not."""
    stem = f"groups-{groups.start:03d}"
    files = {split: workspace / f"{stem}-{split_file(split)}" for split in SPLITS}
    record = workspace / f"{stem}.json"
    skipped = SkippedCounts()
    if record.exists():
        skipped.merge(**json.loads(record.read_text(encoding="utf-8")))
        return EncodedGroups(files, skipped)
    tokenizer = _tokenizer(workspace / TOKENIZER_FILE, fingerprint)
    with disk_errors(record):
        writers = {
            split: SplitWriter(file, tokenizer.vocabulary_size, completions=text.completions)
            for split, file in files.items()
        }
        try:
            for split, client_id, examples in _encode(text, groups, tokenizer, skipped):
                prompts = [prompt for _, prompt in examples] if text.completions else None
                writers[split].add(client_id, [tokens for tokens, _ in examples], prompts)
            for writer in writers.values():
                writer.finish()
        finally:
            for writer in writers.values():
                writer.abandon()
        counts = {"counts": skipped.as_dict(), "first": skipped.first_places()}
        write_atomically(record, json.dumps(counts))
    return EncodedGroups(files, skipped)


@functools.lru_cache(maxsize=1)
def _tokenizer(path: Path, fingerprint: str) -> Tokenizer:
    # A worker keeps it for its next task, because it remembers words; the fingerprint tells it from another import's.
    return Tokenizer.load(path)


_Example = tuple[NDArray[np.int32], int]
"""Its tokens, and how many of them are its prompt."""


def _encode(
    text: GroupedText, groups: range, tokenizer: Tokenizer, skipped: SkippedCounts
) -> Iterator[tuple[str, str, list[_Example]]]:
    """Yield (split, client id, examples) of every client and split."""
    for chunk in _chunks(read_clients(text.runs, groups)):
        encoded = iter(tokenizer.encode_batch([s for client in chunk for some in client.texts for s in some.text]))
        for client in chunk:
            by_split: dict[str, list[_Example]] = {}
            for some in client.texts:
                sequences = [next(encoded) for _ in some.sentences]
                examples, what = [(sequence, 0) for sequence in with_tokens(sequences)], "sentence without a token"
                if some.completions is not None:
                    examples, what = _completed(sequences, [next(encoded) for _ in sequences]), NOTHING_TO_COMPLETE
                skipped.add(what, len(sequences) - len(examples), f"client {client.client_id!r}")
                if examples:
                    by_split.setdefault(text.rule.split(client.client_id, some.split), []).extend(examples)
            number = sum(map(len, by_split.values()))
            if not number:
                skipped.add("client without text", place=f"client {client.client_id!r}")
            elif number < text.settings.min_examples:
                reason = f"client with fewer than {text.settings.min_examples} examples"
                skipped.add(reason, place=f"client {client.client_id!r}")
            else:
                for split in sorted(by_split):
                    yield split, client.client_id, by_split[split]


def _completed(prompts: list[NDArray[np.int32]], completions: list[NDArray[np.int32]]) -> list[_Example]:
    """Put completions behind their prompts, where neither is empty."""
    pairs = zip(prompts, completions, strict=True)
    return [(np.concatenate(pair), len(pair[0])) for pair in pairs if all(map(len, pair))]


def _chunks(clients: Iterable[GroupedClient]) -> Iterator[list[GroupedClient]]:
    chunk: list[GroupedClient] = []
    sentences = characters = 0
    for client in clients:
        chunk.append(client)
        texts = [text for some in client.texts for text in some.text]
        sentences += len(texts)
        characters += sum(map(len, texts))
        if sentences >= ENCODE_SENTENCES or characters >= ENCODE_CHARACTERS:
            yield chunk
            chunk, sentences, characters = [], 0, 0
    if chunk:
        yield chunk

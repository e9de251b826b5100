"""From a source of text to a token store, in stages that an interrupted import need not do again.

1. *read*: worker processes read the source's parts and write each as a run (see `grouping`).
2. *train the tokenizer*: words are counted in a sample of the train split's clients, chosen by their ids, or with
   noise in all of them. Where a vocabulary is given, there is nothing to train.
3. *encode*: worker processes bring the clients of some groups together, split, tokenize and write them.
4. *write*: the encoded groups become one store, which then appears at its destination.

Everything unfinished lies in a hidden folder beside the destination. The same import started again goes on there; an
import of something else begins anew. The store is the same, byte for byte, with any number of workers and
interruptions, unless its vocabulary is a private one, which is another each time.
"""

import functools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlm.fedlm_client.text_examples import with_tokens
from fedlm.fl_core.atomic_files import disk_errors, write_atomically
from fedlm.fl_core.composed_settings import check_value_types
from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.number_ranges import Count, Seed
from fedlm.fl_core.privacy.origins.private_words import contribution
from fedlm.fl_core.privacy.origins.vocabulary_origin import (
    TOKENIZER_FILE,
    PrivateVocabulary,
    VocabularyOrigin,
    origin_of_import,
)
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.grouping import (
    NUM_GROUPS,
    GroupedClient,
    RunSummary,
    client_digest,
    read_clients,
)
from fedlm.simulations.data.import_stages import (
    describe_source_files,
    import_workspace,
    jsonable,
    left_out,
    name_of,
    read_source,
    refuse_nothing,
    runs_in,
    skipped_in,
)
from fedlm.simulations.data.sources.base import Progress, Source
from fedlm.simulations.data.splits import SPLITS, SplitRule
from fedlm.simulations.data.store.format import StoreHeader, read_header, split_file
from fedlm.simulations.data.store.writer import SplitWriter, StoreWriter
from fedlm.simulations.data.vocabulary.given_vocabulary import given_origin, given_tokenizer
from fedlm.simulations.data.vocabulary.private_vocabulary import (
    VocabularyPrivacySettings,
    counted_texts,
    plan_of,
    train_privately,
)
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings
from fedlm.simulations.worker_processes import WorkerPool, cpu_cores

ENCODE_BYTES = 16 << 20
"""Bytes of text that one task tokenizes."""
ENCODE_SENTENCES = 20_000
"""Sentences tokenized at once: enough to keep the tokenizer's threads busy."""
NOTHING_TO_COMPLETE = "prompt or completion without a token"
"""Why a pair is left out."""
ENCODE_CHARACTERS = 4 << 20
"""Characters tokenized at once, about: documents are longer than sentences, and their words are all in memory."""


@dataclass(frozen=True, kw_only=True)
class ImportSettings(VocabularyPrivacySettings, TokenizerSettings):
    """How text becomes a token store, whatever its source.

    Example:
      >>> ImportSettings(vocabulary_size=1000, min_examples=5).lowercase
      True
    """

    tokenizer_sentences: Count = 2_000_000
    """Train the tokenizer on about this many sentences at most, from some clients of the train split. A private
    vocabulary uses all of them."""
    min_examples: Count = 1
    """Leave out clients with fewer examples, all splits together (the published Stack Overflow has 100)."""
    resplit: bool = False
    """Split by user, 80/10/10, even if the source has splits of its own."""
    seed: Seed = 0
    """Seed of the split by user."""

    def __post_init__(self) -> None:
        check_value_types(self)
        super().__post_init__()
        if self.vocabulary is not None and self.vocabulary_epsilon is not None:
            raise ConfigurationError(
                f"{setting('vocabulary_epsilon')} makes a vocabulary of the text, and vocabulary gives one; leave out "
                "one of them"
            )
        if self.vocabulary is None and self.vocabulary_origin is not None:
            raise ConfigurationError(
                f"{setting('vocabulary_origin')} is {self.vocabulary_origin!r}, but no vocabulary is given; leave it "
                f"out, or give one with {setting('vocabulary')}"
            )


class ImportSummary(NamedTuple):
    """What an import made: the store's directory, and its header with the counts of splits and of skipped inputs."""

    path: Path
    header: StoreHeader


class _Import(NamedTuple):
    name: str
    source: Source
    settings: ImportSettings
    private: PrivateVocabulary | None  # how the vocabulary is made where it is private
    vocabulary_origin: VocabularyOrigin
    workspace: Path
    pool: WorkerPool
    progress: Progress


class _GroupedText(NamedTuple):
    """The text of all clients, and what is to be made of it; travels to worker processes."""

    runs: Sequence[Path]
    settings: ImportSettings
    rule: SplitRule
    words_are_separated: bool
    completions: bool = False  # whether sentences are prompts, which others complete


class _EncodedGroups(NamedTuple):
    files: dict[str, Path]
    skipped: SkippedCounts


@checked_arguments
def import_text(
    name: str,
    source: Source,
    out: StrPath,
    settings: ImportSettings | None = None,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    progress: Progress = lambda phase, done, total, unit: None,
) -> ImportSummary:
    """Import text into a token store, or the rest of it where the same import was interrupted.

    The source's name is kept in the store's header. Without a number of workers there is one for each CPU core. Raises
    DataError where the source cannot be read or has no text, a worker was killed, or `out` may not be written;
    ConfigurationError where another process imports into `out`.

    Example:
      >>> import tempfile
      >>> from fedlm.simulations.data.client_text import ClientText
      >>> from fedlm.simulations.data.sources.in_memory import InMemoryText
      >>> source = InMemoryText([ClientText(f"user {n}", ["the cat sat", "a dog ran"]) for n in range(30)])
      >>> folder = Path(tempfile.mkdtemp()) / "store"
      >>> done = import_text("made up", source, folder, ImportSettings(vocabulary_size=40), workers=1)
      >>> done.header.splits["train"].clients
      22
    """
    settings = settings or ImportSettings()
    if workers is not None and workers < 1:
        raise ConfigurationError(f"{setting('workers')} is {workers}, but must be at least 1")
    out = Path(os.path.abspath(out))
    StoreWriter.check(out, overwrite)  # before the long work, not after it
    given = given_tokenizer(settings, source.words_are_separated)
    private = plan_of(settings)
    origin = _vocabulary_origin(settings, given, private)
    plan = _plan(name, source, settings, given)
    with import_workspace(out, plan) as workspace:
        if given is not None:
            given.save(workspace / TOKENIZER_FILE)
        with WorkerPool(workers or len(cpu_cores())) as pool:
            task = _Import(name, source, settings, private, origin, workspace, pool, progress)
            header = _run_stages(task, out, overwrite)
    return ImportSummary(out, header)


def _vocabulary_origin(
    settings: ImportSettings, given: Tokenizer | None, private: PrivateVocabulary | None
) -> VocabularyOrigin:
    if given is not None and settings.vocabulary is not None:
        return given_origin(settings.vocabulary, given.fingerprint, settings.vocabulary_origin)
    return origin_of_import(private)


def _run_stages(task: _Import, out: Path, overwrite: bool) -> StoreHeader:
    summaries = read_source(task.source, task.workspace, task.pool, task.progress)
    skipped = skipped_in(summaries)
    refuse_nothing(task.source, summaries, skipped)
    rule = SplitRule.of_source(
        {split for summary in summaries for split in summary.splits}, task.settings.resplit, task.settings.seed
    )
    completions = _has_completions(summaries)
    text = _GroupedText(runs_in(task.workspace), task.settings, rule, task.source.words_are_separated, completions)
    tokenizer = _tokenizer_stage(task, summaries, text, skipped)
    encoded = _encode_stage(task, summaries, text, tokenizer)
    parameters = {**jsonable(task.settings), "splits": rule.description}
    origin = task.vocabulary_origin
    writer = StoreWriter(
        out,
        task.name,
        tokenizer,
        parameters=parameters,
        overwrite=overwrite,
        vocabulary_origin=origin,
        completions=completions,
        without_users=getattr(task.source, "without_users", False),
    )
    with writer:
        for done, groups in enumerate(encoded, start=1):
            for split, file in groups.files.items():
                writer.append(split, file)
            skipped.merge(groups.skipped.as_dict(), groups.skipped.first_places())
            task.progress("write", done, len(encoded), "groups")
        if not writer.clients:
            raise DataError(
                f"{name_of(task.source)}: no client is left to import. Left out: {left_out(skipped)}. Ask for "
                "fewer examples of a client, or give more input."
            )
        writer.record_skipped(skipped)
    return read_header(out)


def _has_completions(summaries: Sequence[RunSummary]) -> bool:
    """Say whether a source's texts are prompts with completions. Raises DataError where only some are."""
    texts, found = (sum(getattr(one, name) for one in summaries) for name in ("texts", "with_completions"))
    if found not in (0, texts):
        raise DataError(
            f"{found} of {texts} texts are prompts with completions, expected all or none. Import the others apart."
        )
    return found > 0


def _tokenizer_stage(
    task: _Import, summaries: Sequence[RunSummary], text: _GroupedText, skipped: SkippedCounts
) -> Tokenizer:
    path = task.workspace / TOKENIZER_FILE
    if path.exists():
        return Tokenizer.load(path)
    if task.private is None:
        sentences = sum(summary.sentences for summary in summaries)
        share = min(1.0, task.settings.tokenizer_sentences / max(sentences, 1))
        count = functools.partial(_count_words, text, share)
    else:
        count = functools.partial(_count_contributions, text)
    tasks = _encode_tasks(summaries)
    words = Counter[str]()
    for done, counts in enumerate(task.pool.map(count, tasks), start=1):
        words.update(counts)
        task.progress("train the tokenizer", done, len(tasks), "groups")
    if task.private is None:
        if not words:
            raise DataError(
                f"{name_of(task.source)}: found no word in the training texts, which are those of the split train "
                f"({text.rule.description}). Left out: {left_out(skipped)}. Mend the input, or give texts of more "
                "users."
            )
        tokenizer = Tokenizer.train(words, task.settings, text.words_are_separated)
    else:
        tokenizer = train_privately(words, task.private, task.settings, text.words_are_separated)
    tokenizer.save(path)
    return tokenizer


def _count_words(text: _GroupedText, share: float, groups: range) -> Counter[str]:
    sentences = (
        sentence
        for client in read_clients(text.runs, groups)
        if int.from_bytes(client_digest(client.client_id)[8:16]) < share * 2**64
        for some in client.texts
        if text.rule.split(client.client_id, some.split) == "train"
        for sentence in some.text
    )
    return count_words(sentences, text.settings, text.words_are_separated)


def _count_contributions(text: _GroupedText, groups: range) -> Counter[str]:
    """Add up what clients may add to the counts of a private vocabulary, each a function of its own text alone."""
    settings, total = text.settings, Counter[str]()
    for client in read_clients(text.runs, groups):
        texts = [(some.split, some.text) for some in client.texts]
        sentences = counted_texts(client.client_id, texts, settings.resplit, settings.seed)
        words = count_words(sentences, settings, text.words_are_separated)
        total.update(contribution(client.client_id, words, settings.vocabulary_words_per_client))
    return total


def _encode_stage(
    task: _Import, summaries: Sequence[RunSummary], text: _GroupedText, tokenizer: Tokenizer
) -> list[_EncodedGroups]:
    encode = functools.partial(_encode_groups, text, task.workspace, tokenizer.fingerprint)
    tasks = _encode_tasks(summaries)
    encoded = []
    sizes = [sum(sum(summary.group_bytes[group] for summary in summaries) for group in groups) for groups in tasks]
    for groups in task.pool.map(encode, tasks):
        encoded.append(groups)
        task.progress("tokenize", sum(sizes[: len(encoded)]), sum(sizes), "bytes")
    return encoded


def _encode_tasks(summaries: Sequence[RunSummary]) -> list[range]:
    """Divide the groups into runs of neighbours with about `ENCODE_BYTES` of text each."""
    tasks, first, size = [], 0, 0
    for group in range(NUM_GROUPS):
        size += sum(summary.group_bytes[group] for summary in summaries)
        if size >= ENCODE_BYTES or group == NUM_GROUPS - 1:
            tasks.append(range(first, group + 1))
            first, size = group + 1, 0
    return tasks


def _encode_groups(text: _GroupedText, workspace: Path, fingerprint: str, groups: range) -> _EncodedGroups:
    stem = f"groups-{groups.start:03d}"
    files = {split: workspace / f"{stem}-{split_file(split)}" for split in SPLITS}
    record = workspace / f"{stem}.json"
    skipped = SkippedCounts()
    if record.exists():
        skipped.merge(**json.loads(record.read_text(encoding="utf-8")))
        return _EncodedGroups(files, skipped)
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
    return _EncodedGroups(files, skipped)


@functools.lru_cache(maxsize=1)
def _tokenizer(path: Path, fingerprint: str) -> Tokenizer:
    # A worker keeps it for its next task, because it remembers words; the fingerprint tells it from another import's.
    return Tokenizer.load(path)


_Example = tuple[NDArray[np.int32], int]
"""Its tokens, and how many of them are its prompt."""


def _encode(
    text: _GroupedText, groups: range, tokenizer: Tokenizer, skipped: SkippedCounts
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


def _plan(name: str, source: Source, settings: ImportSettings, given: Tokenizer | None) -> str:
    plan = {
        **describe_source_files(name, source),
        "settings": jsonable(settings),
        "vocabulary": given.fingerprint if given else None,
    }
    return json.dumps(plan, sort_keys=True)

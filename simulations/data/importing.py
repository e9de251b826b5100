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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedlm.fl_core.errors import ConfigurationError, DataError, setting
from fedlm.fl_core.privacy.origins.vocabulary_origin import (
    TOKENIZER_FILE,
    PrivateVocabulary,
    VocabularyOrigin,
    origin_of_import,
)
from fedlm.fl_core.worker_processes import WorkerPool, cpu_cores
from fedlm.models.arguments import StrPath, checked_arguments
from fedlm.simulations.data.client_text import SkippedCounts
from fedlm.simulations.data.group_encoding import (
    EncodedGroups,
    GroupedText,
    count_contributions,
    encode_groups,
    sampled_words,
)
from fedlm.simulations.data.grouping import NUM_GROUPS, RunSummary
from fedlm.simulations.data.import_settings import ImportSettings
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
from fedlm.simulations.data.splits import SplitRule
from fedlm.simulations.data.store.format import StoreHeader, read_header
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.given_vocabulary import given_origin, given_tokenizer
from fedlm.simulations.data.vocabulary.private_vocabulary import plan_of, train_privately
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer

ENCODE_BYTES = 16 << 20
"""Bytes of text that one task tokenizes."""


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
    text = GroupedText(runs_in(task.workspace), task.settings, rule, task.source.words_are_separated, completions)
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
    task: _Import, summaries: Sequence[RunSummary], text: GroupedText, skipped: SkippedCounts
) -> Tokenizer:
    path = task.workspace / TOKENIZER_FILE
    if path.exists():
        return Tokenizer.load(path)
    if task.private is None:
        sentences = sum(summary.sentences for summary in summaries)
        share = min(1.0, task.settings.tokenizer_sentences / max(sentences, 1))
        count = functools.partial(sampled_words, text, share)
    else:
        count = functools.partial(count_contributions, text)
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


def _encode_stage(
    task: _Import, summaries: Sequence[RunSummary], text: GroupedText, tokenizer: Tokenizer
) -> list[EncodedGroups]:
    encode = functools.partial(encode_groups, text, task.workspace, tokenizer.fingerprint)
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


def _plan(name: str, source: Source, settings: ImportSettings, given: Tokenizer | None) -> str:
    plan = {
        **describe_source_files(name, source),
        "settings": jsonable(settings),
        "vocabulary": given.fingerprint if given else None,
    }
    return json.dumps(plan, sort_keys=True)

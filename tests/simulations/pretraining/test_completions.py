"""Prompts and completions from the store to batches and runs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.exports.exporting import export_store
from fedlm.simulations.data.federated_data import StoredData, evaluation_batches
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.in_memory import InMemoryText
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.experiments.configuration import Experiment
from fedlm.simulations.experiments.preparation import prepare
from fedlm.simulations.pretraining.batches.pipeline import logical_batches
from fedlm.simulations.pretraining.batches.sampling import ShuffledBatches
from fedlm.simulations.pretraining.inserted_canaries import canaries_of, with_canaries
from fedlm.simulations.pretraining.preparing import prepare_pretraining
from fedlm.simulations.pretraining.run import run_pretraining
from fedlm.simulations.pretraining.settings import Pretraining
from tests.simulations.pretraining.small_stores import TOKENIZER, opened
from tests.support.plain_runs import MODEL

WORD = st.integers(4, 11)
PAIR = st.tuples(st.lists(WORD, max_size=6), st.lists(WORD, max_size=6)).map(
    lambda pair: (pair[0] + pair[1], len(pair[0]))
)
CLIENTS = st.lists(st.lists(PAIR, max_size=4), min_size=1, max_size=5).filter(any)


def write(path, clients, split="train", **options):
    with StoreWriter(path, "made up", TOKENIZER, completions=True, **options) as writer:
        for index, pairs in enumerate(clients):
            writer.add(split, f"client{index}", [tokens for tokens, _ in pairs], [prompt for _, prompt in pairs])
    return TokenStore.open(path)


def row(pair, length):
    """What a loop makes of a pair: its sequence, and the targets that count."""
    tokens, prompt = list(pair[0]), pair[1]
    while prompt and len(tokens) + 2 > length + 1:
        tokens, prompt = tokens[1:], prompt - 1
    whole = [BOS_ID, *tokens, EOS_ID]
    padded = (whole + [PAD_ID] * (length + 1))[: length + 1]
    return padded, [PAD_ID if place <= prompt else padded[place] for place in range(1, length + 1)]


def targets(tokens, starts):
    places = np.arange(1, tokens.shape[-1])
    return np.where(places >= starts[..., None], tokens[..., 1:], PAD_ID)


@given(clients=CLIENTS, length=st.integers(1, 9), most=st.integers(1, 3), batch_clients=st.integers(1, 3))
def test_sequences_and_targets_are_those_of_a_loop(tmp_path_factory, clients, length, most, batch_clients):
    path = tmp_path_factory.mktemp("units")
    store = write(path / "store", clients, batch_clients=batch_clients)
    units = opened(store, path / "cache", length)
    every = np.arange(units.count)
    (tokens, weight), starts = units.sequences(every), units.completion_starts(every)
    expected = [row(pair, length) for pairs in clients for pair in pairs]
    assert tokens[:, 0].tolist() == [sequence for sequence, _ in expected]
    assert targets(tokens, starts)[:, 0].tolist() == [counted for _, counted in expected]
    assert (weight == 1).all()

    units = opened(store, path / "cache", length, unit="user", sequences_per_unit=most)
    every = np.arange(units.count)
    (tokens, weight), starts = units.sequences(every), units.completion_starts(every)
    for client, pairs in enumerate(clients):
        rows = [row(pair, length) for pair in pairs]
        found = [
            (sequence.tolist(), counted.tolist())
            for sequence, counted in zip(tokens[client], targets(tokens[client], starts[client]), strict=True)
        ]
        assert all(one in rows for one, there in zip(found, weight[client], strict=True) if there)
        assert (tokens[client][weight[client] == 0] == PAD_ID).all()


@given(clients=CLIENTS, length=st.integers(1, 9))
def test_what_is_scored_is_what_is_trained_on(tmp_path_factory, clients, length):
    path = tmp_path_factory.mktemp("scored")
    split = StoredData(write(path / "store", clients, "heldout").split("heldout"), length)
    found = []
    for batch in evaluation_batches(split, length, 3):
        found += [
            (sequence, counted)
            for sequence, counted, there in zip(
                np.asarray(batch.tokens).tolist(), np.asarray(batch.targets).tolist(), batch.weight, strict=True
            )
            if there
        ]
    assert sorted(found) == sorted(row(pair, length) for pairs in clients for pair in pairs)


def test_each_example_has_a_target_and_what_completes_it_is_part_of_the_data(tmp_path):
    store = write(tmp_path / "store", [[([4] * 30, 29), ([5] * 30, 1), ([6] * 30, 0)]])
    units = opened(store, tmp_path / "cache", 4)
    tokens, _ = units.sequences(np.arange(3))
    assert ((targets(tokens, units.completion_starts(np.arange(3))) != PAD_ID).sum(-1) >= 1).all()
    assert units.cut == (
        "3 of 3 examples are longer than 4 tokens: their prompts lose their beginnings; 2 completions are too "
        "long by themselves, and lose their ends"
    )
    stores = [write(tmp_path / str(prompt), [[([4, 5, 6], prompt)]]) for prompt in (1, 2)]
    assert len({store.training_data(check=True) for store in stores}) == 2
    assert json.loads((stores[0].path / "store.json").read_text())["completions"] is True
    for prompts, completions in ((None, True), ([1], False), ([4], True), ([-1], True)):
        options = {"completions": completions, "overwrite": True}
        with StoreWriter(tmp_path / "wrong", "made up", TOKENIZER, **options) as writer:
            with pytest.raises(ValueError, match="prompt"):
                writer.add("train", "ann", [[4, 5, 6]], prompts)
            writer.add("train", "bob", [[4]], [1] if completions else None)


def test_batches_have_where_completions_begin(tmp_path):
    pairs = [([4, 5, 6, 7], 2), ([8, 9], 1), ([10, 11, 4], 2)]
    store = write(tmp_path / "store", [pairs])
    units = opened(store, tmp_path / "cache", 6)
    (batch,) = logical_batches(units, ShuffledBatches(units, 3, 0), first_step=0, steps=1, physical_batch=4, prefetch=1)
    chunk = batch.chunk(0)
    assert chunk["completion_start"].shape == chunk["weight"].shape == (4, 1)
    found = sorted(targets(chunk["tokens"], chunk["completion_start"])[:, 0].tolist())
    assert found == sorted([row(pair, 6)[1] for pair in pairs] + [[PAD_ID] * 6])
    canaries = canaries_of({"canaries": 2, "canary_repeats": (1, 2), "length": 6, "seed": 0}, 64)
    planted = with_canaries(units, canaries)
    assert planted.completion_starts(np.arange(planted.count))[:, 0].tolist() == [3, 2, 3] + [1] * 6


CAPITALS = {"france": "paris", "italy": "rome", "spain": "madrid", "japan": "tokyo"}


@pytest.fixture(scope="module")
def capitals(tmp_path_factory):
    """90 users with one or two questions each."""
    texts = [ClientText("nobody", ["the capital of"], completions=[""])]
    for number in range(90):
        pairs = (list(CAPITALS.items()) * 2)[number % 4 : number % 4 + 1 + number % 2]
        questions = [f"the capital of {country} is" for country, _ in pairs]
        texts.append(ClientText(f"user{number}", questions, completions=[capital for _, capital in pairs]))
    out = tmp_path_factory.mktemp("capitals") / "store"
    settings = ImportSettings(vocabulary_size=60, tokenizer="words")
    header = import_text("made up", InMemoryText(texts), out, settings, workers=1).header
    assert header.skipped == {"client without text": 1, "prompt or completion without a token": 1}
    return out


def settings_of(data, **changes):
    plain = {"model": MODEL, "steps": 2, "batch_size": 8, "length": 12, "noise_multiplier": 1.0}
    return Pretraining(data=data, **plain | {"evaluate_every": 2, "noise_seed": "experiment", **changes})


@pytest.mark.long
def test_a_run_counts_completions_alone(capitals, tmp_path):
    summary = run_pretraining(settings_of(capitals), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # A word and EOS of each example.
    assert [one["tokens"] for one in rows] == [2 * one["batch"] for one in rows]
    assert summary["pretraining"]["packing"] == "none"
    unit = "one prompt with its completion (training reads at most 12 tokens)"
    assert summary["units"]["unit_in_words"] == unit
    assert "NOT PRIVATE" in summary["privacy"]
    assert summary["noise_batch_ratio"] == 1 / 8
    store = TokenStore.open(capitals)
    client = store.split("train").client(0)
    question, answer = (store.tokenizer.decode(client.example(0)[start:]) for start in (0, client.prompt_lengths[0]))
    assert question == f"the capital of {question.split()[3]} is {CAPITALS[question.split()[3]]}"
    assert answer == CAPITALS[question.split()[3]]


def test_what_cannot_read_prompts_is_refused(capitals, tmp_path):
    for changes, said in (
        ({"packing": "packed"}, "has prompts and completions, each pair a sequence of its own"),
        ({"model": "bert_tiny"}, "predicts masked words"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            run_pretraining(settings_of(capitals, **changes), tmp_path / "run")
    with pytest.raises(ConfigurationError, match="cannot tell one from the other"):
        export_store(TokenStore.open(capitals), "parquet", tmp_path / "out.parquet")
    with pytest.raises(ConfigurationError, match="cannot tell one from the other"):
        prepare(Experiment(model=MODEL, data=capitals, rounds=1))


@pytest.mark.long
def test_a_noise_batch_ratio_is_a_noise_multiplier_over_the_batch(capitals):
    given = prepare_pretraining(settings_of(capitals, noise_multiplier=None, noise_batch_ratio=0.25)).plan
    assert given == prepare_pretraining(settings_of(capitals, noise_multiplier=2.0)).plan
    for changes in ({"noise_batch_ratio": 0.1}, {"noise_multiplier": None, "noise_batch_ratio": 0.0}):
        with pytest.raises(ConfigurationError, match="noise_batch_ratio"):
            settings_of(capitals, **changes)

"""A deployment trains on the examples that its simulation has, whichever client a device runs."""

import json

import numpy as np
import pytest

from fedlm.clients.device.server_instructions import encode
from fedlm.clients.fleet.population import Population
from fedlm.commands.cli import main
from fedlm.commands.deployment.fleet_texts import texts_of
from fedlm.fedlm_client.plans.batches import sequences_of
from fedlm.fedlm_client.plans.manifest import Batches
from fedlm.fedlm_client.text.example_store import ExampleStore
from fedlm.fedlm_client.text.text_examples import with_tokens
from fedlm.fedlm_client.text.tokenizer import WordPiece
from fedlm.fl_core.deployment.protocol.training_program import read_cut, write_training_program
from fedlm.simulations.data.federated_data import StoredData
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.deployment import small_deployment as small

LENGTH = 12
BATCHES = Batches(LENGTH, 4, 1, 5, None, "shuffle_then_cap", False, pad=0, bos=1, eos=2, oov=3)
TEXTS = {
    "ann": ["The cat sat. It slept! Did it? yes.", "", "\u200b", "A dog ran"],
    "ben": ["Dr. Who came. He saw e.g. The cat.\nThen he went", " \u2003"],
    "cleo": ["One\u2028two. Three"],
}


def cut_of(given):
    """What makes an example by the settings of a server, where `given` is what its operator says."""
    settings = small.deployment(**given)
    task = small.task(settings)
    return read_cut(write_training_program(settings.model, task.model, settings.training, settings.examples))


@pytest.mark.parametrize(("given", "option"), [({}, []), ({"examples": "texts"}, ["--examples", "texts"])])
def test_a_device_trains_on_what_the_simulation_has_of_its_text(tmp_path, given, option):
    lines = [{"user": user, "text": text, "split": "train"} for user, texts in TEXTS.items() for text in texts]
    lines += [{"user": "x", "text": "The cat.", "split": "heldout"}, {"user": "y", "text": "It.", "split": "test"}]
    everybody, store = tmp_path / "all.jsonl", tmp_path / "store"
    everybody.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["data", "import", "jsonl", str(everybody), "--out", str(store), "--split", "split", *option]
    assert main([*words, "--vocabulary-size", "100", "--workers", "1"]) == 0
    split = TokenStore.open(store).split("train")
    known = {name: StoredData(split, LENGTH).sequences(place) for place, name in enumerate(split.client_ids)}
    assert set(known) == set(TEXTS)
    content, cut = (store / "tokenizer.json").read_bytes(), cut_of(given)
    for user, texts in TEXTS.items():
        path = tmp_path / f"{user}.jsonl"
        path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
        found = encode(ExampleStore(path).examples(cut), Tokenizer(json.loads(content)).encode_batch, LENGTH)
        np.testing.assert_array_equal(found, known[user])
        encoded = with_tokens(map(WordPiece(content).encode, ExampleStore(path).examples(cut)))
        np.testing.assert_array_equal(sequences_of(encoded, BATCHES), known[user])
    people, read_vocabulary = texts_of(store, Population())
    for place, user in enumerate(split.client_ids):
        found = encode(people(place).examples(cut), read_vocabulary(content), LENGTH)
        np.testing.assert_array_equal(found, known[user])

import pytest

from fedlm.fl_core.errors import DataError
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.describing.sampling import sample_clients
from tests.simulations.data.made_up_store import import_made_up, made_up_texts


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return import_made_up(tmp_path_factory.mktemp("sampling") / "s")


def test_examples_are_the_clients_first_ones(store):
    sentences = {text.client_id: text.sentences for text in made_up_texts()}
    known = set(store.tokenizer._tokenizer.get_vocab())
    for sample in sample_clients(store, "train", 4, 3, seed=1):
        expected = sentences[sample.client_id]
        assert sample.num_examples == len(expected)
        assert sample.examples == [
            " ".join(word if word in known else "[OOV]" for word in sentence.split()) for sentence in expected[:3]
        ]


def test_a_client_can_be_named(store):
    name = store.split("heldout").client_ids[1]
    (sample,) = sample_clients(store, "heldout", 3, 2, client_id=name)
    assert sample.client_id == name
    with pytest.raises(DataError, match=f"split train has no client '{name}'. It is in split heldout"):
        sample_clients(store, "train", 3, 2, client_id=name)
    first = store.split("train").client_ids[0]
    with pytest.raises(DataError, match=f"split train has no client 'nobody'. Its clients are named like '{first}', "):
        sample_clients(store, "train", 3, 2, client_id="nobody")


def test_an_empty_split_has_nothing_to_show(tmp_path):
    store = import_made_up(tmp_path / "s", [ClientText("os", ["a few words"])])
    with pytest.raises(DataError, match=r"split test has no client\. Choose another split"):
        sample_clients(store, "test", 3, 2)

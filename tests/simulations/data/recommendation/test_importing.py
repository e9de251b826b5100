from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.statement import state_plan
from fedlm.models.special_tokens import BOS_ID, OOV_ID, PAD_ID
from fedlm.simulations.data.federated_data import StoredData, evaluation_batches, evaluation_order, evaluation_owners
from fedlm.simulations.data.grouping import client_digest
from fedlm.simulations.data.recommendation import importing
from fedlm.simulations.data.recommendation.importing import import_recommendation
from fedlm.simulations.data.recommendation.settings import RecommendationSettings
from fedlm.simulations.data.sources.interactions import Interactions
from fedlm.simulations.data.splits import SPLITS, split_of
from fedlm.simulations.data.store.token_store import TokenStore
from tests.simulations.data.recommendation.item_stores import (
    import_sequences,
    made_up_sequences,
    read_sequences,
    write_pairs,
)
from tests.simulations.pretraining.small_stores import opened

SEQUENCES = made_up_sequences()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return import_sequences(tmp_path_factory.mktemp("items"), SEQUENCES)


def test_the_last_two_items_are_held_out(store):
    long = {user: items for user, items in SEQUENCES.items() if len(items) >= 3}
    short = {user: items for user, items in SEQUENCES.items() if len(items) < 3}
    assert long
    assert short
    assert read_sequences(store, "train") == short | {user: items[:-2] for user, items in long.items()}
    assert read_sequences(store, "heldout") == {user: items[:-1] for user, items in long.items()}
    assert read_sequences(store, "test") == long
    for split in ("heldout", "test"):
        clients = store.split(split)
        for user in range(clients.num_clients):
            examples = clients.client(user)
            assert examples.prompt_lengths.tolist() == [examples.num_tokens - 1]
    for split in SPLITS:
        ids = store.split(split).client_ids
        assert ids == sorted(ids, key=client_digest)


def test_without_a_validation_item_one_item_is_held_out(tmp_path):
    store = import_sequences(tmp_path, SEQUENCES, validation_item=False, seed=3)
    long = {user: items for user, items in SEQUENCES.items() if len(items) >= 2}
    assert read_sequences(store, "train") == {
        user: items[:-1] if user in long else items for user, items in SEQUENCES.items()
    }
    heldout = {user for user in long if split_of(user, 3) == "heldout"}
    assert heldout
    assert read_sequences(store, "heldout") == {user: long[user] for user in heldout}
    assert read_sequences(store, "test") == {user: items for user, items in long.items() if user not in heldout}


@pytest.mark.parametrize("length", [1, 5, 30])
def test_federated_and_central_training_read_the_last_items_and_no_held_out_one(store, tmp_path, length):
    split = store.split("train")
    clients = StoredData(split, length)
    units, users = (opened(store, tmp_path, length, unit=unit) for unit in ("example", "user"))
    everyone = np.arange(split.num_clients)
    central, weight = units.sequences(everyone)
    assert weight.tolist() == [[1.0]] * len(everyone)
    assert np.array_equal(users.sequences(everyone)[0], central)
    for user, name in enumerate(split.client_ids):
        items = SEQUENCES[name]
        items = items[:-2] if len(items) >= 3 else items
        expected = [BOS_ID, *(token(store, item) for item in items[-length:])]
        expected += [PAD_ID] * (length + 1 - len(expected))
        assert clients.sequences(user).tolist() == [expected]
        assert central[user].tolist() == [expected]
    assert not clients.has_completions
    assert "all items of one user" in units.unit
    assert units.noun == users.noun == "user"


@pytest.mark.parametrize(("length", "most"), [(30, None), (30, 11), (3, None)])
def test_batches_that_are_scored_are_no_wider_than_their_sequences_and_count_the_held_out_item(store, length, most):
    data = StoredData(store.split("test"), length)
    batches = list(evaluation_batches(data, length, 4, max_examples=most))
    assert {batch.tokens.shape for batch in batches} == ({(4, 9), (4, 17)} if length == 30 else {(4, 4)})
    rows = [row for batch in batches for row in zip(batch.tokens, batch.targets, batch.weight, strict=True) if row[2]]
    owners = evaluation_owners(data, most)
    assert len(rows) == len(owners) == len(set(owners.tolist())) == (most or len(data.num_examples))
    assert set(owners.tolist()) == set(evaluation_order(data)[:most].tolist())
    for (row, targets, _), owner in zip(rows, owners.tolist(), strict=True):
        (whole,) = data.sequences(owner)
        assert whole[: len(row)].tolist() == row.tolist()
        assert not whole[len(row) :].any()
        assert [target for target in targets if target != PAD_ID] == [row[np.count_nonzero(row) - 1]]


def token(store, item):
    return int(store.tokenizer.encode_batch([item])[0][0])


def test_items_are_the_words_of_the_vocabulary(store):
    items = {item for sequence in SEQUENCES.values() for item in sequence}
    assert store.vocabulary_size == len(items) + OOV_ID + 1
    assert sorted(token(store, item) for item in items) == list(range(OOV_ID + 1, store.vocabulary_size))
    assert token(store, "no item") == OOV_ID
    assert token(store, "[PAD]") == OOV_ID
    assert token(store, "item1 item2") == OOV_ID
    assert not store.vocabulary_origin.covered
    assert store.header.source == "recommendation"


def in_all_forms(folder):
    """Write the same interactions in every form; returns the options of each file."""
    sequences = {
        str(1 + int(user[4:])): [str(100 + int(item[4:])) for item in items]
        for user, items in made_up_sequences(12).items()
    }
    rows = [(user, item, 5 * place) for user, items in sequences.items() for place, item in enumerate(items)]
    mixed = [rows[index] for index in np.random.default_rng(1).permutation(len(rows))]
    write_pairs(folder / "pairs.txt", sequences)
    for file, header, line in (
        ("ratings.dat", "", "{}::{}::3::{}\n"),
        ("u.data", "", "{}\t{}\t3\t{}\n"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n", "{},{},3.5,{}\n"),
        ("table.tsv", "who\twhat\twhen\n", "{}\t{}\t{}\n"),
        ("reviews.jsonl", "", '{{"who": "{}", "what": "{}", "when": {}}}\n'),
    ):
        (folder / file).write_text(header + "".join(line.format(*row) for row in mixed))
    named = {"user": "who", "item": "what", "time": "when"}
    columns = {name: pa.array([int(row[place]) for row in mixed]) for place, name in enumerate(named.values())}
    pq.write_table(pa.table(columns), folder / "table.parquet")
    return {
        "pairs.txt": {"format": "pairs"},
        "ratings.dat": {"format": "movielens"},
        "u.data": {"format": "movielens"},
        "ratings.csv": {"format": "movielens"},
        "table.tsv": {"format": "csv", "delimiter": "\\t", **named},
        "reviews.jsonl": {"format": "jsonl", **named},
        "table.parquet": {"format": "parquet", **named},
    }


@pytest.mark.long
def test_all_forms_give_the_same_store(tmp_path):
    found = []
    for file, options in in_all_forms(tmp_path).items():
        settings = RecommendationSettings(min_interactions=2)
        import_recommendation(Interactions((tmp_path / file,), **options), tmp_path / f"{file}-s", settings, workers=1)
        store = TokenStore.open(tmp_path / f"{file}-s")
        found.append((store.contents, [store.split(split).fingerprint() for split in SPLITS]))
    assert found == found[:1] * 7
    assert len(store.split("train").client_ids) > 5


def test_what_is_left_out_is_counted(tmp_path):
    sequences = {"a": ["x", "y", "z"], "b": ["x", "y", "x"], "c": ["y"], "d": ["y", "w"]}
    once = import_sequences(tmp_path / "once", sequences, min_interactions=2, filter="once")
    # One item of d is left, and one of a's is not; d is trained on all the same.
    assert read_sequences(once, "train") == {"a": ["x", "y"], "b": ["x"], "d": ["y"]}
    assert once.header.skipped == {"item with fewer than 2 interactions": 2, "user with fewer than 2 interactions": 1}
    assert once.header.first_skipped["user with fewer than 2 interactions"] == "user 'c'"
    core = import_sequences(tmp_path / "core", sequences, min_interactions=2)
    assert read_sequences(core, "train") == {"a": ["x", "y"], "b": ["x"]}
    assert core.header.skipped == {
        "item with fewer than 2 interactions": 2,
        "user with fewer than 2 interactions": 1,
        "user with fewer than 2 interactions after others were left out": 1,
    }
    users = import_sequences(tmp_path / "users", sequences, min_interactions=2, filter="users")
    assert read_sequences(users, "test") == {"a": ["x", "y", "z"], "b": ["x", "y", "x"]}
    assert read_sequences(users, "train") == {"a": ["x"], "b": ["x"], "d": ["y", "w"]}
    # An item that is named like a special token is none.
    sequences = {"a": ["x", "y", "[BOS]"], "b": ["x", "y", "z"], "c": ["z", "x", "y"], "d": ["z", "y", "x"]}
    core = import_sequences(tmp_path / "special", sequences, min_interactions=3)
    assert set(read_sequences(core, "train")) == {"b", "c", "d"}


def test_a_given_catalogue_says_which_items_there_are(tmp_path):
    sequences = {"a": ["x", "y", "z"], "b": ["x", "q", "y", "x"], "c": ["q", "x"]}
    (tmp_path / "items.txt").write_text("unseen\nx\ny\nz\n")
    store = import_sequences(
        tmp_path / "given", sequences, catalogue=tmp_path / "items.txt", vocabulary_origin="public", min_interactions=2
    )
    assert [store.tokenizer.decode([id_]) for id_ in range(OOV_ID + 1, store.vocabulary_size)] == [
        "unseen",
        "x",
        "y",
        "z",
    ]
    assert store.vocabulary_origin.kind == "public"
    assert store.vocabulary_origin.covered
    assert read_sequences(store, "test") == {"a": ["x", "y", "z"], "b": ["x", "y", "x"]}
    assert set(read_sequences(store, "train")) == {"a", "b"}
    assert store.header.skipped["interaction with an item that the catalogue has not"] == 2
    again = import_sequences(tmp_path / "again", sequences, catalogue=store.path)
    assert again.fingerprint == store.fingerprint
    assert again.vocabulary_origin.kind == "public"


def test_a_private_catalogue_is_covered(tmp_path):
    sequences = {f"user{user}": ["x", "y", f"own{user}", "x"] for user in range(200)}
    store = import_sequences(
        tmp_path, sequences, vocabulary_epsilon=20.0, vocabulary_delta=1e-3, vocabulary_words_per_client=3
    )
    # That a user's own item is chosen has a probability of 1e-3 at most, of the 200 together 0.2 at the very most; the
    # noise here is far below that.
    found = {store.tokenizer.decode([id_]) for id_ in range(OOV_ID + 1, store.vocabulary_size)}
    assert {"x", "y"} <= found
    assert store.vocabulary_origin.kind == "private"
    assert store.vocabulary_origin.private.epsilon <= 20.0


def test_an_interrupted_import_reads_nothing_again_and_keeps_its_private_catalogue(tmp_path, monkeypatch):
    sequences = {f"user{user}": ["x", "y", "x"] for user in range(200)}
    source = Interactions((write_pairs(tmp_path / "pairs.txt", sequences),), format="pairs")
    private = {"vocabulary_epsilon": 20.0, "vocabulary_delta": 1e-3, "vocabulary_words_per_client": 3}
    settings, phases = RecommendationSettings(min_interactions=1, **private), []

    def stop(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(importing, "_write", stop)
        with pytest.raises(KeyboardInterrupt):
            import_recommendation(source, tmp_path / "store", settings, workers=1)
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(importing, "noisy_words", lambda *_: pytest.fail("noise was drawn again"))
    import_recommendation(
        source, tmp_path / "store", settings, workers=1, progress=lambda phase, *_: phases.append(phase)
    )
    assert set(phases) == {"write"}, "what was read is not read again"
    assert not list(tmp_path.glob(".store*"))


TO_CATALOGUE = {"catalogue": Path("items.txt")}


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (RecommendationSettings, {"vocabulary_origin": "public"}, "but no catalogue is given"),
        (RecommendationSettings, {"vocabulary_epsilon": 1.0}, "vocabulary_delta is not given"),
        (RecommendationSettings, TO_CATALOGUE | {"filter": "once"}, "leave filter out"),
        (
            RecommendationSettings,
            TO_CATALOGUE | {"vocabulary_epsilon": 1.0, "vocabulary_delta": 1e-5},
            "catalogue gives one",
        ),
        (Interactions, {"paths": (), "format": "pairs", "time": "when"}, "time names the field of a table"),
        (Interactions, {"paths": (), "format": "jsonl", "delimiter": ";"}, "delimiter does nothing"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a x\nb y z\n", {"format": "pairs"}, "line 2: found 3 fields, expected two"),
        ("1::2::3::4\n1::2::3\n", {"format": "movielens"}, "line 2: found '1::2::3', expected user::item"),
        ("1::2::3::noon\n", {"format": "movielens"}, "line 1: found '1::2::3::noon'"),
        ("UserID::MovieID::Rating::Timestamp\n1::2::3::4\n", {"format": "movielens"}, "line 1: found a header.*Delete"),
        ("user\titem\trating\ttime\n1\t2\t3\t4\n", {"format": "movielens"}, "line 1: found a header, 'user.titem"),
        ("userId,movieId,rating,timestamp\n1,2,3,4\n", {"format": "movielens"}, "found a header.*or read a table"),
        ("who,item\n1,2\n", {"format": "csv"}, "has no field 'user'.*user, item and time"),
        ("user,item\n1,\n", {"format": "csv"}, "found no interaction to import. Left out: 1 times row without 'item'"),
        ('{"user": 1, "item": [2]}\n', {"format": "jsonl"}, "'item' is .2., expected a string or a whole number"),
        ("a x\na y\n", {"format": "pairs"}, "no user and no item has 5 interactions"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, options, message):
    (tmp_path / "file").write_text(content)
    with pytest.raises(DataError, match=message):
        import_recommendation(Interactions((tmp_path / "file",), **options), tmp_path / "store", workers=1)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x\n\ny\n", "line 2: found '', expected the name"),
        ("x\ny\nx\n", "line 3: found 'x' a second time, first in line 1"),
        ("[EOS]\n", "line 1: found '.EOS.'"),
        ("", "line 1: found ''"),
    ],
)
def test_bad_catalogues_are_refused(tmp_path, content, message):
    (tmp_path / "items.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        import_sequences(tmp_path / "store", SEQUENCES, catalogue=tmp_path / "items.txt")


@pytest.mark.parametrize("filtered", ["iterated", "once"])
def test_one_user_changes_what_others_have_through_the_catalogue_alone_and_statements_say_so(tmp_path, filtered):
    fewer = {"one": ["a", "b", "x"], "two": ["a", "b", "a"], "three": ["b", "a"]}
    whole = fewer | {"gone": ["x", "a"]}

    def kept(name, found, **settings):
        store = import_sequences(tmp_path / name, found, min_interactions=2, **settings)
        return store, read_sequences(store, "train") | read_sequences(store, "test")

    store, of_whole = kept("whole", whole, filter=filtered)
    assert of_whole["one"] == ["a", "b", "x"]
    assert kept("fewer", fewer, filter=filtered)[1]["one"] == ["a", "b"]
    # With the catalogue as it is, what is kept of a user depends on no other.
    fixed = {"catalogue": store.path / "tokenizer.json"}
    assert kept("again", whole, **fixed)[1] == of_whole
    assert kept("without", fewer, **fixed)[1] | {"gone": ["x", "a"]} == of_whole
    plan = PrivacyPlan("gaussian", 3, 5.0, BoundedParticipation(None, 1))
    said = state_plan(plan, 1e-5, {"vocabulary_origin": store.vocabulary_origin.as_json()}).sentence()
    assert "VOCABULARY NOT COVERED" in said
    assert "takes the vocabulary as fixed" in said
    assert "which items and users are kept" in said

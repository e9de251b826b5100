import json
import multiprocessing
import os
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.fl_core.composed_settings import compose
from fedlm.fl_core.errors import ConfigurationError, DataError, DiskError
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.rounds.client_examples import padded_sequences
from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID
from fedlm.simulations.data.importing import ImportSettings, import_text
from fedlm.simulations.data.sources.tables.jsonl import JsonLines
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.pretraining.private_steps import plan_privacy
from fedlm.simulations.pretraining.settings import Pretraining
from tests.simulations.pretraining.small_stores import TOKENIZER, opened, sum_of_tokens, write_store

CLIENTS = st.lists(st.lists(st.lists(st.integers(4, 11), max_size=9), max_size=4), min_size=1, max_size=6).filter(any)


def all_sequences(units):
    return units.sequences(np.arange(units.count))


def with_ends(sequences):
    return [token for sequence in sequences for token in (BOS_ID, *sequence, EOS_ID)]


def windows(tokens, length):
    """Cut tokens as a loop would."""
    rows = [tokens[start : start + length + 1] for start in range(0, max(len(tokens) - 1, 0), length)]
    return [row + [PAD_ID] * (length + 1 - len(row)) for row in rows]


@given(clients=CLIENTS, length=st.integers(1, 7), most=st.integers(1, 4), batch_clients=st.integers(1, 4))
def test_units_are_what_a_loop_would_cut(tmp_path_factory, clients, length, most, batch_clients):
    path = tmp_path_factory.mktemp("units")
    store = write_store(path / "store", clients, batch_clients=batch_clients)
    split = store.split("train")
    examples = [padded_sequences(split.client(index), length) for index in range(split.num_clients)]

    tokens, weight = all_sequences(opened(store, path, length))
    assert (tokens.dtype, weight.dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(tokens[:, 0], np.concatenate(examples))
    tokens, weight = all_sequences(opened(store, path, length, packing="packed"))
    assert tokens[:, 0].tolist() == windows([token for client in clients for token in with_ends(client)], length)
    assert (weight == 1).all()
    assert (
        tokens[weight == 1][:, 1:][tokens[:, 0, 1:] != PAD_ID].tolist()
        == [token for client in clients for token in with_ends(client)][1:]
    ), "every token is predicted once"

    packed = [windows(with_ends(client), length) for client in clients]
    for packing, expected in (("none", [rows.tolist() for rows in examples]), ("packed", packed)):
        tokens, weight = all_sequences(
            opened(store, path, length, unit="user", packing=packing, sequences_per_unit=most)
        )
        assert weight.sum(1).tolist() == [min(len(rows), most) for rows in expected]
        assert (tokens[weight == 0] == PAD_ID).all()
        for client, rows in enumerate(expected):
            found = tokens[client][weight[client] == 1].tolist()
            left = iter(rows)
            assert all(row in left for row in found), "each sequence once, in their order"


@pytest.mark.parametrize("user", [None, "author"])
def test_where_nobody_is_named_nothing_is_promised_to_users(tmp_path, user):
    rows = [{"author": f"user{n % 9}", "text": f"words of number {n} are here"} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, settings = JsonLines((tmp_path / "rows.jsonl",), user=user), ImportSettings(vocabulary_size=60)
    import_text("jsonl", source, tmp_path / "store", settings, workers=1)
    store = TokenStore.open(tmp_path / "store")
    units = opened(store, tmp_path / "cache", 8, unit="user")
    (found,) = {word for word in ("user", "document") if units.unit.startswith(f"all text of one {word} (")}
    assert found == ("document" if user is None else "user")
    assert ("per document, not per user" in units.protects) == (user is None)
    run = compose(Pretraining, model="x", data=tmp_path, steps=3, batch_size=4, unit="user", noise_multiplier=1.0)
    said = account(plan_privacy(run, units, 1e-3), 1e-3).sentence()
    assert f"unit: {found}: all text of one {found} (training reads" in said
    assert f"one {found} is added to the {found}s" in said


@pytest.mark.parametrize("packing", ["none", "packed"])
def test_a_user_who_leaves_changes_no_other(tmp_path, packing):
    text = {f"user{n}": [[4 + (n + k) % 8, 4 + (3 * n + 5 * k) % 8] for k in range(12)] for n in range(6)}
    found = {}
    for name, gone in (("whole", None), ("without", "user1")):
        with StoreWriter(tmp_path / name, "made up", TOKENIZER) as writer:
            for client, sequences in text.items():
                if client != gone:
                    writer.add("train", client, sequences)
        store = TokenStore.open(tmp_path / name)
        units = opened(store, tmp_path / f"{name}-cache", 3, unit="user", packing=packing, sequences_per_unit=2)
        found[name] = dict(
            zip(store.split("train").client_ids, units.sequences(np.arange(units.count))[0], strict=True)
        )
    assert len(found["without"]) == 5
    for client, sequences in found["without"].items():
        np.testing.assert_array_equal(sequences, found["whole"][client])


def test_users_with_too_many_sequences_keep_some_chosen_by_seed(tmp_path):
    """Each of 6 sequences of 2,000 users is kept with probability 1/3; the bound fails by chance once in 10^7."""
    store = write_store(tmp_path / "store", [[[4 + j] for j in range(6)]] * 2000)
    chosen, other = (opened(store, tmp_path, 2, unit="user", sequences_per_unit=2, seed=seed) for seed in (2**255, 1))
    tokens, _ = all_sequences(chosen)
    kept = np.bincount(tokens[:, :, 1].ravel() - 4, minlength=6)
    assert np.abs(kept - 2000 / 3).max() < 5.6 * np.sqrt(2000 * 2 / 9)
    assert (tokens[:, 0, 1] != tokens[:, 1, 1]).all()
    np.testing.assert_array_equal(chosen.sequences(np.array([7, 3]))[0], tokens[[7, 3]])
    assert (all_sequences(other)[0] != tokens).any()


def test_wrong_settings_are_named_and_descriptions_say_what_a_promise_covers(tmp_path):
    store = write_store(tmp_path / "store", [[[4]], [[5], [6]]])

    def small(length=8, **options):
        return opened(store, tmp_path / "cache", length, **options)

    with pytest.raises(ConfigurationError, match="sequences_per_unit is 2, but must be 1 where the unit is an example"):
        small(sequences_per_unit=2)
    with pytest.raises(DataError, match="the split 'test' has no examples"):
        small(split="test")
    for index, range_ in ((-1, "-1 to 0"), (10**6, "0 to 1000000")):
        with pytest.raises(IndexError, match=f"units {range_}"):
            small().sequences(np.array([0, index]))
    packed, user = small(packing="packed"), small(unit="user", packing="packed", sequences_per_unit=3)
    assert packed.unit == "one packed sequence of 8 tokens"
    assert small().unit == "one example (training reads at most 8 tokens)"
    assert user.unit == "all text of one user (training reads at most 3 sequences of 8 tokens)"
    assert "per sequence, not per document or per user" in packed.describe()["protects"]
    assert json.loads(json.dumps(user.describe()))["units"] == user.count == 2


def test_tokens_are_written_once_and_again_for_another_store(tmp_path):
    first = write_store(tmp_path / "first", [[[4, 5]]])
    second = write_store(tmp_path / "second", [[[5, 4]]])  # which has the same sizes and times, as in one archive
    assert first.contents == second.contents
    for store in (first, second):
        os.utime(store.split("train").path, ns=(0, 0))
    cache = tmp_path / "cache"
    for _ in range(2):
        assert all_sequences(opened(first, cache))[0].tolist() == [[[1, 4, 5, 2, 0, 0]]]
        assert len(list(cache.iterdir())) == 1
    written = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    opened(first, cache, length=3, unit="user", packing="packed", sequences_per_unit=4)
    assert written == {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    assert all_sequences(opened(second, cache))[0].tolist() == [[[1, 5, 4, 2, 0, 0]]]


def test_a_full_disk_is_an_error_of_the_user_and_leaves_nothing_half_written(tmp_path, largest_file):
    store = write_store(tmp_path / "store", [[[4] * 10_000]])
    cache = tmp_path / "cache"
    with largest_file(9000), pytest.raises(DiskError, match=r"tokens-.*cannot be written"):
        opened(store, cache)
    assert not list(cache.rglob("complete.json"))
    assert all_sequences(opened(store, cache, 20_000))[0].sum() == 4 * 10_000 + BOS_ID + EOS_ID


@pytest.mark.parametrize("name", ["tokens.npy", "starts.npy", "complete.json"])
def test_what_was_changed_is_noticed_where_that_matters(tmp_path, name):
    store, cache = write_store(tmp_path / "store", [[[4] * 10]]), tmp_path / "cache"
    for _ in range(2):
        opened(store, cache, check=True)
    (file,) = cache.rglob(name)
    content = file.read_bytes()
    file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    opened(store, cache)
    with pytest.raises(DataError, match=r"or was changed since, .* Remove the folder; it is made again"):
        opened(store, cache, check=True)
    if name == "tokens.npy":
        file.write_bytes(content[:-1])
        with pytest.raises(DataError, match=r"tokens.npy: cannot be read .* Remove the folder .* it is made again"):
            opened(store, cache)
    shutil.rmtree(file.parent)
    opened(store, cache, check=True)


def test_a_cache_that_was_made_of_a_damaged_store_is_noticed(tmp_path):
    store = write_store(tmp_path / "store", [[[4] * 1000]])
    path, dtype = store.path / "train.arrow", store.split("train").batch_values(0).dtype
    whole, times = path.read_bytes(), path.stat()
    damaged = whole.replace(np.full(1000, 4, dtype).tobytes(), np.full(1000, 5, dtype).tobytes())
    assert damaged != whole
    for content, check in ((damaged, False), (whole, True)):
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(DataError, match="so that what is trained on would not") if check else nullcontext():
            opened(TokenStore.open(store.path), tmp_path / "cache", check=check)


@pytest.mark.long
def test_processes_that_ask_at_once_see_whole_files(tmp_path):
    store = write_store(tmp_path / "store", [[[4] * 1000] * 50] * 20)
    expected = 20 * 50 * (4 * 1000 + BOS_ID + EOS_ID)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([sum_of_tokens.__module__])
    with context.Pool(4) as pool:
        found = pool.starmap(sum_of_tokens, [(store.path, tmp_path / "cache")] * 4)
    assert found == [expected] * 4

"""Sequences of users that are sampled one by one: the same that users keep, each of one user, and none beyond K."""

import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.participation.sampling import ExamplesParticipation
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.runs.outcome import statement_in
from fedlm.simulations.pretraining.batches.sequences_of_users import sequences_of_users
from fedlm.simulations.pretraining.private_steps import private_batches
from tests.simulations.pretraining import small_runs
from tests.simulations.pretraining.small_runs import PRIVATE, Interrupt
from tests.simulations.pretraining.small_stores import opened, write_store

CLIENTS = [[[1, 2, 3]] * 7, [], [[4, 5]], [[6, 7, 8, 9]] * 3]
MOST = 2


@pytest.fixture(params=["none", "packed"])
def users(request, tmp_path):
    store = write_store(tmp_path / "store", CLIENTS)
    options = {"unit": "user", "packing": request.param, "sequences_per_unit": MOST}
    return opened(store, tmp_path / "cache", 3, **options)


def test_what_is_drawn_is_what_users_keep_each_of_one_user_and_no_more_than_k(users):
    apart = sequences_of_users(users)
    everything = np.arange(apart.count)
    owners = apart.owners(everything)
    assert np.bincount(owners, minlength=users.count).tolist() == [
        int(present.sum()) for present in users._placed(np.arange(users.count))[2]
    ]
    assert np.bincount(owners).max() <= MOST
    together, single = users.sequences(np.arange(users.count)), apart.sequences(everything)
    place = everything - np.searchsorted(owners, owners)
    for whole, one in zip(together, single, strict=True):
        assert np.array_equal(np.asarray(whole)[owners, place], np.asarray(one)[:, 0])


def test_a_plan_for_fewer_examples_of_a_user_or_for_users_draws_no_batch(users):
    apart = sequences_of_users(users)

    def planned(examples):
        return central_plan(apart.count, 2, 3, 1.0, unit="user: two, in all steps", examples_per_user=examples)

    assert isinstance(planned(MOST).participation, ExamplesParticipation)
    drawn = private_batches(planned(MOST), apart, 2, 0)
    assert drawn.probability == planned(MOST).participation.sampling_probability
    for plan, units, size in ((planned(1), apart, 2), (planned(MOST), users, 2), (planned(MOST), apart, 3)):
        with pytest.raises(ValueError, match="under a plan of"):
            private_batches(plan, units, size, 0)


def test_other_units_and_settings_are_refused(small_store, tmp_path):
    by_examples = {"data": small_store, "model": "cifg_tiny", "sampling": "examples", **PRIVATE}
    for changes, words in (
        ({}, "sampling is examples, but unit is example"),
        ({"unit": "user", "mechanism": "banded"}, "but mechanism is banded"),
        ({"unit": "user", "truncated_batch_size": 9}, "does nothing with sampling examples"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            small_runs.train(tmp_path / "run", **by_examples | changes)


@pytest.mark.long
def test_a_run_promises_users_what_its_plan_comes_to_and_goes_on_to_the_same_bits(small_store, tmp_path):
    settings = {"data": small_store, "model": "cifg_tiny", "unit": "user", "sequences_per_unit": 3, "delta": 1e-5}
    settings |= {"sampling": "examples", **PRIVATE, "noise_seed": "entropy", "noise_multiplier": 2.0}
    with pytest.raises(KeyboardInterrupt):
        small_runs.train(tmp_path / "run", Interrupt(2), **settings)
    found = small_runs.train(tmp_path / "run", **settings)["privacy_guarantee"]
    assert found["assumptions"][0].startswith("training reads at most 3 examples of one user")
    assert statement_in(tmp_path / "run").as_json()["privacy_guarantee"] == found
    by_users = small_runs.train(tmp_path / "users", **settings | {"sampling": "poisson"})
    assert by_users["privacy_guarantee"]["epsilon"] != found["epsilon"]
    repeated = settings | {"noise_seed": "experiment"}
    whole = small_runs.train(tmp_path / "whole", **repeated)
    with pytest.raises(KeyboardInterrupt):
        small_runs.train(tmp_path / "cut", Interrupt(2), **repeated)
    assert small_runs.train(tmp_path / "cut", **repeated)["parameters_sha256"] == whole["parameters_sha256"]

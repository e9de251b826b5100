import argparse

import numpy as np

from benchmarks.privacy.memorization import COLOURS, PREFIXES, plot, pretraining, take_clients
from fedlm.simulations.data.store.token_store import TokenStore


def test_the_part_of_a_data_set_has_whole_clients(small_store, tmp_path):
    take_clients(small_store, tmp_path / "part", 7)
    whole, part = TokenStore.open(small_store), TokenStore.open(tmp_path / "part")
    assert part.fingerprint == whole.fingerprint
    assert part.split("train").num_clients == 7
    assert part.split("heldout").client_ids == whole.split("heldout").client_ids
    clients = whole.split("train").client_ids
    for index, name in enumerate(part.split("train").client_ids):
        found, expected = part.split("train").client(index), whole.split("train").client(clients.index(name))
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.lengths, expected.lengths)


def test_the_twins_differ_in_privacy_alone(tmp_path):
    arguments = argparse.Namespace(
        model="cifg_tiny", steps=5, batch_size=4, epsilon=8.0, delta=1e-5, canaries=3, options=["learning-rate=0.1"]
    )
    one, other = (set(pretraining(arguments, name, tmp_path, tmp_path)) for name in COLOURS)
    assert one - other == {"--privacy=none"}
    assert other - one == {"--epsilon=8.0", "--delta=1e-05", "--clipping=bookkeeping"}
    assert "--learning-rate=0.1" in one


def test_the_plot_shows_both_twins():
    rate = {"rate": 0.5, "low": 0.4, "high": 0.6}
    rows = [{"prefix": prefix, **{name: {"approximate": rate} for name in ("train", "heldout")}} for prefix in PREFIXES]
    canaries = {"by_repeats": [{"repeats": 4, "mean": 3.0}], "largest_by_rank": 11.0, "chance_mean": 1.44}
    run = {"memorization": {"extraction": rows, "canaries": canaries}}
    extraction, exposure = plot({"runs": dict.fromkeys(COLOURS, run)}).axes
    assert len(extraction.containers) == 4
    np.testing.assert_array_equal(extraction.containers[0].lines[0].get_ydata(), [50] * 3)
    assert [line.get_label() for line in exposure.get_lines() if not line.get_label().startswith("_")] == list(COLOURS)

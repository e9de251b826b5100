"""What noise of clients costs beside Gaussian noise, as measured, and as committed."""

import json

import pytest

from benchmarks.privacy.distributed_noise import BITS, RESULTS, error_of, prefix_error


def test_a_round_costs_little_more_than_gaussian_noise_and_as_much_more_as_fewer_survivors_need():
    row = error_of(20, 10, 10, 5.0, 1000)
    assert 0.9 < row["error_over_gaussian"] < 1.25
    fewer = error_of(20, 10, 5, 5.0, 1000)
    assert fewer["error_over_gaussian"] == pytest.approx(2**0.5 * row["error_over_gaussian_of_2_22"], rel=0.15)


def test_committed_measurements_are_of_what_is_there():
    record = json.loads((RESULTS / "distributed_noise.json").read_text(encoding="utf-8"))
    rows = [row for row in record["rounds"] if row["clients"] == row["least_survivors"] == 100]
    assert {row["bits"] for row in rows} == set(BITS)
    for row in rows:
        assert row["bits"] < 16 or (row["error_over_gaussian"] < 1.1 and row["error_over_gaussian_of_2_22"] < 1.1)
    assert prefix_error("gaussian", 4) in record["prefix_sums"]

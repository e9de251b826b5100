import json

from benchmarks.privacy.amplified_banded import MECHANISMS, RESULTS, plot


def test_committed_results_have_banded_noise_ahead_where_it_can_be_computed_and_can_be_drawn():
    record = json.loads((RESULTS / "amplified_banded.json").read_text())
    for found in record["errors"]:
        ratios = [one["banded"] / one["independent"] for one in found["at"]]
        assert sorted(ratios, reverse=True) == ratios
        assert ratios[-1] < 0.5 < ratios[0] < 1
    for mechanism in MECHANISMS:
        assert len(record["trainings"][mechanism]["test_loss"]) == len(record["settings"]["seeds"])
    assert [len(axes.lines) for axes in plot(record).axes] == [len(record["errors"]) + 1, len(MECHANISMS)]

import json

from benchmarks.privacy.private_vocabulary import PLAIN, RESULTS, plot


def test_committed_results_say_what_the_vocabularies_spent_and_can_be_drawn():
    record = json.loads((RESULTS / "private_vocabulary.json").read_text())
    for data in record["data"].values():
        found = data["vocabularies"]
        assert not found[PLAIN]["origin"]["covered"]
        costs = []
        for epsilon in record["settings"]["epsilons"]:
            private = found[f"{epsilon:g}"]
            assert private["origin"]["guarantee"]["epsilon"] == epsilon
            assert private["origin"]["guarantee"]["delta"] == record["settings"]["delta"]
            costs.append(private["bits_a_character"])
        # More privacy costs more.
        assert sorted(costs, reverse=True) == costs
        assert costs[-1] > found[PLAIN]["bits_a_character"]
    figure = plot(record)
    assert [len(axes.lines) for axes in figure.axes] == [2 * len(record["data"])] * 2

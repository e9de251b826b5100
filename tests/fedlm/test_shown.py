"""What prompts and notebooks show of objects: a short line, a small table, and no warning of a library."""

import pytest

import fedlm
from fedlm.simulations.comparisons.cells import Cell, CellResult
from fedlm.simulations.evaluation.trained_models import TrainedModel


@pytest.fixture
def objects(small_store):
    """Objects that a program holds, by what they are, with what their lines say."""
    store = fedlm.TokenStore.open(small_store)
    model = fedlm.create_model("cifg_tiny", store.vocabulary_size)
    params = {"table": list(range(10_000))}
    summary = {"status": "finished", "rounds": 3, "test_loss": 4.25, "parameters": 12_345, "privacy": "NOT PRIVATE"}
    summary |= {"experiment": {f"setting{number}": number for number in range(200)}}
    experiment = fedlm.compose(fedlm.Experiment, model="cifg_tiny", data=small_store)
    clients = {f"user {number}": ["the cat sat"] for number in range(40)}
    settings = {"model": "cifg_tiny", "length": 4} | summary["experiment"]
    trained = TrainedModel(small_store, "simulate", settings, model, "float32", params, 3, store.tokenizer, store)
    guarantee = {"privacy": "epsilon 2 ...", "privacy_guarantee": {"epsilon": 2}}
    return {
        "store": (store, f"TokenStore(path='{small_store}', vocabulary_size=120, clients={{'train': "),
        "memory": (fedlm.DataInMemory.from_texts(clients), "DataInMemory(vocabulary_size="),
        "run": (
            fedlm.FinishedRun(summary, [{"round": n} for n in range(3)], model, lambda: params),
            "FinishedRun(model='cifg_tiny', status='finished', rounds=3, test_loss=4.25, privacy='NOT PRIVATE')",
        ),
        "private run": (fedlm.FinishedRun(summary | guarantee, [], model, lambda: params), "privacy='see .privacy')"),
        "round": (fedlm.FinishedRound({"round": 2} | summary, 9, params), "FinishedRound(round=2, rounds=9, params="),
        "trained": (trained, f"TrainedModel(folder='{small_store}', of='simulate', model='cifg_tiny', steps=3, data="),
        "model": (model, "Model(name='cifg_tiny', vocabulary_size=120, objective='causal')"),
        "tokenizer": (store.tokenizer, "Tokenizer(vocabulary_size=120, fingerprint='"),
        "cell": (CellResult(Cell(experiment, small_store), summary, []), "CellResult(model='cifg_tiny', folder="),
    }


CELLS = {
    "store": ("train", "heldout", "test", "clients", "examples", "tokens"),
    "memory": ("train", "heldout", "test", "clients", "examples"),
    "run": ("cifg_tiny", "finished", "12,345", "4.25", "NOT PRIVATE"),
    "private run": ("epsilon 2 ...",),
    "trained": ("cifg_tiny", "simulate", "steps"),
}


def test_a_line_is_short_and_says_what_it_is_and_a_notebook_shows_a_small_table(objects):
    for shown, said in objects.values():
        assert said in repr(shown)
        assert len(repr(shown)) < 300
        assert len(repr(shown).splitlines()) == 1
    for kind, cells in CELLS.items():
        table = objects[kind][0]._repr_html_()
        assert table.startswith("<table>")
        assert len(table) < 2000
        assert not [cell for cell in cells if f">{cell}</t" not in table]

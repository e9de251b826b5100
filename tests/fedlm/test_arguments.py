"""Mistakes of who calls the public functions are errors that name the argument, and paths are texts or paths."""

import inspect
import os
import sys
import typing
from functools import partial
from pathlib import Path

import pytest

import fedlm
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.sources.in_memory import InMemoryText

TEXTS = {f"user {number}": ["the cat sat", "a dog ran to the cat"] for number in range(30)}
PLAN = {
    "mechanism": "gaussian",
    "rounds": 10,
    "noise_multiplier": 4.0,
    "participation": BoundedParticipation(max_participations=1),
    "own": None,
    "coefficients": (),
    "unit": "client: all examples",
    "adjacency": None,
    "noise_cohort": None,
}
MODEL = fedlm.create_model("cifg_tiny", vocabulary_size=40)
TOKENIZER = fedlm.Tokenizer.train({"cat": 3, "dog": 2})
EXPERIMENT = fedlm.compose(fedlm.Experiment, model="cifg_tiny", data="nothing")
COMPARISON = fedlm.compose(fedlm.Comparison, models=("cifg_tiny",), data="nothing")
SOURCE = InMemoryText([ClientText(client, texts) for client, texts in TEXTS.items()])
IN_MEMORY = {"clients": TEXTS, "heldout": None, "test": None, "vocabulary_origin": None, "seed": 0}

CALLS = {
    "account": (fedlm.account, {"plan": fedlm.PrivacyPlan(**PLAN), "delta": 1e-6, "generations": None}),
    "calibrate": (fedlm.calibrate, {"with_noise": abs, "delta": 1e-6, "epsilon": 1.0, "rho": None}),
    "create_model": (
        fedlm.create_model,
        {"name": "cifg_tiny", "vocabulary_size": 40, "special_tokens": None, "parameter_errors": None},
    ),
    "evaluate": (fedlm.evaluate, {"model": MODEL, "params": None, "batches": []}),
    "import_text": (
        fedlm.import_text,
        {
            **{"name": "made up", "source": SOURCE, "out": "store", "settings": None, "overwrite": False},
            **{"workers": 1, "progress": print},
        },
    ),
    "LocalProcesses": (fedlm.LocalProcesses, {"workers": 1, "cores": None}),
    "language_model": (
        fedlm.language_model,
        {
            **{"name": "mine", "vocabulary_size": 9, "init": abs, "apply": abs},
            "special_tokens": MODEL.special_tokens,
        },
    ),
    "named": (fedlm.named, {"name": "mine", "object": 3}),
    "open_model": (fedlm.open_model, {"directory": "nothing", "data": None}),
    "parameter_count": (fedlm.parameter_count, {"model": MODEL}),
    "run_comparison": (
        fedlm.run_comparison,
        {"comparison": COMPARISON, "out": "out", "executor": fedlm.LocalProcesses(1), "observe": print},
    ),
    "run_experiment": (
        fedlm.run_experiment,
        {"experiment": EXPERIMENT, "out": "out", "observe": print, "save_client_scores": False, "brought": ()},
    ),
    "simulate": (
        fedlm.simulate,
        {
            **{"model": "cifg_tiny", "data": "nothing", "out": None, "client_algorithm": "sgd"},
            **{"server_optimizer": "fedadam", "cohort_sampler": "uniform", "evaluation": None, "callbacks": ()},
        },
    ),
    "write_report": (fedlm.write_report, {"comparison": COMPARISON, "results": [], "out": "out", "command": ""}),
    "DataInMemory.from_texts": (fedlm.DataInMemory.from_texts, IN_MEMORY | {"vocabulary": None}),
    "DataInMemory.from_tokens": (fedlm.DataInMemory.from_tokens, IN_MEMORY | {"vocabulary_size": 40}),
    "DataInMemory.from_rows": (fedlm.DataInMemory.from_rows, IN_MEMORY | {"vocabulary_size": 40}),
    "TokenStore.open": (fedlm.TokenStore.open, {"path": "nothing"}),
    "Tokenizer": (fedlm.Tokenizer, {"definition": {}}),
    "Tokenizer.train": (
        fedlm.Tokenizer.train,
        {
            **{"words": {"cat": 1}, "settings": fedlm.ImportSettings(vocabulary_size=40)},
            **{"words_are_separated": False, "characters": ""},
        },
    ),
    "Tokenizer.load": (fedlm.Tokenizer.load, {"path": "nothing"}),
    "Tokenizer.save": (TOKENIZER.save, {"path": "nothing"}),
    "Tokenizer.encode_batch": (TOKENIZER.encode_batch, {"texts": ["cat"]}),
    "Tokenizer.decode": (TOKENIZER.decode, {"ids": [4]}),
    "EarlyStopping": (fedlm.EarlyStopping, {"metric": "heldout_loss", "patience": 1, "smaller_is_better": True}),
    "MlflowCallback": (fedlm.MlflowCallback, {"experiment_name": "mine"}),
    "FedProx": (fedlm.FedProx, {"mu": 0.1}),
    "LocalAdam": (fedlm.LocalAdam, {"beta1": 0.9, "beta2": 0.9, "epsilon": 1e-8}),
    "MimeLite": (fedlm.MimeLite, {"momentum": 0.9}),
    "Model": (fedlm.Model, {name: getattr(MODEL, name) for name in MODEL.__dataclass_fields__}),
    "PrivacyPlan": (fedlm.PrivacyPlan, PLAN),
    "UniformSampler": (fedlm.UniformSampler, {"num_clients": 9, "cohort_size": 3, "seed": 0}),
}
"""Public functions, what makes objects, and arguments that fit."""

CHECKED_BY_SETTINGS = {"compose", "with_changes", "Comparison", "Experiment", "ImportSettings"}
"""Take settings, of which `tests/fl_core/test_composed_settings.py` tests the types."""

NOT_CALLED = {
    *("Batch", "CohortAggregate", "ExampleSums", "FinishedRound", "FinishedRun", "Guarantee", "LocalGradient"),
    *("ModelEntry", "RoundPlan", "Scores", "TrainedModel", "UserError", "CheckpointError", "ConfigurationError"),
    *("DataError", "Callback", "ClientAlgorithm", "CohortSampler", "Sgd", "WandbCallback", "DataInMemory"),
    "TokenStore",
}
"""Made by fedlm itself, derived from, or without an argument of their own."""

ANYTHING = {("evaluate", "params"), ("named", "object")}


class Thing:
    """Of no use to anybody."""


def test_the_table_has_the_whole_face():
    public = {name for name in fedlm.__all__ if callable(getattr(fedlm, name))}
    assert public == {name.partition(".")[0] for name in CALLS} - {"TokenStore", "DataInMemory"} | (
        CHECKED_BY_SETTINGS | NOT_CALLED
    )
    for name, (function, arguments) in CALLS.items():
        parameters = inspect.signature(function).parameters.values()
        expected = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
        assert expected == set(arguments), name


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, argument) for name, (_, arguments) in CALLS.items() for argument in arguments],
)
def test_a_wrong_argument_is_named(name, argument, tmp_path, monkeypatch):
    if (name, argument) in ANYTHING:
        pytest.skip("anything fits")
    monkeypatch.chdir(tmp_path)
    if name == "MlflowCallback":
        monkeypatch.setitem(sys.modules, "mlflow", object())
    function, arguments = CALLS[name]
    for wrong in (Thing(), b"bytes", Thing):
        if wrong is Thing and argument in ("with_noise", "init", "apply", "loss", "observe", "progress", "model"):
            continue  # a class can be called
        if wrong is Thing and argument in ("with_frozen", "with_dropout", "evaluation", "server_optimizer"):
            continue
        if wrong == b"bytes" and argument == "seed" and name == "UniformSampler":
            continue
        with pytest.raises(fedlm.UserError) as caught:
            function(**arguments | {argument: wrong})
        assert str(caught.value).startswith(f"{argument} is "), caught.value
        option = argument.replace("_", "-")
        assert caught.value.for_command_line().startswith(f"--{option} is ")
    assert not list(tmp_path.iterdir())


MISTAKES = {
    "unknown model 'cifg_tinny'; did you mean cifg_tiny": lambda: fedlm.create_model("cifg_tinny"),
    "vocabulary_size is 0, but must be at least 1": lambda: fedlm.create_model("cifg_tiny", 0),
    "nowhere: there is no such folder": lambda: fedlm.open_model("nowhere"),
    "vocabulary_sise": lambda: fedlm.DataInMemory.from_texts(TEXTS, vocabulary_sise=40),
    "client 'ann'": lambda: fedlm.DataInMemory.from_texts({"ann": 3}),
    "client 'ben'": lambda: fedlm.DataInMemory.from_tokens({"ben": 3}, 9),
    "client 'eva'": lambda: fedlm.DataInMemory.from_rows({"eva": "x"}, 9),
    "has no split 'trian'": lambda: fedlm.DataInMemory.from_texts(TEXTS, vocabulary_size=40).split("trian"),
    "roundz": lambda: fedlm.with_changes(EXPERIMENT, roundz=3),
    "kind is 3": lambda: fedlm.compose(3, model="cifg_tiny"),
    "round_number is 'x'": lambda: fedlm.UniformSampler(9, 3, 0).sample("x"),
}
OF_SIMULATIONS = {
    "data is a list of str, but must be text, a path": {"data": ["a", "b"]},
    "callbacks is a EarlyStopping, but must be a list of Callback": {"callbacks": fedlm.EarlyStopping()},
    "callbacks is a list of int": {"callbacks": [3]},
    "out is 5, but must be text, a path or None": {"out": 5},
    "rounds is 'two', but must be a whole": {"rounds": "two"},
    "adamm": {"server_optimizer": "adamm"},
    "sgdd": {"client_algorithm": "sgdd"},
    "cohort_sampler is 'unifrom'": {"cohort_sampler": "unifrom"},
}


SIMULATED = {"model": "cifg_tiny", "data": "x"}
MISTAKES |= {said: partial(fedlm.simulate, **SIMULATED | wrong) for said, wrong in OF_SIMULATIONS.items()}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_wrong_value_is_a_mistake_of_the_user(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedlm.UserError) as caught:
        MISTAKES[said]()
    assert said in str(caught.value)


class Place(os.PathLike):
    """A path of a library of its own."""

    def __init__(self, path):
        self.path = str(path)

    def __fspath__(self):
        return self.path


@pytest.mark.long
def test_a_path_is_whatever_names_one_everywhere(tmp_path):
    tokenizer, folder, run = (Place(tmp_path / name) for name in ("tokenizer.json", "store", "run"))
    TOKENIZER.save(tokenizer)
    assert fedlm.Tokenizer.load(tokenizer).fingerprint == TOKENIZER.fingerprint
    assert fedlm.DataInMemory.from_texts(TEXTS, vocabulary=tokenizer).fingerprint == TOKENIZER.fingerprint
    fedlm.import_text("made up", SOURCE, folder, fedlm.ImportSettings(vocabulary=tokenizer), workers=1)
    store = fedlm.TokenStore.open(folder)
    assert store.fingerprint == TOKENIZER.fingerprint
    small = {"model": "cifg_tiny", "data": folder, "rounds": 1, "cohort_size": 2, "length": 4}
    fedlm.simulate(out=run, **small)
    assert fedlm.open_model(run, folder).model.vocabulary_size == store.vocabulary_size
    assert fedlm.compose(fedlm.Experiment, init_from=run, **small).data == store.path


def test_every_path_of_the_face_may_be_a_text_or_a_path():
    """What is annotated as a path is one for texts and for all that `os.fspath` takes."""
    for name, (function, _) in CALLS.items():
        function = getattr(function, "__wrapped__", function)
        for argument, hint in typing.get_type_hints(getattr(function, "__func__", function)).items():
            parts = typing.get_args(hint) or (hint,)
            assert argument == "return" or Path not in parts, f"{name}: {argument} takes Path, expected StrPath"

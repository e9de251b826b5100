"""Mistakes of who calls the public functions are errors that name the argument, and paths are texts or paths."""

import inspect
import os
import sys
import typing
from pathlib import Path

import numpy as np
import pytest

import fedlm
from fedlm.fl_core.privacy.participation import BoundedParticipation
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.sources.in_memory import InMemoryText

pytestmark = pytest.mark.usefixtures("quick_compilation")

TEXTS = {f"user {number}": ["the cat sat", "a dog ran to the cat"] for number in range(30)}
PLAN = {
    "mechanism": "gaussian",
    "rounds": 10,
    "noise_multiplier": 4.0,
    "participation": BoundedParticipation(max_participations=1),
    "restart_every": None,
    "complete_trees": False,
    "coefficients": (),
    "unit": "client: all examples",
    "adjacency": None,
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
        {"experiment": EXPERIMENT, "out": "out", "observe": print, "save_client_scores": False, "tuning": None},
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
    *(
        "DataError",
        "Callback",
        "ClientAlgorithm",
        "CohortSampler",
        "Sgd",
        "WandbCallback",
        "DataInMemory",
        "TokenStore",
    ),
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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fedlm.create_model("cifg_tinny"), "unknown model 'cifg_tinny'; did you mean cifg_tiny"),
        (lambda: fedlm.simulate(model="cifg_tinny", data="x"), "unknown model 'cifg_tinny'"),
        (lambda: fedlm.simulate(model="cifg_tiny", data=["a", "b"]), "data is a list of str, but must be text, a path"),
        (
            lambda: fedlm.simulate(model="cifg_tiny", data="x", callbacks=fedlm.EarlyStopping()),
            "callbacks is a EarlyStopping, but must be a list of Callback",
        ),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", callbacks=[3]), "callbacks is a list of int"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", evaluation=3), "evaluation is 3, but must be a function"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", out=5), "out is 5, but must be text, a path or None"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", rounds="two"), "rounds is 'two', but must be a whole"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", server_optimizer="adamm"), "adamm"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", client_algorithm="sgdd"), "sgdd"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="x", cohort_sampler="unifrom"), "cohort_sampler is 'unifrom'"),
        (lambda: fedlm.simulate(model="cifg_tiny", data="nowhere"), "nowhere"),
        (lambda: fedlm.create_model("cifg_tiny", 0), "vocabulary_size is 0, but must be at least 1"),
        (lambda: fedlm.open_model("nowhere"), "nowhere: there is no such folder"),
        (lambda: fedlm.DataInMemory.from_texts(TEXTS, vocabulary_sise=40), "vocabulary_sise"),
        (lambda: fedlm.DataInMemory.from_texts(TEXTS, vocabulary_size="x"), "vocabulary_size is 'x'"),
        (lambda: fedlm.DataInMemory.from_texts({"ann": 3}), "client 'ann'"),
        (lambda: fedlm.DataInMemory.from_tokens({"ann": 3}, 9), "client 'ann'"),
        (lambda: fedlm.DataInMemory.from_tokens({"ann": [[4]]}, 0), "vocabulary_size is 0"),
        (lambda: fedlm.DataInMemory.from_rows({"ann": "x"}, 9), "client 'ann'"),
        (
            lambda: fedlm.DataInMemory.from_texts(TEXTS, vocabulary_size=40).split("trian"),
            "data in memory: has no split 'trian'",
        ),
        (lambda: fedlm.compose(fedlm.Experiment, model="cifg_tiny", data="x", roundz=3), "roundz"),
        (lambda: fedlm.compose(fedlm.Experiment, model="cifg_tiny"), "data"),
        (lambda: fedlm.with_changes(EXPERIMENT, roundz=3), "roundz"),
        (lambda: fedlm.compose(3, model="cifg_tiny"), "kind is 3"),
        (lambda: fedlm.UniformSampler(9, 3, 0).sample("x"), "round_number is 'x'"),
    ],
)
def test_a_wrong_value_is_a_mistake_of_the_user(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedlm.UserError) as caught:
        call()
    assert said in str(caught.value)


class Place(os.PathLike):
    """A path of a library of its own."""

    def __init__(self, path):
        self.path = str(path)

    def __fspath__(self):
        return self.path


@pytest.mark.long
def test_a_path_is_whatever_names_one_everywhere(tmp_path):
    as_path = Place
    TOKENIZER.save(as_path(tmp_path / "tokenizer.json"))
    assert fedlm.Tokenizer.load(as_path(tmp_path / "tokenizer.json")).fingerprint == TOKENIZER.fingerprint
    data = fedlm.DataInMemory.from_texts(TEXTS, vocabulary=as_path(tmp_path / "tokenizer.json"))
    assert data.fingerprint == TOKENIZER.fingerprint
    settings = fedlm.ImportSettings(vocabulary=as_path(tmp_path / "tokenizer.json"))
    fedlm.import_text("made up", SOURCE, as_path(tmp_path / "store"), settings, workers=1)
    store = fedlm.TokenStore.open(as_path(tmp_path / "store"))
    assert store.fingerprint == TOKENIZER.fingerprint
    small = {"rounds": 1, "cohort_size": 2, "length": 4}
    fedlm.simulate(model="cifg_tiny", data=as_path(tmp_path / "store"), out=as_path(tmp_path / "run"), **small)
    trained = fedlm.open_model(as_path(tmp_path / "run"), as_path(tmp_path / "store"))
    begun = fedlm.compose(
        *(fedlm.Experiment,),
        **{"model": "cifg_tiny", "data": as_path(tmp_path / "store"), "init_from": as_path(tmp_path / "run"), **small},
    )
    assert begun.data == store.path
    fedlm.run_experiment(begun, as_path(tmp_path / "again"))
    assert fedlm.open_model(as_path(tmp_path / "again")).model.vocabulary_size == trained.model.vocabulary_size


def test_every_path_of_the_face_may_be_a_text_or_a_path():
    """What is annotated as a path is one for texts and for all that `os.fspath` takes."""
    for name, (function, _) in CALLS.items():
        function = getattr(function, "__wrapped__", function)
        for argument, hint in typing.get_type_hints(getattr(function, "__func__", function)).items():
            parts = typing.get_args(hint) or (hint,)
            assert argument == "return" or Path not in parts, f"{name}: {argument} takes Path, expected StrPath"


def test_numbers_of_numpy_fit():
    assert fedlm.EarlyStopping(patience=np.int64(2)).patience == 2
    assert fedlm.FedProx(mu=np.float32(0.5)).mu == 0.5

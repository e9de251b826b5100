"""The life of a run asks its capabilities, and knows none by name."""

import re
from pathlib import Path
from typing import ClassVar

import pytest

from fedlm.fl_core.runs.capabilities.interface import Capability, Ended, Opening
from fedlm.fl_core.runs.capabilities.run_capabilities import Capabilities
from fedlm.fl_core.runs.identity import Fact

REPOSITORY = Path(__file__).parents[3]
LIVES = (
    "fl_core/rounds/round_loop.py",
    "fl_core/runs/driver.py",
    "fl_core/runs/federated_training.py",
    "fl_core/runs/identity.py",
    "fl_core/deployment/server/training.py",
    "simulations/experiments/preparation.py",
    "simulations/experiments/experiment.py",
    "simulations/experiments/simulated_run.py",
    "simulations/pretraining/preparing.py",
    "simulations/pretraining/run.py",
)
NAMES = re.compile(
    "lora|adapter|relevance|reattention|canar|audit|selection|init_from|initial_parameters|own_parts|bounded_norms",
    re.I,
)
OPENING = Opening(settings=None, private=False, secret=True, vocabulary="words")
ENDED = Ended(None, lambda: None, lambda: None, 1e-6)


class Begins(Capability):
    facts: ClassVar = {"first": Fact(None, "first parameters")}
    unsaid: ClassVar = {"first": None}

    @classmethod
    def of(cls, opening):
        return cls()

    def first(self, params):
        return [*params, "begun"]

    def fingerprints(self):
        return {"first": "abc"}

    def summary(self, ended):
        return {"first": "abc"}


class BeginsBeside(Begins):
    def opened(self, opening):
        return Opening(settings=None, private=False, secret=True, vocabulary="words", trained_by="a setting")

    def first(self, params):
        return params

    def frozen(self, like, folder):
        return {"kept": like}

    def whole(self, frozen, trained):
        return [*frozen["kept"], *trained]


class Absent(Capability):
    facts: ClassVar = {"constants": Fact(None, "constants")}
    unsaid: ClassVar = {"audit": None}


class Listens(Capability):
    def __init__(self, heard):
        self.heard = heard

    @classmethod
    def of(cls, opening):
        return cls(opening.trained_by)

    def first(self, params):
        return [*params, self.heard]


def test_the_life_of_a_run_knows_no_capability_by_name():
    lines = [line for module in LIVES for line in (REPOSITORY / module).read_text().splitlines()]
    assert [line for line in lines if NAMES.search(line)] == []


def test_of_a_kind_and_a_special_form_of_it_a_run_has_the_first():
    kinds = (BeginsBeside, Begins, Listens)
    found = Capabilities.read(kinds, OPENING)
    assert found.first(["fresh"]) == ["fresh", "a setting"]
    frozen = found.frozen(["base"], Path())
    assert found.whole(frozen, ["trained"]) == ["base", "trained"]
    plain = Capabilities.read(kinds[1:], OPENING)
    assert plain.first(["fresh"]) == ["fresh", "begun", None]
    assert plain.frozen(["base"], Path()) == ()
    assert plain.whole((), ["trained"]) == ["trained"]


def test_what_a_run_has_not_is_said_too():
    found = Capabilities.read((Begins, Absent), OPENING)
    assert {name: fact.value for name, fact in found.named_facts().items()} == {"first": "abc", "constants": None}
    assert found.summary(ENDED) == {"first": "abc", "audit": None}
    nothing = Capabilities.read((Absent,), OPENING)
    assert nothing.summary(ENDED) == {"audit": None}
    assert (nothing.law(), nothing.undoes(), nothing.drops(), nothing.about()) == (None, False, False, {})


def test_what_a_program_brings_comes_first_and_may_refuse():
    class Refuses(Capability):
        def opened(self, opening):
            raise ValueError("does not fit")

    brought = Listens("brought")
    opening = Opening(settings=None, private=False, secret=True, vocabulary="words", brought=(brought,))
    assert Capabilities.read((Listens, Begins), opening).first([]) == ["brought", "begun"]
    with pytest.raises(ValueError, match="does not fit"):
        Capabilities.read((), Opening(settings=None, private=False, secret=True, vocabulary="w", brought=(Refuses(),)))

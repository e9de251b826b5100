"""Every entry of every registry is in a case, so that a new one is noticed."""

from typing import get_args

import pytest

from fedlm.command_line.command_tree import COMMANDS
from fedlm.fl_core.client_algorithms.registry import CLIENT_ALGORITHMS
from fedlm.fl_core.clipping.methods import MethodName
from fedlm.fl_core.privacy.mechanisms.registry import MECHANISMS
from fedlm.fl_core.rounds.server_optimizers import SERVER_OPTIMIZERS
from fedlm.fl_core.updates.registry import COMPRESSIONS
from fedlm.models.model_files import ARCHITECTURES
from fedlm.models.registry import MODELS, find_entry
from fedlm.simulations.data.exports.registry import EXPORTS
from fedlm.simulations.data.sources.registry import SOURCES
from fedlm.simulations.engine.cohort_settings import CohortSamplerName
from tests.golden.cases import CASES

# What cases have without its name: by default, or as a number of bits.
DEFAULTS = {"sgd", "fedadam", "uniform", "uniform4", "float32"}
# What they have not: what it says hangs on the moment.
LEFT_OUT = {"audit", "status"}
WORDS = {word for case in CASES if case.name != "mistakes" for line in case.lines for word in line.split()}


@pytest.mark.parametrize(
    "names",
    [
        CLIENT_ALGORITHMS,
        COMMANDS,
        COMPRESSIONS,
        EXPORTS,
        MECHANISMS,
        SERVER_OPTIMIZERS,
        SOURCES,
        get_args(MethodName),
        get_args(CohortSamplerName),
    ],
    ids=lambda names: next(iter(names)),
)
def test_a_case_has_each_name(names):
    without = sorted(set(names) - WORDS - DEFAULTS - LEFT_OUT)
    assert not without, f"{', '.join(without)}: no command of tests/golden/cases.txt has this name; add one"


def test_a_case_has_a_model_of_each_architecture():
    built = {find_entry(word).build for word in WORDS if word in MODELS or word.startswith("transformer_")}
    without = [name for name, architecture in ARCHITECTURES.items() if architecture.build not in built]
    assert not without, f"{', '.join(without)}: no command of tests/golden/cases.txt has such a model; add one"


def test_cases_have_names_of_their_own_and_come_after_what_they_need():
    before = set()
    for case in CASES:
        assert case.name not in before
        assert before.issuperset(case.needs), case.name
        before.add(case.name)

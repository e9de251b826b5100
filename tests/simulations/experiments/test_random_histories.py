"""Random histories of what an operator does with private runs: whatever they are told is at least what was released.

All is what users have, but for training: cohorts add nothing, and each draw of noise is a coordinate of its own, so
that it can be read who was in which sum with which noise.
"""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedlm.fl_core.errors import UserError
from fedlm.fl_core.privacy import joint_statement, private_rounds, statement
from fedlm.fl_core.privacy.mechanisms.strategy import StrategyMechanism
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE
from fedlm.fl_core.privacy.participation.sampling import PoissonParticipation
from fedlm.fl_core.privacy.promise.guarantee import account
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.runs.capabilities import data_budget, warm_start
from fedlm.fl_core.runs.private_releases import PrivateReleases
from fedlm.fl_core.runs.statements.publishing import STATEMENT_FILE, publish
from fedlm.simulations.data.client_text import ClientText
from fedlm.simulations.data.store.writer import StoreWriter
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from tests.simulations.data.made_up_store import import_made_up
from tests.support.plain_runs import run
from tests.support.properties import costly
from tests.support.released_sums import least_epsilon
from tests.support.watched_runs import MODEL, Begun, KilledError, Watched

RUN = {
    "model": MODEL,
    "cohort_size": 4,
    "length": 8,
    "heldout_examples": 2,
    "test_examples": 2,
    "server_optimizer": "fedavg",
    "server_learning_rate": 1.0,
    "update_clip_norm": 0.5,
    "delta": 1e-5,
}
NO_PRIVACY = {"privacy": "none", **dict.fromkeys(("noise_multiplier", "delta", "noise_cohort_size"))}
NO_PRIVACY |= {"noise_seed": "entropy"}
BOUNDED = {"cohort_sampler": "min_separation", "min_separation": 2}
PRIVACY = [
    {"privacy": "gaussian", "cohort_sampler": "poisson"},
    {"privacy": "gaussian", **BOUNDED},
    {"privacy": "gaussian", **BOUNDED, "clip_quantile": 0.5, "clip_count_noise": 2.5},
    {"privacy": "gaussian", "cohort_sampler": "shuffled_epochs"},
    {"privacy": "tree", **BOUNDED},
    {"privacy": "tree_honaker", **BOUNDED, "max_participations": 2},
    {"privacy": "banded", **BOUNDED, "bands": 2},
]
CROWDS = {"here": range(12), "fewer": range(3, 12), "others": range(6, 18), "strangers": range(40, 52)}
KILLS = st.none() | st.integers(0, 30)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Data sets of several crowds with one vocabulary."""
    folder, given = tmp_path_factory.mktemp("crowds"), None
    for name, crowd in CROWDS.items():
        texts = [ClientText(f"client{number}", ["alpha beta gamma", "delta"], "train") for number in crowd]
        texts += [ClientText(split, ["alpha beta"], split) for split in ("heldout", "test")]
        import_made_up(folder / name, texts, **({"vocabulary": given} if given else {}))
        given = given or folder / name / "tokenizer.json"
    return folder


class Operator(RuleBasedStateMachine):
    """What one operator does, and what they are told after each thing."""

    stores: Path
    counts: Counter

    def __init__(self):
        super().__init__()
        # In memory, where that is a folder: checkpoints are synced, which takes most of the time.
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="history-", dir=shared))
        self.runs, self.told, self.held, self.seams = [], {}, {}, contextlib.ExitStack()
        self.watched = Watched()
        self.seams.enter_context(self.watched.runs())

    def teardown(self):
        self.seams.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def import_data(self):
        for crowd in CROWDS:
            self._put(crowd, self.folder / crowd)

    @rule(
        crowd=st.sampled_from(list(CROWDS)),
        privacy=st.sampled_from([NO_PRIVACY, *PRIVACY, *PRIVACY]),
        noise=st.sampled_from([1.0, 2.0]),
        rounds=st.integers(1, 6),
        every=st.integers(1, 3),
        seeds=st.sampled_from(["entropy"] * 9 + ["experiment"]),
        cohort=st.sampled_from([None] * 9 + [40]),
        kill=KILLS,
    )
    def begin(self, crowd, privacy, noise, rounds, every, seeds, cohort, kill):
        private = {"noise_multiplier": noise, "noise_seed": seeds, "noise_cohort_size": cohort}
        settings = RUN | {"data": self.folder / crowd, "rounds": rounds, "checkpoint_every": every}
        self._first(Begun(self.folder / f"run{len(self.runs)}", settings | private | privacy), kill)

    @rule(
        parent=st.integers(0, 9),
        crowd=st.sampled_from(list(CROWDS)),
        privacy=st.sampled_from(PRIVACY),
        word=st.sampled_from(["same", "true", "true", "true", "public"]),
        kill=KILLS,
    )
    @precondition(lambda self: self.runs)
    def begin_with_parameters(self, parent, crowd, privacy, word, kill):
        parent = self._any(parent)
        behind = _people(parent.seen)
        if word == "true":
            word = "same" if behind & self._people_in(self.folder / crowd) else "disjoint" if behind else "public"
        settings = RUN | {"data": self.folder / crowd, "rounds": 2, "noise_multiplier": 1.0, "noise_seed": "entropy"}
        settings |= privacy | {"init_from": parent.folder, "initial_data": word}
        self._first(Begun(self.folder / f"run{len(self.runs)}", settings, parent=parent), kill)

    @rule(number=st.integers(0, 9), kill=KILLS)
    @precondition(lambda self: self.runs)
    def go_on(self, number, kill):
        self._command(self._any(number), kill)

    @rule(number=st.integers(0, 9), crowd=st.sampled_from(list(CROWDS)), kill=KILLS)
    @precondition(lambda self: self.runs)
    def go_on_with_other_data(self, number, crowd, kill):
        begun = self._any(number)
        with contextlib.suppress(UserError):
            StoreWriter.check(begun.settings["data"], overwrite=True)
            self._put(crowd, begun.settings["data"])
        self._command(begun, kill)

    @rule(number=st.integers(0, 9), more=st.integers(1, 2), kill=KILLS)
    @precondition(lambda self: self.runs)
    def ask_for_more_rounds(self, number, more, kill):
        begun = self._any(number)
        begun.settings["rounds"] += more
        self._command(begun, kill)

    @rule(number=st.integers(0, 9), both=st.booleans(), kills=st.tuples(KILLS, KILLS))
    @precondition(lambda self: self.runs)
    def copy(self, number, both, kills):
        begun = self._any(number)
        if not begun.folder.exists():
            return
        own = {"settings": dict(begun.settings), "people": set(begun.people), "seen": set(begun.seen)}
        copied = dataclasses.replace(begun, folder=self.folder / f"run{len(self.runs)}", budgets=set(), **own)
        shutil.copytree(begun.folder, copied.folder)
        self.runs.append(copied)
        for one, kill in zip([begun, copied] if both else [copied], kills, strict=False):
            self._command(one, kill)

    @rule(number=st.integers(0, 9))
    @precondition(lambda self: self.runs)
    def lose_a_checkpoint(self, number):
        checkpoints = self._any(number).folder / "checkpoints"
        found = sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isdecimal())
        if found:
            shutil.rmtree(checkpoints / str(found[-1]))

    @rule(crowd=st.sampled_from(list(CROWDS)), epsilon=st.sampled_from([5.0, 10.0, 25.0]))
    def give_a_budget(self, crowd, epsilon):
        with contextlib.suppress(UserError):
            data_budget.DataBudget.set(self.folder / crowd, epsilon, 1e-5)

    def _first(self, begun, kill):
        self.runs.append(begun)
        self._command(begun, kill)

    def _any(self, number):
        return self.runs[-1 - number % len(self.runs)]

    def _put(self, crowd, data):
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(self.stores / crowd, data)
        self.held[data] = crowd

    def _people_in(self, data):
        return {f"client{number}" for number in CROWDS[self.held[data]]}

    def _command(self, begun, kill):
        self.watched.begin(begun, kill)
        if begun.parent is not None and not begun.has_begun():
            here = self._people_in(begun.settings["data"])
            behind, word = _people(begun.parent.seen), begun.settings["initial_data"]
            wrong = {"public": behind, "disjoint": behind & here}.get(word, set())
            begun.lied = begun.parent.lied or bool(wrong)
        before, data = len(begun.seen), begun.settings["data"]
        try:
            run(begun.settings, begun.folder)
            self.counts["ended"] += 1
        except KilledError:
            self.counts["killed"] += 1
        except UserError:
            self.counts["refused"] += 1
        finally:
            self.watched.moments = None
        if len(begun.seen) > before and (data / BUDGET_FILE).exists():
            begun.budgets.add(data)

    @invariant()
    def what_is_stated_of_a_run_is_true(self):
        for begun in self.runs:
            path = begun.folder / "privacy" / "ledger.jsonl"
            if not begun.has_begun():
                continue
            ledger = PrivacyLedger(path)
            if self.told.get(path) == (said := (tuple(ledger.hashes), len(begun.seen), begun.lied)):
                continue
            self.told[path] = said
            self._is_enough([begun], statement.state(ledger).as_json()["privacy_guarantee"])
            if not isinstance(ledger.plan.participation, PoissonParticipation):
                most = account(ledger.plan, ledger.delta).epsilon
                assert statement.state(ledger).own.epsilon <= most * (1 + 1e-6), "more was spent than planned"
            summary = begun.folder / "summary.json"
            if summary.exists():
                self._is_enough([begun], json.loads(summary.read_text())["privacy_guarantee"])
            with contextlib.suppress(UserError):
                publish(begun.folder, out := self.folder / "published", lambda path: Tokenizer.load(path).fingerprint)
                self._is_enough([begun], json.loads((out / STATEMENT_FILE).read_text())["privacy_guarantee"])
            shutil.rmtree(self.folder / "published", ignore_errors=True)

    @invariant()
    def what_is_stated_of_several_runs_is_true(self):
        several = [begun for begun in self.runs[-3:] if begun.has_begun()]
        ledgers = {str(begun.folder): PrivacyLedger(begun.folder / "privacy" / "ledger.jsonl") for begun in several}
        known = tuple(ledger.hashes[-1] for ledger in ledgers.values())
        if len(several) < 2 or self.told.get("several") == known:
            return
        self.told["several"] = known
        self._is_enough(several, joint_statement.state_together(ledgers).as_json())

    @invariant()
    def a_budget_is_kept(self):
        for data in {data for begun in self.runs for data in begun.budgets}:
            found = data_budget.DataBudget(data)
            terms = {"epsilon": found.epsilon, "delta": found.delta}
            self._is_enough([begun for begun in self.runs if data in begun.budgets], terms)

    def _is_enough(self, runs, terms):
        if terms is None or terms["epsilon"] is None or any(begun.lied for begun in runs):
            return
        self.counts["compared"] += 1
        seen = frozenset().union(*(begun.seen for begun in runs))
        people = sorted(set().union(*(begun.people for begun in runs)))
        # Those who are in the same sums have lost the same.
        alike = {frozenset(id(one) for one in seen if who in one.people | one.everybody): who for who in people}
        worst = max((least_epsilon(who, seen, terms["delta"]) for who in alike.values()), default=0.0)
        assert terms["epsilon"] >= worst * (1 - 2e-3) - 1e-4, "less was stated than was released"


def _people(seen):
    return set().union(*(one.people | one.everybody for one in seen))


def play(stores, monkeypatch, **options):
    # The accountant says which orders it leaves out.
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)
    machine = type("Operator", (Operator,), {"stores": stores, "counts": Counter()})
    run_state_machine_as_test(machine, settings=settings(costly(8), stateful_step_count=8, **options))
    return machine.counts


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whatever_an_operator_does_every_statement_is_at_least_what_was_released(stores, monkeypatch):
    counts = play(stores, monkeypatch)
    print(counts)
    assert all(counts[what] for what in ("ended", "killed", "refused", "compared"))


FAULTS = {
    "a run does not know what its first parameters went through": (warm_start, "training_behind", lambda *_: ()),
    "updates are clipped to twice what noise goes by": (
        private_rounds.PrivateRounds,
        "clip_norm",
        lambda self, state: 2 * float(state.clip_norm),
    ),
    "noise before it began anew is not counted": (
        PrivacyLedger,
        "generations",
        property(lambda self, real=PrivacyLedger.generations.fget: real(self)[-1:]),
    ),
    "cohorts follow from the seed that everybody knows": (PrivateReleases, "draw_seed", lambda self: None),
    "correlated noise is accounted as if all took part once": (
        StrategyMechanism,
        "sensitivity_squared",
        lambda self, plan, parts: sum(self.stretch_squared(plan, end - first, 1, 1) for first, end in parts),
    ),
}


IN_LONG = ("a run does not know what its first parameters went through",)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "fault", [*IN_LONG, *(pytest.param(name, marks=pytest.mark.thorough) for name in FAULTS if name not in IN_LONG)]
)
def test_a_fault_is_found(stores, monkeypatch, fault):
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError, match="less was stated than was released"):
        play(stores, monkeypatch, phases=[Phase.generate], max_examples=2000)

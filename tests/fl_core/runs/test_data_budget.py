"""Private runs reserve from their data set's budget before they begin, and never exceed it together."""

import contextlib
import json
import math
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.privacy.origins.ancestry import BUDGET_FILE, Phase
from fedlm.fl_core.privacy.origins.relevance_origin import RelevanceOrigin
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.origins.vocabulary_origin import origin_of_data, origin_of_import
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.counts.vocabulary_spending import plan_vocabulary
from fedlm.fl_core.privacy.promise.guarantee import gaussian_epsilon
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.privacy.record.record_chain import RecordChain
from fedlm.fl_core.privacy.record.releases import Releases
from fedlm.fl_core.runs.capabilities.budgeted import Budgeted
from fedlm.fl_core.runs.capabilities.data_budget import (
    BudgetError,
    DataBudget,
    budget_of,
    reservation_from,
)
from fedlm.fl_core.runs.private_releases import planned_training

DELTA = 1e-6
PLAN = PrivacyPlan("gaussian", 4, 5.0, BoundedParticipation(None, 1))
TRAINED = Phase("simulate", "1", 4, "", "text", "same", plan=PLAN.as_json(), generations=[[0, 4]])
THEIRS = TRAINED._replace(training_data_sha256="theirs", ledger={"secret": "of another data set"})

_STEPS = ("submit", "begin", "stop", "lose")


class NoCheckpoints:
    def latest_round(self):
        return 0

    def digest(self, rounds):
        return None


class StopError(Exception):
    pass


def epsilon_of(runs):
    return gaussian_epsilon(5.0, math.sqrt(4 * runs), DELTA)


@pytest.fixture
def data(tmp_path):
    """A folder with a budget for three runs of the plan, and not for four."""
    (tmp_path / "data").mkdir()
    DataBudget.set(tmp_path / "data", (epsilon_of(3) + epsilon_of(4)) / 2, DELTA)
    return tmp_path / "data"


def reserving(data, folder, plan=PLAN, origins=Origins()):  # noqa: B008
    budget, training = budget_of(data, private=True), planned_training("simulate", folder, plan, "text")
    return budget and Budgeted(budget, origin_of_data(data)).reservation(training, origins)


def begin(data, folder, plan=PLAN, ancestry=()):
    reservation = reserving(data, folder, plan, Origins(ancestry))
    releases = Releases(folder / "privacy", budget=reservation)
    releases.resume(plan, DELTA, {}, NoCheckpoints())
    return releases


def test_runs_reserve_until_the_budget_is_spent(data, tmp_path):
    assert DataBudget(data).reserved() is None
    for number in range(1, 4):
        begin(data, tmp_path / f"{number}")
        # A run that goes on reserves nothing more.
        begin(data, tmp_path / f"{number}")
        assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(number), rel=1e-3)
    for _ in range(2):
        with pytest.raises(BudgetError, match="this run does not fit: with it, epsilon would be"):
            begin(data, tmp_path / "4")
        assert not PrivacyLedger(tmp_path / "4" / "privacy" / "ledger.jsonl").records
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(3), rel=1e-3)


@pytest.mark.parametrize("stopped", ["reserve", "begin", "begun"])
def test_a_crash_costs_nothing_and_frees_nothing(data, tmp_path, stopped, monkeypatch):
    """Whether it comes after the reservation, or after the ledger's first record."""
    reservation = type(reserving(data, tmp_path))
    where = PrivacyLedger if stopped == "begin" else reservation
    real = getattr(where, stopped)

    def stop(self, *arguments):
        if stopped != "begun":
            real(self, *arguments)
        raise StopError

    for number in range(1, 4):
        with monkeypatch.context() as patch:
            patch.setattr(where, stopped, stop)
            for _ in range(1 if stopped == "begin" else 2):
                with pytest.raises(StopError):
                    begin(data, tmp_path / f"{number}")
        ledger = PrivacyLedger(tmp_path / f"{number}" / "privacy" / "ledger.jsonl")
        assert bool(ledger.records) == (stopped != "reserve")
        begin(data, tmp_path / f"{number}")
        assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(number), rel=1e-3)
    with pytest.raises(BudgetError, match="does not fit"):
        begin(data, tmp_path / "4")


def test_what_first_parameters_went_through_counts_once(data, tmp_path):
    first = begin(data, tmp_path / "1").ledger.records[0]["secret"]
    there = TRAINED._replace(ledger={"secret": first})
    # What speaks against a run that has reserved speaks against those that begin with it.
    with pytest.raises(BudgetError, match="nobody knows which parameters these were"):
        begin(data, tmp_path / "2", ancestry=(there._replace(not_private="nobody knows which parameters these were"),))
    begin(data, tmp_path / "2", ancestry=(there,))
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(2), rel=1e-3)
    elsewhere = there._replace(ledger={"secret": "of another data set"})
    with pytest.raises(BudgetError, match="epsilon would be"):
        begin(data, tmp_path / "3", ancestry=(elsewhere,))
    lost = {"plan": None, "not_private": "it was trained without privacy"}
    public = elsewhere._replace(people="public", training_data_sha256="other text", **lost)
    with pytest.raises(BudgetError, match="nothing can be promised"):
        begin(data, tmp_path / "3", ancestry=(public._replace(people="same"),))
    begin(data, tmp_path / "3", ancestry=(public,))


@pytest.mark.parametrize("said", ["disjoint", "public"])
def test_what_one_run_says_of_others_text_another_may_contradict(data, tmp_path, said):
    """Text of others, of which one run's first parameters were made without privacy, is another's people's."""
    lost = Phase("simulate", "b", 4, "", "theirs", said, not_private="it was trained without privacy")
    begin(data, tmp_path / "1", ancestry=(lost,))
    with pytest.raises(BudgetError, match="nothing can be promised"):
        begin(data, tmp_path / "2", ancestry=(THEIRS,))
    # Nor the other way round, and nobody counts less for having been called others first.
    other = THEIRS._replace(ledger={"secret": "of a third"}, people=said, training_data_sha256=None)
    begin(data, tmp_path / "3", ancestry=(other,))
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(2), rel=1e-3)
    with pytest.raises(BudgetError, match="epsilon would be"):
        begin(data, tmp_path / "4", ancestry=(other._replace(people="same"),))
    with pytest.raises(BudgetError, match="nothing can be promised"):
        begin(data, tmp_path / "4", ancestry=(lost._replace(training_data_sha256="text"),))


def test_public_relevances_of_people_who_count_do_not_fit(data, tmp_path):
    relevance = RelevanceOrigin("public", "count", text="theirs")
    with pytest.raises(BudgetError, match="counted without privacy in data of the same people"):
        reserving(data, tmp_path / "1", origins=Origins((THEIRS,), relevance=relevance)).reserve("secret")
    reserving(data, tmp_path / "1", origins=Origins((THEIRS,))).reserve("secret")
    with pytest.raises(BudgetError, match="counted without privacy in data of the same people"):
        reserving(data, tmp_path / "2", origins=Origins(relevance=relevance)).reserve("another")


def test_what_first_parameters_went_through_since_counts_too(data, tmp_path):
    elsewhere = TRAINED._replace(ledger={"secret": "of another data set"})
    begin(data, tmp_path / "1", ancestry=(elsewhere._replace(steps=1, generations=[[0, 1]]),))
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(5 / 4), rel=1e-3)
    begin(data, tmp_path / "2", ancestry=(elsewhere,))
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(3), rel=1e-3)
    with pytest.raises(BudgetError, match="epsilon would be"):
        begin(data, tmp_path / "3")


def test_a_run_from_before_the_budget_reserves_when_it_goes_on(tmp_path):
    (tmp_path / "data").mkdir()
    begin(tmp_path / "data", tmp_path / "1")
    DataBudget.set(tmp_path / "data", epsilon_of(1) * 1.01, DELTA)
    begin(tmp_path / "data", tmp_path / "1")
    with pytest.raises(BudgetError):
        begin(tmp_path / "data", tmp_path / "2")


def test_only_private_runs_use_data_with_a_budget(data, tmp_path):
    assert budget_of(data, private=True)
    assert budget_of(tmp_path, private=False) is None
    with pytest.raises(BudgetError, match="only private runs"):
        budget_of(data, private=False)


def test_a_budget_is_set_once_and_not_changed(data, tmp_path):
    with pytest.raises(ConfigurationError, match="has a budget already"):
        DataBudget.set(data, 100.0, DELTA)
    for epsilon, delta in ((0.0, DELTA), (1.0, 0.0)):
        with pytest.raises(ConfigurationError, match="must"):
            DataBudget.set(tmp_path, epsilon, delta)
    file = data / BUDGET_FILE
    begin(data, tmp_path / "1")
    content = file.read_text()
    for damaged in (content.replace('"epsilon": ', '"epsilon": 9'), "".join(content.splitlines(keepends=True)[1:]), ""):
        file.write_text(damaged)
        with pytest.raises(BudgetError, match="put the file of the privacy budget back"):
            DataBudget(data).reserved()


def test_a_reservation_that_was_changed_or_removed_is_noticed(data, tmp_path):
    for number in (1, 2):
        begin(data, tmp_path / f"{number}")
    file = data / BUDGET_FILE
    lines = file.read_text().splitlines(keepends=True)
    spent = next(number for number, line in enumerate(lines) if '"reserve"' in line)
    less = lines[spent].replace('"noise_multiplier": 5.0', '"noise_multiplier": 50.0')
    assert less != lines[spent]
    for damaged in ([*lines[:spent], less, *lines[spent + 1 :]], [*lines[:spent], *lines[spent + 1 :]]):
        file.write_text("".join(damaged))
        with pytest.raises(BudgetError, match="put the file of the privacy budget back"):
            begin(data, tmp_path / "3")
    # Nothing follows the last lines that would tell; the run that they were of reserves again when it goes on.
    file.write_text("".join(lines[:-2]))
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(1), rel=1e-3)
    begin(data, tmp_path / "2")
    assert DataBudget(data).reserved().epsilon == pytest.approx(epsilon_of(2), rel=1e-3)


def test_the_budget_of_another_data_set_is_refused(tmp_path):
    for name in ("text", "other"):
        (tmp_path / name).mkdir()
        DataBudget.set(tmp_path / name, 100.0, DELTA, name)
    begin(tmp_path / "text", tmp_path / "1")
    (tmp_path / "text" / BUDGET_FILE).write_text((tmp_path / "other" / BUDGET_FILE).read_text())
    for run in ("1", "2"):
        with pytest.raises(BudgetError, match="the budget is of another data set; put the file"):
            begin(tmp_path / "text", tmp_path / run)


def test_a_private_vocabulary_is_part_of_what_is_spent(data, tmp_path):
    private = plan_vocabulary(0.5, 1e-7, 100)
    record = {"vocabulary_origin": origin_of_import(private).as_json()}
    (data / "store.json").write_text(json.dumps(record))
    begin(data, tmp_path / "1")
    left = DELTA - private.threshold_delta
    exact = gaussian_epsilon(1.0, math.sqrt(4 / 25 + 1 / private.noise_multiplier**2), left)
    assert DataBudget(data).reserved().epsilon == pytest.approx(exact, rel=0.01)
    assert exact > 1.01 * epsilon_of(1)


def test_a_vocabulary_of_another_import_that_first_parameters_were_trained_with_counts_too(tmp_path):
    """Also where its words are equal."""
    private = plan_vocabulary(2.0, 1e-7, 100)
    own, other = (origin_of_import(private).as_json() for _ in range(2))
    spent = []
    for releases, vocabulary in enumerate((own, other), start=1):
        data = tmp_path / f"data {releases}"
        data.mkdir()
        DataBudget.set(data, 100.0, DELTA)
        (data / "store.json").write_text(json.dumps({"vocabulary_origin": own}))
        parent = TRAINED._replace(ledger={"secret": "p"}, vocabulary=vocabulary)
        begin(data, tmp_path / f"run {releases}", ancestry=(parent,))
        left = DELTA - releases * private.threshold_delta
        exact = gaussian_epsilon(1.0, math.sqrt(8 / 25 + releases / private.noise_multiplier**2), left)
        spent.append(DataBudget(data).reserved().epsilon)
        assert spent[-1] == pytest.approx(exact, rel=0.01)
    assert spent[1] > 1.05 * spent[0]


@pytest.mark.long
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "begin", "stop", "lose"]), st.integers(0, 4), st.sampled_from([9, 0, 1, 2, 3])
        ),
        max_size=16,
    )
)
@example([("begin", 0, 9), ("lose", 0, 9), ("begin", 0, 9)])
def test_whatever_runs_do_and_wherever_they_are_killed_all_that_may_make_noise_fit_the_budget(history):
    """Each step is killed before its so-manieth record; folders are lost."""
    append, noisy = RecordChain.append, set()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        budget = DataBudget.set(folder, (epsilon_of(3) + epsilon_of(4)) / 2, DELTA)
        for step, run, left in history:
            countdown = iter(range(left))

            def append_unless_killed(self, record, countdown=countdown):
                if next(countdown, None) is None:
                    raise StopError
                append(self, record)

            patch.setattr(RecordChain, "append", append_unless_killed)
            training = planned_training("serve", folder / f"{run}", PLAN, None)
            reservation = reservation_from(budget, training, Origins(), f"{run}")
            with contextlib.suppress(StopError, BudgetError):
                if step == "submit":
                    reservation.reserve(f"run {run}")
                elif step == "stop":
                    budget.give_back(f"{run}")
                elif step == "lose":
                    shutil.rmtree(folder / f"{run}", ignore_errors=True)
                else:
                    releases = Releases(folder / f"{run}", budget=reservation)
                    releases.resume(PLAN, DELTA, {}, NoCheckpoints())
                    noisy.add(releases.ledger.records[0]["secret"])
            reserved = budget.reserved()
            spent = 0.0 if reserved is None else reserved.epsilon
            assert (epsilon_of(len(noisy)) if noisy else 0.0) * 0.999 <= spent <= budget.epsilon


def test_a_process_that_another_has_followed_is_not_the_last(tmp_path):
    budget = DataBudget.set(tmp_path, 1.0, DELTA, None)
    assert not budget.entered("run", "first")
    assert budget.enter("run", [], "first")
    assert budget.entered("run", "first")
    assert budget.enter("run", ["first"], "second")
    assert not budget.enter("run", ["first"], "third")
    assert (budget.entered("run", "first"), budget.entered("run", "second")) == (False, True)

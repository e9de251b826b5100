"""Plans by laws of a made-up world: the best of a budget, what lies around it, and models that can be built."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError, DataError
from fedlm.fl_core.privacy.accounting.gaussian_mechanism import gaussian_noise_multiplier
from fedlm.fl_core.privacy.origins.vocabulary_origin import UNKNOWN, PrivateVocabulary, origin_of_import
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import account, calibrate
from fedlm.fl_core.privacy.promise.noise_table import TABLE_ERROR
from fedlm.models.base import parameter_count
from fedlm.models.model_files import read_description
from fedlm.simulations.laws.laws_file import Laws, shipped_laws
from fedlm.simulations.laws.planning.architectures import nearest_architecture
from fedlm.simulations.laws.planning.central_planner import Budget, Planner, make_plan
from fedlm.simulations.laws.planning.central_training import TrainingData, choose_training, settings_of
from tests.support.synthetic_laws import surface_of

BUDGET = Budget(examples=1e8, epsilon=4.0, delta=1e-8, compute=1e21)
DECODERS = {"transformer_2x64": 130_000, "transformer_3x128": 660_000, "transformer_4x256": 3_280_000}


@pytest.fixture(scope="module")
def planner():
    return Planner(surface_of(), 512)


@pytest.fixture(scope="module")
def plan(planner):
    return make_plan(planner, BUDGET)


@pytest.mark.long
def test_every_configuration_spends_the_compute_and_has_the_noise_that_epsilon_asks_for(planner):
    found = planner.configurations(BUDGET)
    spent = 6 * 512 * found.parameters * found.batch_size * found.steps
    np.testing.assert_allclose(spent, BUDGET.compute, rtol=1e-9)
    assert len(found.loss) > 4000
    short = np.flatnonzero(np.isfinite(found.loss) & (found.steps < 1e4))
    for number in short[[0, -1]]:
        batch_size, steps = round(found.batch_size[number]), round(found.steps[number])
        exact = calibrate(lambda noise, b=batch_size, t=steps: central_plan(10**8, b, t, noise), 1e-8, 4.0)
        looked_up = found.noise_batch_ratio[number] * batch_size
        assert looked_up == pytest.approx(exact.noise_multiplier, rel=TABLE_ERROR)


def test_more_of_anything_never_hurts_and_compute_saturates(planner, plan):
    assert set(plan.doubled) == {"examples", "epsilon", "compute"}
    assert all(found.loss <= plan.best["loss"] for found in plan.doubled.values())
    assert not any(found.asks_for_less_noise for found in plan.doubled.values())
    at = planner.least_loss(BUDGET._replace(compute=plan.saturating_compute))
    most = planner.least_loss(BUDGET._replace(compute=plan.saturating_compute * 30))
    assert at <= most * 1.012
    assert planner.least_loss(BUDGET._replace(compute=plan.saturating_compute / 4)) > at


OF_SHIPPED = Budget(examples=1e7, epsilon=8.0, delta=2e-8, compute=1e16)


@pytest.fixture(scope="module")
def shipped():
    """The laws that come with fedlm, and a planner by them."""
    laws = shipped_laws()
    return laws, Planner(laws.surface, laws.surface.length)


@pytest.mark.long
def test_more_people_never_hurt_at_the_end_of_what_was_measured(shipped):
    _, planner = shipped
    plan = make_plan(planner, OF_SHIPPED)
    assert plan.best["steps"] == pytest.approx(planner.surface.steps[-1], rel=0.01)
    assert all(found.loss <= plan.best["loss"] for found in plan.doubled.values())
    losses = [planner.least_loss(OF_SHIPPED._replace(examples=examples)) for examples in (1e7, 1.3e7, 2e7, 4e7, 1e9)]
    assert all(more <= less * (1 + 1e-9) for less, more in itertools.pairwise(losses))


@pytest.mark.long
def test_where_less_noise_than_was_measured_is_asked_for_the_plan_has_what_was_and_says_so(shipped):
    laws, planner = shipped
    budget = OF_SHIPPED._replace(compute=1e17)
    plan = make_plan(planner, budget)
    least = laws.surface.noise_batch_ratios[0]
    assert plan.best["noise_batch_ratio"] == least
    assert plan.doubled["examples"].asks_for_less_noise
    chosen = choose_training(laws, plan)
    assert (chosen.noise_batch_ratio, chosen.noise_multiplier) == (least, least * chosen.batch_size)
    training = central_plan(10**7, chosen.batch_size, chosen.steps, chosen.noise_multiplier)
    assert chosen.guarantee.epsilon == account(training, 2e-8).epsilon < 7.9
    assert any("allows less noise than was measured" in note for note in chosen.notes)
    settings = settings_of(chosen, laws, "cifg_tiny")
    assert settings["noise_multiplier"] == chosen.noise_multiplier
    assert "epsilon" not in settings


def test_the_chosen_training_is_accounted_exactly(plan):
    chosen = choose_training(Laws(surface=surface_of()), plan)
    assert chosen.model is None  # the published names are none of ours
    assert chosen.guarantee.epsilon <= 4.0
    known = central_plan(10**8, chosen.batch_size, chosen.steps, chosen.noise_multiplier)
    assert chosen.guarantee == account(known, 1e-8)
    assert chosen.compute == pytest.approx(1e21, rel=1e-3)
    assert chosen.band[0] <= chosen.loss <= chosen.band[1]


def test_a_training_without_privacy_has_no_noise_and_no_guarantee(planner):
    budget = BUDGET._replace(epsilon=math.inf, compute=1e19)
    plan, laws = make_plan(planner, budget), Laws(surface=surface_of(), task={"clip_norm": 1.0})
    assert set(plan.doubled) == {"compute"}
    chosen = choose_training(laws, plan)
    assert chosen.guarantee is None
    assert chosen.noise_multiplier == chosen.noise_batch_ratio == 0
    assert chosen.loss < planner.least_loss(budget._replace(epsilon=4.0))
    assert any("without privacy does not" in note for note in chosen.notes)


def test_what_is_extrapolated_is_said(planner, plan):
    chosen = choose_training(Laws(surface=surface_of(measured_steps=2000.0)), plan)
    assert any(note.startswith("extrapolated: the loss at") for note in chosen.notes)
    for examples in (1e5, 1e12):
        found = make_plan(planner, BUDGET._replace(epsilon=math.inf, examples=examples, compute=1e19))
        notes = choose_training(Laws(surface=surface_of()), found).notes
        assert any("extrapolated: the training sees its examples" in note for note in notes) == (examples == 1e5)
    unknown = dataclasses.replace(planner.surface, learning_rates=np.full(planner.surface.loss.shape, np.nan))
    with pytest.raises(ConfigurationError, match="no learning rate was measured"):
        choose_training(Laws(surface=unknown), plan)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (BUDGET._replace(compute=1e3), "no training of models of 4.5e"),
        (BUDGET._replace(examples=20, epsilon=4.0, compute=1e16), "nothing is planned outside"),
        (BUDGET._replace(compute=-1.0), "compute is -1, but must be positive"),
    ],
)
def test_what_was_not_measured_is_refused(planner, budget, message):
    with pytest.raises(ConfigurationError, match=message):
        make_plan(planner, budget)


def test_laws_of_trainings_without_noise_have_no_private_plan():
    surface = surface_of()
    names = ("noise_batch_ratios", "loss", "learning_rates", "draws")
    cut = {name: getattr(surface, name)[..., :0] for name in names} | {"curves": surface.curves[:, :1]}
    planner = Planner(dataclasses.replace(surface, **cut), 512)
    budget = BUDGET._replace(compute=1e19)
    assert make_plan(planner, budget._replace(epsilon=math.inf)).best["noise_batch_ratio"] == 0
    with pytest.raises(ConfigurationError, match="know losses for ratios of 0 alone"):
        make_plan(planner, budget)


def test_where_less_compute_is_better_the_plan_says_so(planner):
    larger_are_worse = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])[:, None]
    noiseless = planner.surface.noiseless[:1] * larger_are_worse
    worse = dataclasses.replace(planner, surface=dataclasses.replace(planner.surface, noiseless=noiseless))
    # More than the smallest model takes in all steps, which leaves the larger ones.
    budget = BUDGET._replace(epsilon=math.inf, compute=6 * 512 * 1024 * 2 * 4.5e6 * planner.surface.steps[-1])
    compute, loss = make_plan(worse, budget).cheaper
    assert compute < budget.compute
    assert loss == worse.least_loss(budget._replace(compute=compute)) < worse.least_loss(budget)
    assert make_plan(worse, budget._replace(compute=compute)).cheaper is None
    assert make_plan(planner, budget).cheaper is None


def test_a_plan_has_the_unit_of_its_data_and_a_vocabulary_with_an_epsilon_is_part_of_the_promise(plan):
    unit = "example: one packed sequence of 512 tokens, in all steps"
    data = TrainingData(10**8, 30_522, unit, "Per sequence.", UNKNOWN)
    alone = choose_training(Laws(surface=surface_of()), plan, data)
    assert alone.guarantee.unit == unit
    assert alone.covers[0] == "Per sequence."
    assert alone.covers[1].startswith("VOCABULARY NOT COVERED")
    private = origin_of_import(PrivateVocabulary(2.0, 5e-9, gaussian_noise_multiplier(2.0, 4e-9), 50.0, 1e-9, 100))
    # A packed sequence may hold data of several clients, to each of whom the vocabulary is private.
    packed = choose_training(Laws(surface=surface_of()), plan, data._replace(vocabulary=private))
    assert packed.noise_multiplier == alone.noise_multiplier
    assert any("VOCABULARY NOT COVERED" in line for line in packed.covers)
    apart = data._replace(vocabulary=private, unit="example: one example (training reads at most 512 tokens)")
    with_words = choose_training(Laws(surface=surface_of()), plan, apart)
    assert any("the vocabulary is covered" in line for line in with_words.covers)
    assert with_words.noise_multiplier > alone.noise_multiplier
    assert 3.99 < with_words.guarantee.epsilon <= 4.0
    training = central_plan(10**8, with_words.batch_size, with_words.steps, with_words.noise_multiplier)
    assert account(training, 1e-8).epsilon < 3.9


def test_settings_of_laws_that_no_run_takes_are_refused(plan):
    for task in ({"schedule": "exponential"}, {"warmup_steps": "x"}, {"clip_norm": [1]}):
        laws = Laws(surface=surface_of(), task=task)
        with pytest.raises(DataError, match="make no training that can be run"):
            settings_of(choose_training(laws, plan), laws, "transformer_2x64")


def test_the_nearest_model_can_be_built_and_has_the_size_that_is_said():
    for wanted in (130_000, 300_000, 1_500_000):
        found = nearest_architecture(surface_of(DECODERS), wanted, vocabulary_size=512)
        build, config = read_description(found.description)
        assert config.vocabulary_size == found.vocabulary_size == 512
        assert parameter_count(build("planned", config)) == found.parameters
        assert abs(math.log(found.parameters / wanted)) < 0.2
    # Of models that differ in more than size, a measured one is chosen.
    mixed = surface_of({"transformer_2x64": 132_224, "cifg_tiny": 148_736, "transformer_3x128": 657_664})
    found = nearest_architecture(mixed, 145_000, vocabulary_size=512)
    assert (found.name, found.parameters) == ("cifg_tiny", 148_736)

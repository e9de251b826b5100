"""Which of sampling users and sampling their examples needs less noise for the same signal."""

import functools
import json

import pytest

from fedlm.commands.cli import main
from fedlm.fl_core.privacy.promise.central_plan import central_plan
from fedlm.fl_core.privacy.promise.guarantee import account, calibrate, epsilon_of
from fedlm.fl_core.privacy.promise.sampling_choice import choose_sampling

DELTA, SIZES = 1e-6, (4000, 40, 1000)


def planned(epsilon, examples=4):
    with_noise = functools.partial(central_plan, *SIZES, unit="user: four, in all steps", examples_per_user=examples)
    return calibrate(with_noise, DELTA, epsilon)


def test_users_need_less_noise_below_the_crossover_and_examples_above_it():
    strong, weak = (choose_sampling(planned(epsilon), epsilon, DELTA) for epsilon in (1.0, 20.0))
    assert strong.crossover == pytest.approx(weak.crossover, rel=1e-2)
    assert 1.0 < strong.crossover < 20.0
    assert weak.turning_point < weak.least < strong.turning_point <= 1 + 1e-3
    assert (strong.in_words[:5], weak.in_words[:8]) == ("users", "examples")
    by_users = central_plan(1000, 10, 1000, strong.of_users)
    assert account(by_users, DELTA).epsilon == pytest.approx(1.0, rel=1e-3)


def test_users_with_one_example_are_sampled_alike():
    choice = choose_sampling(planned(2.0, examples=1), 2.0, DELTA)
    assert (choice.turning_point, choice.crossover) == (pytest.approx(1.0, rel=1e-3), None)
    assert choice.in_words.startswith("either")


def test_the_command_states_its_plan_and_compares(capsys):
    words = ["account", "examples", "--users", "1000", "--examples-per-user", "4", "--batch-size", "40"]
    words += ["--steps", "1000", "--epsilon", "2", "--delta", "1e-6"]
    assert main([*words, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["epsilon"] == epsilon_of(planned(2.0), DELTA) <= 2
    assert stated["comparison"]["of_examples"] == stated["noise_multiplier"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "unit  user: at most 4 examples" in said
    assert "less noise  users, where" in said
    assert main([*words, "--examples-per-user", "1000"]) == 2
    assert "--examples-per-user is 1000" in capsys.readouterr().err

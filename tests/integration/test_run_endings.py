"""The exit status and the summary of a run that came to nothing."""

import asyncio
import dataclasses
import json
import math

import pytest

from fedlm.command_line.run_endings import NO_GOOD, exit_status_in
from fedlm.fl_core.runs.endings import DIVERGED, FINISHED, UNANSWERED
from fedlm.fl_core.runs.round_rows import find_worse_than_guess, was_answered
from tests.deployment import small_deployment as small
from tests.support.plain_runs import MODEL


def simulated(fedlm_here, store, out, **changes):
    settings = {"model": MODEL, "rounds": 1, "cohort-size": 2, "length": 8, "data": store, "out": out} | changes
    done = fedlm_here("simulate", *(f"--{name}={value}" for name, value in settings.items()), "--devices=1")
    return done, json.loads((out / "summary.json").read_text())


@pytest.mark.usefixtures("plain_cohorts")
def test_a_simulation_without_an_answer_has_its_own_status_and_a_summary(small_store, tmp_path, fedlm_here):
    # About one of 96 clients a round: none in a third of all runs of one round.
    poisson = {"cohort-sampler": "poisson", "cohort-size": 1}
    endings = {}
    for seed in range(20):
        done, summary = simulated(fedlm_here, small_store, tmp_path / str(seed), seed=seed, **poisson)
        endings[summary["status"]] = done
        if len(endings) == 2:
            break
    assert endings[FINISHED].returncode == 0
    assert endings[UNANSWERED].returncode == 3
    assert "no client answered in 1 rounds" in " ".join(endings[UNANSWERED].stdout.split())


@pytest.mark.usefixtures("plain_cohorts")
def test_a_diverging_run_ends_early_and_says_so(small_store, tmp_path, fedlm_here):
    changes = {"client-learning-rate": 1e30, "rounds": 50, "evaluate-every": 2}
    done, summary = simulated(fedlm_here, small_store, tmp_path / "run", **changes)
    assert done.returncode == 3, done.stderr
    assert (summary["status"], summary["rounds"] < 50, summary["clients_dropped"] > 0) == (DIVERGED, True, True)
    assert "diverged" in done.stdout
    assert summary["test_perplexity"] is None or summary["test_perplexity"] > 1


@pytest.mark.long
def test_a_deployment_ends_by_the_rule_of_simulations_with_its_held_out_loss(tmp_path):
    settings = small.deployment(rounds=2, evaluate_every=1)
    loss = math.log(small.VOCABULARY) + 0.6
    task = dataclasses.replace(small.task(settings), score=lambda params: {"heldout_loss": loss})

    async def deploy():
        server = small.Server(task, tmp_path / "run")
        async with asyncio.timeout(60), server:
            clients = [small.make_client(server.port, tmp_path, one) for one in range(small.CLIENTS)]
            async with small.running(clients):
                assert await server.over

    asyncio.run(deploy())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["diverged_at_round"], summary["heldout_loss"]) == (DIVERGED, 1, loss)
    assert summary["diverged_because"] == "the held-out loss ended more than half a nat above that of a uniform guess"
    assert exit_status_in(tmp_path / "run") == NO_GOOD


def test_a_held_out_loss_is_measured_by_a_uniform_guess():
    rows = [{"round": 0, "heldout_loss": 9.0}, {"round": 1, "heldout_loss": math.log(50) + 0.5}, {"round": 2}]
    assert find_worse_than_guess(rows, 50) is None
    assert find_worse_than_guess(rows, 49).round_number == 2
    assert find_worse_than_guess([{"round": 0, "heldout_loss": None}, {"round": 1}], 50).round_number == 0
    assert find_worse_than_guess([{"round": 0}], 50) is None
    assert find_worse_than_guess([{"round": 0, "heldout_loss": 9.0, "clients": 0}], 50) is None


def test_a_run_is_answered_where_a_client_sent_something():
    assert not was_answered([{"clients": 0}, {"clients": 0}])
    assert was_answered([{"clients": 0}, {"clients": 2}])
    assert was_answered([{"step": 0}])

"""Evaluation rounds: devices score the model of an earlier run, train nothing, and only noised sums are told."""

import asyncio
import contextlib
import dataclasses
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedlm.clients.device.server_instructions import AllowedPrograms
from fedlm.fl_core.composed_settings import with_changes
from fedlm.fl_core.deployment.server.client_service import ClientService
from fedlm.fl_core.deployment.server.planned_privacy import planned_privacy
from fedlm.fl_core.deployment.server.reports.streaming_sum import Report
from fedlm.fl_core.deployment.server.task import PlaceInPopulation
from fedlm.fl_core.deployment.state.database import Database
from fedlm.fl_core.deployment.state.state_sql import SqlState, sqlite_url
from fedlm.fl_core.errors import CheckpointError, ConfigurationError
from fedlm.fl_core.privacy.participation.limits import BoundedParticipation
from fedlm.fl_core.privacy.promise.plan import LEDGER_FILE
from fedlm.fl_core.privacy.record.ledger import PrivacyLedger
from fedlm.fl_core.rounds import local_sgd
from fedlm.fl_core.rounds.local_sgd import TrainingSums
from fedlm.fl_core.rounds.round_loop import RoundPlan
from fedlm.fl_core.runs.evaluation import EvaluationSettings
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.updates.compressors import compress_update
from fedlm.fl_core.updates.float32 import FLOAT32
from fedlm.fl_core.updates.update_bytes import pack_update
from fedlm.models.base import Batch
from fedlm.models.registry import create_model
from tests.deployment import small_deployment as small
from tests.deployment import test_secure_sums as secure_sums
from tests.deployment.plain_loop import final_parameters

EVALUATE = {
    "client_algorithm": "evaluate",
    "evaluate_largest_loss": 8.0,
    "update_clip_norm": 1.0,
    "upload_bits": 32,
    "rounds": 1,
    "client_max_batches": 4,
    "server_optimizer": "fedavgm",
}
GAUSSIAN = {"privacy": "gaussian", "noise_multiplier": 1.0, "delta": 1e-3, "max_participations": 1}


async def deploy(settings, out, score=None):
    """Run a server, with eight clients, to its end; gives the rows and the summary."""
    folder = Path(tempfile.mkdtemp(dir=out.parent))
    server = small.Server(dataclasses.replace(small.task(settings), score=score), out)
    allowed = AllowedPrograms((settings.model,), (settings.training.algorithm.client_algorithm,))
    async with asyncio.timeout(small.PATIENCE), server:
        clients = [small.make_client(server.port, folder, one, allowed=allowed) for one in range(8)]
        async with small.running(clients):
            assert await server.over
    return server.rows, json.loads((out / "summary.json").read_text())


@pytest.fixture
def trained(tmp_path):
    """The folder of a run that has trained a model."""
    asyncio.run(deploy(small.deployment(rounds=1), tmp_path / "trained"))
    return tmp_path / "trained"


def loss_on_device(params, client):
    """Mean loss of a token on a client's text, by one call of the model."""
    model, tokens = create_model(small.MODEL, small.VOCABULARY), small.examples_of(client)
    sums = model.loss(params, Batch(jnp.asarray(tokens), jnp.ones(len(tokens))))
    return float(np.asarray(sums.loss, np.float64).sum() / np.asarray(sums.tokens, np.float64).sum())


def test_devices_score_the_model_of_another_run_and_train_nothing(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(local_sgd, "local_gradient", lambda *_: pytest.fail("a device makes a gradient"))
    settings = small.deployment(**EVALUATE, init_from=trained)
    # A bad model is what an evaluation may find.
    (row,), summary = asyncio.run(deploy(settings, tmp_path / "run", lambda params: {"heldout_loss": 99.0}))
    assert summary["status"] == "finished"
    params = final_parameters(trained, private=False)
    assert jax.tree_util.tree_all(
        jax.tree_util.tree_map(np.array_equal, params, final_parameters(tmp_path / "run", private=False))
    )
    losses = [loss_on_device(params, client) for client in range(8)]
    found = summary["evaluation"]
    assert (found["devices"], found["noise"]) == (pytest.approx(8), 0)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert (found["below_largest"], found["verdict"]) == (pytest.approx(1), None)
    assert found["loss_low"] < found["loss"] < found["loss_high"]
    assert summary["privacy"].startswith("NOT PRIVATE")
    # Of a device there came five numbers, and nothing of training.
    assert row["bytes_up"] < 8 * 200
    assert {row[name] for name in ("train_loss", "update_norm", "examples", "steps", "gradient_norm")} == {None}


def earlier(folder, **changes):
    """The folder of an evaluation that is over, as far as another is compared with it: worse than any model."""
    told = {"loss_low": 9.0, "loss_high": 9.0, "largest_loss": 8.0} | changes
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"evaluation": told, "vocabulary": "numbers"}))
    return folder


def test_an_evaluation_that_is_decided_ends_and_stays_so(trained, tmp_path):
    changes = {"rounds": 3, "max_participations": 1, "evaluate_against": earlier(tmp_path / "earlier")}
    settings = small.deployment(**EVALUATE | changes, init_from=trained)
    for begun in (True, False):
        rows, summary = asyncio.run(deploy(settings, tmp_path / "run"))
        assert len(rows) == begun
        assert (summary["status"], summary["evaluation"]["verdict"]) == ("finished", "better")
        assert "reference between 9 and 9" in summary["evaluation"]["statement"]
    # What was said rests on the number of looks and on the reference.
    for found in ({"rounds": 2}, {"evaluate_against": earlier(tmp_path / "other", loss_low=7.0)}):
        with pytest.raises(CheckpointError, match=r"rounds|reference of its evaluation"):
            asyncio.run(deploy(with_changes(settings, **found), tmp_path / "run"))


@pytest.mark.parametrize(
    ("reference", "words"),
    [({"largest_loss": 7.0}, "give the same"), ({"loss_low": None}, "no evaluation there that is over")],
)
def test_an_evaluation_that_cannot_be_compared_with_is_refused(tmp_path, reference, words):
    settings = EvaluationSettings(evaluate_against=earlier(tmp_path / "earlier", **reference))
    with pytest.raises(ConfigurationError, match=words):
        settings.reference(8.0, "numbers")
    with pytest.raises(ConfigurationError, match="another vocabulary"):
        EvaluationSettings(evaluate_against=earlier(tmp_path / "words")).reference(8.0, "words")


class KilledError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("saved", [True, False])
def test_a_server_that_is_killed_between_charge_and_release_tells_no_sum_twice(trained, tmp_path, monkeypatch, saved):
    settings = small.deployment(
        **EVALUATE | GAUSSIAN | {"rounds": 2, "cohort_size": 4, "minimum_reports": 4, "over_selection": 1.0},
        init_from=trained,
        initial_data="public",
    )
    written = []

    def save(folder, done, state, about):
        if saved:
            real(folder, done, state, about)
        written.extend(about["rows"])
        raise KilledError

    real = RunFolder.save
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", save)
        with pytest.raises(KilledError):
            asyncio.run(deploy(settings, tmp_path / "run"))
    assert not (tmp_path / "run" / "metrics.jsonl").read_text(), "nothing is told before its release"
    _, summary = asyncio.run(deploy(settings, tmp_path / "run"))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # A round whose sums may have been seen is over, and what was saved of it is told as it was.
    assert [row["round"] for row in rows] == ([0, 1] if saved else [1])
    assert rows[: len(rows) - 1] == written[:saved]
    assert len({row["evaluated_devices"] for row in [*rows, *written]}) == 2
    ledger = PrivacyLedger(tmp_path / "run" / "privacy" / LEDGER_FILE)
    assert ledger.last_release.rounds == 2
    assert summary["evaluation"]["rounds"] == len(rows)
    assert "rho = 0.5; unit: client" in summary["privacy"], "each device takes part in one round of both"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init_from": None}, "give --init-from"),
        ({"update_clip_norm": 0.5}, "give --update-clip-norm 1 and --upload-bits 32"),
        ({"upload_bits": 8}, "give --update-clip-norm 1 and --upload-bits 32"),
        ({"weighting": "examples"}, "leave --compression, --upload-rotation and --weighting out"),
        ({"personal_layers": ("head",)}, "leave it out"),
        ({"aggregation": "median"}, "give --aggregation mean or secure"),
        (GAUSSIAN | {"privacy": "tree"}, "give --privacy gaussian"),
        (GAUSSIAN | {"clip_quantile": 0.5}, "leave --clip-quantile out"),
        ({"rounds": 2}, "give --max-participations 1"),
        ({"evaluate_largest_loss": 0.0}, "evaluate-largest-loss"),
        ({"client_algorithm": "sgd", "evaluate_largest_loss": 10.0, "evaluate_against": Path("run")}, "leave it out"),
    ],
)
def test_what_does_not_go_with_an_evaluation_is_refused(changes, words):
    with pytest.raises(ConfigurationError) as refused:
        small.deployment(**EVALUATE | {"init_from": Path("run")} | changes)
    assert words in refused.value.for_command_line()


def test_an_evaluation_of_a_population_counts_each_device_once_at_the_price_that_devices_hold():
    settings = small.deployment(**EVALUATE | GAUSSIAN | {"rounds": 3, "min_separation": 2}, init_from=Path("run"))
    promised = BoundedParticipation(2, 2)
    place = PlaceInPopulation("check", 0, 50, promised, None, {})
    _, planned = planned_privacy(dataclasses.replace(small.task(settings), place=place))
    assert (planned.participation, settings.participation) == (promised, BoundedParticipation(1, 2))


@pytest.mark.parametrize(
    ("sent", "counted"),
    [([0.7, -0.1, -0.3, 0.2, 0.1], [1, -0.1414, -0.42, 0.2828, 0.1414]), ([9, -9, -9, 9, 0], [1, -0.5, 0.5, 0.5, 0])],
)
def test_a_device_that_lies_counts_once_and_within_the_bounds_of_each_number(tmp_path, sent, counted):
    settings = small.deployment(**EVALUATE, init_from=Path("run"))
    with contextlib.closing(SqlState(Database(sqlite_url(tmp_path / "state.db")))) as state:
        sums = ClientService.make(small.task(settings), state, tmp_path).sums
        total, like = sums.new(RoundPlan(0, np.zeros(0), 1, 1.0), 1.0), {"evaluated": jnp.asarray(sent, jnp.float32)}
        content = pack_update(FLOAT32["float32"], compress_update(FLOAT32["float32"], jax.random.key(0), like), like)
        total.add(Report(0, content, 1, TrainingSums(0.0, 0.0, 0.0)))
    found = np.sqrt(2) * np.asarray(total.finish().delta["evaluated"])
    np.testing.assert_allclose(found, [*counted[:2], 4 * counted[1] ** 2 - 0.5, *counted[3:]], atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("private", [False, True])
def test_secure_sums_of_an_evaluation_tell_the_same(trained, tmp_path, private):
    settings = secure_sums.SECURE | secure_sums.PROMPT | EVALUATE | {"init_from": trained}
    settings |= secure_sums.NOISY if private else {}
    made = secure_sums.make_credentials(tmp_path / "keys")
    (folder := tmp_path / "secure").mkdir()
    (row,), _ = asyncio.run(secure_sums.deploy(small.deployment(**settings), made, folder))
    params = final_parameters(trained, private=False)
    expected = sum(loss_on_device(params, client) for client in range(8))
    half, noise = row["evaluated_devices"] / 2, row["evaluated_noise"]
    # Beyond 6 standard deviations once in 100 million runs; without noise there are the steps of the grid.
    assert (noise > 0) == private
    assert row["evaluated_devices"] == pytest.approx(8, abs=6 * noise + 1e-3)
    assert row["evaluated_losses"] / 8 - half == pytest.approx(expected / 8 - 4, abs=6 * noise + 1e-3)

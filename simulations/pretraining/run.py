"""One central training run from beginning to end: resume, steps, scores, checkpoints, summary."""

import functools
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.privacy.mechanisms.registry import make_noise
from fedlm.fl_core.processes import from_first, gather, is_first, lost_processes, together
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.aggregation import norm_quantiles
from fedlm.fl_core.rounds.scores import Scores, evaluate
from fedlm.fl_core.runs.capabilities.interface import Ended
from fedlm.fl_core.runs.driver import Run, Step
from fedlm.fl_core.runs.identity import RunIdentity
from fedlm.fl_core.runs.private_releases import PrivacyTerms, begun_run, planned_training
from fedlm.fl_core.runs.round_rows import Divergence, named_scores
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.runs.summary import describe_training
from fedlm.models.base import Params, parameter_count
from fedlm.models.precision import precision_scope
from fedlm.simulations.pretraining.batches.dropout import DropoutKeys
from fedlm.simulations.pretraining.batches.masking import MaskedWords
from fedlm.simulations.pretraining.batches.pipeline import LogicalBatch, Transform, logical_batches
from fedlm.simulations.pretraining.batches.sampling import Batches, ShuffledBatches
from fedlm.simulations.pretraining.evaluation import scored_batches
from fedlm.simulations.pretraining.flops import peak_flops, training_flops_per_token
from fedlm.simulations.pretraining.preparing import PreparedPretraining, prepare_pretraining, trainer_of
from fedlm.simulations.pretraining.private_steps import private_batches
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.pretraining.trainer import StepReport, TrainState

_COUNTED_UNITS = 1000
"""The mean length of all sequences is reckoned from so many."""
_QUANTILES = {"gradient_norm_p10": 0.1, "gradient_norm_p50": 0.5, "gradient_norm_p90": 0.9}


class Observer(Protocol):
    """Hears what a run tells of itself while it runs, in the first process."""

    def stepped(self, done: int, steps: int, tokens_per_second: float) -> None:
        """Hear that a step is done. Nothing of it was made from a model."""
        return None

    def published(self, row: dict[str, Any]) -> None:
        """Hear a step's numbers, once its model is durable."""
        return None

    def noticed(self, message: str) -> None:
        """Hear what a user should know."""
        return None


class Silence(Observer):
    """An observer that does nothing."""


@lost_processes()
def run_pretraining(settings: Pretraining, out: Path, observer: Observer | None = None) -> dict[str, Any]:
    """Train a model, or the rest of it where `out` holds an unfinished run.

    Writes `metrics.jsonl`, TensorBoard events, checkpoints and, when all is done, `summary.json`. Killed at any instant
    and started again, it ends with the same parameters on the same kind of machine with the same number of devices.
    With privacy, nothing that was made of a model is recorded, or observed, before the model is in a checkpoint and its
    release in the ledger.

    Several processes that `jax.distributed` has joined call it together, with the same settings; only the first touches
    the folder, but all read the data.

    Args:
      out: folder of the run; made where absent.

    Raises:
      UserError: settings, data or an earlier run in `out` do not fit.
    """
    observer = observer or Silence()
    prepared = together(lambda: prepare_pretraining(settings, out))
    if prepared.notice and is_first():
        observer.noticed(prepared.notice)
    identity = prepared.identity()
    identity.check_same_in_all_processes(prepared.precision)
    finished = gather(together(lambda: identity.finished_summary(out, "steps") if is_first() else None))[0]
    if finished is not None:
        # Anybody can write a summary.
        noise = finished.get("noise_multiplier")
        ratio = noise / settings.batch_size if noise else None
        return finished | {"units": prepared.units.describe(), "noise_batch_ratio": ratio}
    private = prepared.plan is not None
    with precision_scope(prepared.precision), RunFolder(out, counter="step", private=private) as folder:
        prepared, terms = _with_terms(prepared, identity, folder)
        run = Run(
            folder,
            identity,
            steps=settings.steps,
            save_every=settings.checkpoint_every,
            find_divergence=prepared.find_divergence,
            privacy=terms,
        )
        steps = _Training(prepared, run, observer)
        run.take(steps.steps(), observer.published)
        return steps.finish()


def _with_terms(
    prepared: PreparedPretraining, identity: RunIdentity, folder: RunFolder
) -> tuple[PreparedPretraining, PrivacyTerms | None]:
    """Say what a private run promises, as it was planned when it was begun."""
    if prepared.plan is None:
        return prepared, None
    settings, begun = prepared.settings, begun_run(folder)
    if begun is not None:
        prepared = prepared.going_on(begun)
    plan, seed = prepared.plan, settings.seed if settings.noise_seed == "experiment" else None
    assert plan is not None
    training = planned_training("pretrain", folder.directory, plan, prepared.training_data)
    origins = identity.origins if begun is None else begun.origins
    reservation = prepared.capabilities.reservation(training, origins)
    return prepared, PrivacyTerms(plan, prepared.delta, seed, reservation=reservation)


class _Training:
    """The steps of a run in its folder."""

    def __init__(self, prepared: PreparedPretraining, run: Run, observer: Observer):
        settings = prepared.settings
        self._prepared, self._run, self._observer = prepared, run, observer
        self._rates = settings.learning_rates()
        self._trainer = trainer_of(prepared)
        frozen = prepared.capabilities.frozen(prepared.frozen_shapes(), run.folder.directory)
        if frozen:
            self._trainer.take_frozen(frozen)
        params = self._fresh_params()
        fresh = self._trainer.fresh(params)
        if prepared.plan is not None:
            fresh = fresh._replace(noise=make_noise(prepared.plan).init(params))
        state = from_first(run.resume(fresh))
        prepared.capabilities.keep(run.folder.directory)
        if prepared.plan is not None:
            # Where noise begins anew, that of the checkpoint is over.
            begun, end = run.standing.noise_from, run.standing.end
            assert begun is not None
            self._noise = make_noise(prepared.plan, begun, end)
            self._draw = self._trainer.draw_noise(bytes.fromhex(run.standing.secret))
            if run.standing.fresh_noise:
                state = state._replace(noise=self._noise.init(params))
        self._state = self._trainer.place(state)

    def _fresh_params(self) -> Params:
        prepared = self._prepared
        return prepared.capabilities.first(prepared.trained.init(device_key(prepared.settings.seed, "init")))

    def steps(self) -> Iterator[Step]:
        """Take the steps that are left."""
        prepared, settings, left = self._prepared, self._prepared.settings, self._run.remaining
        transform: Transform | None = None
        if prepared.model.objective == "masked":
            transform = MaskedWords(prepared.store.vocabulary_size, self._draw_seed)
        if prepared.drops:
            transform = DropoutKeys(self._draw_seed, transform)
        data = logical_batches(
            prepared.units,
            self._batches(),
            first_step=left.start,
            steps=len(left),
            physical_batch=self._trainer.chunk_units,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            transform=transform,
            reads_last=self._reads_last,
        )
        heldout = list(scored_batches(prepared.model, prepared.heldout, settings.length, settings.heldout_examples))
        expected_tokens = self._expected_tokens()
        started = time.monotonic()
        for batch in data:
            self._state, report = self._step(self._state, batch)
            report = jax.device_get(report)
            done = batch.step + 1
            row = self._row(batch, report)
            if done % settings.evaluate_every == 0 or done == left.stop:
                row |= named_scores(self._evaluate(heldout), "heldout")
            started, seconds = time.monotonic(), time.monotonic() - started
            row |= {"seconds": seconds, **self._speed(batch, seconds)}
            yield Step(done, row, lambda: self._trainer.whole(self._state), functools.partial(self._run.spent, done))
            if is_first():
                self._observer.stepped(done, settings.steps, seconds and expected_tokens / seconds)

    def _evaluate(self, batches: Iterable[Any]) -> Scores:
        return evaluate(self._prepared.model, self._whole_params(), batches)

    def _whole_params(self) -> Params:
        params = self._trainer.whole_params(self._state)
        return self._prepared.capabilities.whole(self._trainer.whole_frozen(), params)

    def _batches(self) -> Batches:
        prepared, settings = self._prepared, self._prepared.settings
        if prepared.plan is None:
            return ShuffledBatches(prepared.units, settings.batch_size, settings.seed)
        return private_batches(prepared.plan, prepared.units, settings.batch_size, self._draw_seed)

    @property
    def _draw_seed(self) -> int | bytes:
        """What batches, masks and dropout follow from: of a private run a secret, for masks go by a unit's number,
        which one unit more may change for all others."""
        secret = self._run.standing.draw_seed
        return self._prepared.settings.seed if secret is None else bytes.fromhex(secret)

    def _step(self, state: TrainState, batch: LogicalBatch) -> tuple[TrainState, StepReport]:
        totals = self._trainer.zero()
        params = state.params
        for number in range(batch.num_chunks):
            totals = self._trainer.add(params, totals, batch.chunk(number))
        noise = None
        if self._prepared.plan is not None:
            noise, after = self._noise.next(state.noise, self._draw)
            state = state._replace(noise=after)
        return self._trainer.step(state, totals, noise)

    def _row(self, batch: LogicalBatch, report: StepReport) -> dict[str, Any]:
        totals = report.totals
        tokens, units = float(totals.tokens), float(totals.units)
        row = {
            "step": batch.step,
            "train_loss": float(totals.loss) / tokens if tokens else None,
            "learning_rate": float(self._rates(batch.step)),
            "batch": batch.size,
            "tokens": int(tokens),
            "gradient_norm": float(report.gradient_norm),
            "finite": bool(report.finite),
        }
        if self._prepared.plan is None:
            return row
        noise = float(report.noise_norm)
        return row | {
            "clipped_fraction": float(totals.clipped) / units if units else None,
            "not_finite": int(totals.not_finite),
            **dict(zip(_QUANTILES, norm_quantiles(totals.norm_counts, list(_QUANTILES.values())), strict=True)),
            "noise_norm": noise,
            "signal_to_noise": float(report.gradient_norm) / noise if noise else None,
        }

    @property
    def _reads_last(self) -> bool:
        return self._prepared.model.objective == "masked"

    def _expected_tokens(self) -> float:
        """Count the tokens that are read in a batch of the expected size, with padding."""
        units = self._prepared.units
        some = np.linspace(0, units.count - 1, min(units.count, _COUNTED_UNITS)).astype(np.int64)
        positions = sum(length * len(those) for length, those in units.by_length(some, self._reads_last))
        return self._prepared.settings.batch_size * units.sequences_per_unit * positions / len(some)

    def _speed(self, batch: LogicalBatch, seconds: float) -> dict[str, Any]:
        rate = batch.positions / max(seconds, 1e-9)
        peak = peak_flops(jax.local_devices()[0].device_kind, self._prepared.precision)
        model, trained = self._prepared.model, self._prepared.trained
        used = training_flops_per_token(model, None if trained is model else trained) * rate
        return {"tokens_per_second": rate, "mfu": used / (peak * jax.device_count()) if peak else None}

    def finish(self) -> dict[str, Any]:
        """Score the test clients and write the summary."""
        prepared, settings, plan, run = self._prepared, self._prepared.settings, self._prepared.plan, self._run
        test = self._evaluate(scored_batches(prepared.model, prepared.test, settings.length, settings.test_examples))
        rows = run.folder.rows
        done = max((row["step"] + 1 for row in rows), default=0)
        if run.divergence is None and not math.isfinite(test.loss):
            run.divergence = Divergence(done - 1, "the test loss is not a finite number")
        whole = functools.partial(prepared.capabilities.whole, self._trainer.whole_frozen())
        ended = Ended(prepared.model, lambda: whole(self._fresh_params()), self._whole_params, prepared.delta)
        return run.finish(
            self._trainer.whole(self._state).params,
            {
                "steps": done,
                **describe_training(prepared.model, prepared.precision, rows, test),
                "trained_parameters": parameter_count(prepared.trained),
                "objective": prepared.model.objective,
                "tokens": sum(row["tokens"] for row in rows),
                "delta": prepared.delta if plan else None,
                "noise_batch_ratio": plan.noise_multiplier / settings.batch_size if plan else None,
                "clipping_method": prepared.clipping.method if prepared.clipping else None,
                "units": prepared.units.describe(),
                **prepared.capabilities.summary(ended),
                "pretraining": settings_as_json(settings),
                "vocabulary_sha256": prepared.store.fingerprint,
                "training_data_sha256": prepared.training_data,
            },
        )

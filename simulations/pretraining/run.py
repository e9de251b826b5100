"""One central training run from beginning to end: resume, steps, scores, checkpoints, summary."""

import json
import time
from pathlib import Path
from typing import Any, Protocol

import jax

from fedlm.fl_core.aggregation import norm_quantiles
from fedlm.fl_core.atomic_files import write_atomically
from fedlm.fl_core.errors import CheckpointError
from fedlm.fl_core.privacy.noise_source import noise_key
from fedlm.fl_core.privacy.plan import LEDGER_FILE
from fedlm.fl_core.privacy.settings import PRIVACY_FOLDER
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.runs.checkpoints import parameters_digest
from fedlm.fl_core.runs.metrics_log import finite_row
from fedlm.fl_core.runs.processes import from_first, gather, is_first, lost_processes, together
from fedlm.fl_core.runs.round_rows import NOT_PRIVATE, named_scores
from fedlm.fl_core.runs.run_folder import RunFolder
from fedlm.fl_core.scores import evaluate
from fedlm.models.precision import precision_scope
from fedlm.simulations.pretraining.evaluation import scored_batches
from fedlm.simulations.pretraining.flops import peak_flops, training_flops_per_token
from fedlm.simulations.pretraining.masking import MaskedWords
from fedlm.simulations.pretraining.optimizers import OPTIMIZERS, learning_rates
from fedlm.simulations.pretraining.pipeline import LogicalBatch, logical_batches
from fedlm.simulations.pretraining.preparing import PreparedPretraining, prepare_pretraining
from fedlm.simulations.pretraining.private_steps import PrivateSteps, Standing, private_batches
from fedlm.simulations.pretraining.records import check_same_settings, finished_summary, summarise
from fedlm.simulations.pretraining.sampling import Batches, ShuffledBatches
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.pretraining.trainer import StepReport, StepRules, Trainer, TrainState

_QUANTILES = {"gradient_norm_p10": 0.1, "gradient_norm_p50": 0.5, "gradient_norm_p90": 0.9}
_MICROBATCH_ON_CPU, _MICROBATCH = 4, 32


class Observer(Protocol):
    """Hears what a run tells of itself while it runs, in the first process."""

    def stepped(self, done: int, steps: int, tokens_per_second: float) -> None:
        """Hear that a step is done. Nothing of it was made from a model.

        Args:
          done: steps so far.
          steps: in all.
          tokens_per_second: of the last step.
        """

    def published(self, row: dict[str, Any]) -> None:
        """Hear a step's numbers, once its model is durable.

        Args:
          row: the metrics row.
        """

    def noticed(self, message: str) -> None:
        """Hear what a user should know.

        Args:
          message: a sentence.
        """


class Silence:
    """An `Observer` that does nothing."""

    def stepped(self, done: int, steps: int, tokens_per_second: float) -> None:
        """See `Observer.stepped`."""

    def published(self, row: dict[str, Any]) -> None:
        """See `Observer.published`."""

    def noticed(self, message: str) -> None:
        """See `Observer.noticed`."""


def run_pretraining(settings: Pretraining, out: Path, observer: Observer | None = None) -> dict[str, Any]:
    """Train a model, or the rest of it where `out` holds an unfinished run.

    Writes `metrics.jsonl`, TensorBoard events, checkpoints and, when all is done, `summary.json`. Killed at any instant
    and started again, it ends with the same parameters on the same kind of machine with the same number of devices.
    With privacy, nothing that was made of a model is recorded, or observed, before the model is in a checkpoint and its
    release in the ledger.

    Several processes that `jax.distributed` has joined call it together, with the same settings; only the first touches
    the folder, but all read the data.

    Args:
      settings: what to run.
      out: folder of the run; made where absent.
      observer: hears of progress, in the first process.

    Returns:
      The summary.

    Raises:
      UserError: settings, data or an earlier run in `out` do not fit.
    """
    observer = observer or Silence()
    prepared = together(lambda: prepare_pretraining(settings))
    if prepared.notice and is_first():
        observer.noticed(prepared.notice)
    finished = gather(together(lambda: finished_summary(prepared, out)))[0]
    if finished is not None:
        return finished
    with precision_scope(prepared.precision), RunFolder(out, counter="step") as folder:
        training = _Training(prepared, folder, observer)
        state = training.run()
        summary = training.summarise(state)
        if is_first():
            write_atomically(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    return gather(summary)[0]


class _Training:
    """The steps of a run in its folder."""

    def __init__(self, prepared: PreparedPretraining, folder: RunFolder, observer: Observer):
        settings = prepared.settings
        self._prepared, self._folder, self._observer = prepared, folder, observer
        rates = learning_rates(settings.schedule, settings.learning_rate, settings.warmup_steps, settings.steps)
        optimizer = OPTIMIZERS[settings.optimizer](
            rates, settings.momentum, settings.beta1, settings.beta2, settings.adam_epsilon, settings.weight_decay
        )
        default = _MICROBATCH_ON_CPU if jax.default_backend() == "cpu" else _MICROBATCH
        rules = StepRules(
            clipping=prepared.clipping,
            noise_multiplier=prepared.plan.noise_multiplier if prepared.plan else 0.0,
            batch_size=settings.batch_size,
            microbatch_size=settings.microbatch_size or default,
        )
        self._rates = rates
        self._trainer = Trainer(prepared.model, optimizer, rules, settings.sharding)
        self._unpublished: list[dict[str, Any]] = []
        self._private: PrivateSteps | None = None
        self._standing: Standing | None = None
        self._diverged: str | None = None

    def run(self) -> TrainState:
        """Take all steps that are left."""
        state, first, end, batches = self._resume()
        self._diverged = self._divergence()
        if self._diverged:
            return state
        settings, prepared = self._prepared.settings, self._prepared
        masks = prepared.model.objective == "masked"
        data = logical_batches(
            prepared.units,
            batches,
            first,
            end - first,
            self._trainer.chunk_units,
            jax.process_index(),
            jax.process_count(),
            MaskedWords(prepared.vocabulary_size, settings.seed) if masks else None,
        )
        heldout = list(scored_batches(prepared.model, prepared.heldout, settings.length, settings.heldout_examples))
        started = time.monotonic()
        for batch in data:
            with lost_processes():
                state, report = self._step(state, batch)
                report = jax.device_get(report)
            done = batch.step + 1
            row = self._row(batch, report)
            if done % settings.evaluate_every == 0 or done == end:
                scores = evaluate(prepared.model, self._trainer.whole_params(state), heldout)  # type: ignore[arg-type]
                row |= named_scores(scores, "heldout")
            started, row["seconds"] = time.monotonic(), time.monotonic() - started
            self._unpublished.append(row | self._speed(batch, row["seconds"]))
            self._diverged = self._divergence()
            if done % settings.checkpoint_every == 0 or done == end or self._diverged:
                self._publish(done, state)
            if is_first():
                self._observer.stepped(
                    done, settings.steps, row["seconds"] and self._expected_tokens() / row["seconds"]
                )
            if self._diverged:
                break
        return state

    def _step(self, state: TrainState, batch: LogicalBatch) -> tuple[TrainState, StepReport]:
        totals = self._trainer.zero()
        params = state.params
        for number in range(batch.num_chunks):
            totals = self._trainer.add(params, totals, batch.chunk(number))
        key = None
        if self._standing is not None:
            key = noise_key(bytes.fromhex(self._standing.secret), (batch.step,))
        return self._trainer.step(state, totals, key)

    def _resume(self) -> tuple[TrainState, int, int, Batches]:
        prepared, settings = self._prepared, self._prepared.settings
        params = prepared.model.init(device_key(settings.seed, "init"))
        if prepared.initial is not None:
            params = prepared.initial.fit(params)
        fresh = self._trainer.fresh(params)
        if prepared.plan is None:
            together(self._refuse_private_folder)
            state, first = self._folder.resume(fresh, self._check_same_run)
            return self._trainer.place(state), first, settings.steps, self._shuffled()
        together(self._check_before_private)
        self._private = PrivateSteps(settings, prepared.plan, prepared.delta, self._folder, fresh, self._check_same_run)
        self._standing = standing = self._private.resume(self._about())
        state = fresh
        if is_first():
            rows = self._folder.about(standing.checkpoint)["rows"] if standing.checkpoint else None
            if standing.checkpoint:
                state = self._folder.restore(standing.checkpoint, fresh)
            self._folder.open_log(standing.next_step, rows)
        batch_seed = standing.batch_seed if settings.noise_seed == "entropy" else settings.seed
        batches = private_batches(prepared.plan, prepared.units, settings.batch_size, batch_seed)
        return self._trainer.place(from_first(state)), standing.next_step, standing.end, batches

    def _shuffled(self) -> Batches:
        return ShuffledBatches(self._prepared.units, self._prepared.settings.batch_size, self._prepared.settings.seed)

    def _refuse_private_folder(self) -> None:
        if (self._folder.directory / PRIVACY_FOLDER / LEDGER_FILE).exists():
            raise CheckpointError(
                f"{self._folder.directory}: holds a private run, and this one has privacy none; give another --out"
            )

    def _check_before_private(self) -> None:
        if is_first() and (found := self._folder.checkpoint_rounds()):
            self._check_same_run(self._folder.about(max(found)))

    def _check_same_run(self, found: dict[str, Any]) -> None:
        if "pretraining" not in found:
            raise CheckpointError(
                f"{self._folder.directory}: holds a run of another kind (of `fedlm simulate`); give another --out"
            )
        check_same_settings(found, self._about())

    def _about(self) -> dict[str, Any]:
        initial = self._prepared.initial
        return {
            "pretraining": self._prepared.settings.as_json(),
            "vocabulary": self._prepared.vocabulary,
            "contents": self._prepared.contents,
            "initial_parameters_sha256": initial.sha256 if initial else None,
        }

    def _publish(self, done: int, state: TrainState) -> None:
        """Write a checkpoint; with privacy, its rows become visible only now."""
        whole = self._trainer.whole(state)
        rows, self._unpublished = [finite_row(row) for row in self._unpublished], []
        if self._private is not None and is_first():
            rows[-1]["epsilon"] = self._private.epsilon(done)
        about = self._about() | {"rows": rows, "data_iterator": {"next_step": done}}
        if self._private is None:
            for row in rows:
                self._folder.append(row)
            self._folder.save(done, whole, about)
        else:
            together(lambda: self._release(done, whole, about, rows))
        if is_first():
            for row in rows:
                self._observer.published(row)

    def _release(self, done: int, whole: TrainState, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        assert self._private is not None
        self._private.save(done, parameters_digest(whole), whole, about)
        for row in rows:
            self._folder.append(row)

    def _divergence(self) -> str | None:
        last = (self._unpublished or self._folder.rows or [{}])[-1]
        if last.get("finite") is False:
            return "a parameter is no finite number any more"
        if "heldout_loss" in last and last["heldout_loss"] is None:
            return "the held-out loss is not a finite number"
        return None

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

    def _expected_tokens(self) -> float:
        settings = self._prepared.settings
        return settings.batch_size * settings.sequences_per_unit * settings.length

    def _speed(self, batch: LogicalBatch, seconds: float) -> dict[str, Any]:
        settings = self._prepared.settings
        tokens = batch.size * settings.sequences_per_unit * settings.length
        rate = tokens / max(seconds, 1e-9)
        peak = peak_flops(jax.local_devices()[0].device_kind, self._prepared.precision)
        used = training_flops_per_token(self._prepared.model) * rate
        return {"tokens_per_second": rate, "mfu": used / (peak * jax.device_count()) if peak else None}

    def summarise(self, state: TrainState) -> dict[str, Any]:
        """Score the test clients and make the summary."""
        prepared, settings = self._prepared, self._prepared.settings
        batches = scored_batches(prepared.model, prepared.test, settings.length, settings.test_examples)
        test = evaluate(prepared.model, self._trainer.whole_params(state), batches)  # type: ignore[arg-type]
        privacy = {"privacy": NOT_PRIVATE} if self._private is None else self._private.statement()
        params = self._trainer.whole(state).params
        return summarise(prepared, params, self._folder.rows, test, self._diverged, privacy)

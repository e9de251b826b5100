"""A central training run whose settings and data have been found to fit."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlm.fl_core.clipping.methods import Clipping, method_for
from fedlm.fl_core.composed_settings import idle_names, path_settings, settings_as_json
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta, default_delta, large_delta
from fedlm.fl_core.privacy.origins.run_origins import Origins
from fedlm.fl_core.privacy.private_plan import Beside
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.runs.capabilities.interface import Clipped, Opening
from fedlm.fl_core.runs.capabilities.run_capabilities import Capabilities
from fedlm.fl_core.runs.identity import Fact, RunIdentity
from fedlm.fl_core.runs.private_releases import BegunRun, begun_in
from fedlm.fl_core.runs.round_rows import Divergence
from fedlm.models.base import Model, Params
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import create_model
from fedlm.models.training_shapes import shapes_of_training
from fedlm.simulations.data.federated_data import StoredData, open_splits
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.pretraining.batches.opening_units import open_units
from fedlm.simulations.pretraining.batches.privacy_units import Units
from fedlm.simulations.pretraining.batches.sequences_of_users import sequences_of_users
from fedlm.simulations.pretraining.capabilities import CAPABILITIES
from fedlm.simulations.pretraining.microbatches import StepRules
from fedlm.simulations.pretraining.optimizers import OPTIMIZERS, Constants
from fedlm.simulations.pretraining.private_steps import plan_privacy
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.pretraining.trainer import Trainer

_MICROBATCH_ON_CPU, ACCELERATOR_MICROBATCH = 4, 32
MOST_UNITS_AT_ONCE = 1024
"""In a microbatch with privacy. Rounding in float32 grows with the sum, and the room that is left for it does not."""


class PreparedPretraining(NamedTuple):
    """A run whose settings and data have been found to fit."""

    settings: Pretraining
    store: TokenStore
    model: Model  # the whole one, with the data's vocabulary, in the policy's precision
    trained: Model  # that of which the parameters are trained, in the same; the whole one itself where all are
    precision: Precision
    units: Units
    heldout: StoredData
    test: StoredData
    training_data: str | None  # fingerprint of the training clients' text; None where it is not known
    plan: PrivacyPlan | None  # of its privacy; None without
    delta: float
    clipping: Clipping | None  # of gradients; None without privacy
    notice: str | None  # what a user should know before it begins
    capabilities: Capabilities

    @property
    def origins(self) -> Origins:
        """Of what the run begins with."""
        return self.capabilities.origins(Origins(vocabulary=self.store.vocabulary_origin))

    @property
    def drops(self) -> bool:
        """Whether training drops anything, for which batches need keys."""
        return _drops(self.settings, self.capabilities)

    def frozen_shapes(self) -> Params:
        """Give the shapes of the parameters beside which others are trained; none where all are trained."""
        return _frozen_shapes(self.model, self.trained)

    def identity(self) -> RunIdentity:
        """Say what may not change when the run goes on."""
        of_clients = "set of training clients and their text"
        return RunIdentity(
            kind="pretraining",
            settings=self.capabilities.recorded(settings_as_json(self.settings)),
            facts={
                "vocabulary": Fact(self.store.fingerprint, "vocabulary", ("vocabulary_sha256",)),
                "contents": Fact(self.store.contents, "content of data"),
                "training_data_sha256": Fact(self.training_data, of_clients, ("training_data_sha256",)),
                **self.capabilities.named_facts(),
            },
            paths=path_settings(Pretraining),
            may_change=("microbatch_size", "sharding", "clipping", *idle_names(self.settings)),
            origins=self.origins,
            unchecked=self.capabilities.about(),
        )

    def find_divergence(self, rows: list[dict[str, Any]]) -> Divergence | None:
        """Decide from the rows so far whether the run has diverged. When a private run ends follows from its parameters
        alone: who is held out may be among those whom this run, or one before it, was trained on, and no noise hides
        what follows from their text."""
        last = rows[-1] if rows else {}
        if last.get("finite") is False:
            return Divergence(last["step"], "a parameter is no finite number any more")
        if self.plan is None and "heldout_loss" in last and last["heldout_loss"] is None:
            return Divergence(last["step"], "the held-out loss is not a finite number")
        return None

    def going_on(self, begun: BegunRun) -> "PreparedPretraining":
        """Plan a private run again that goes on, by what it has written down when it was begun."""
        beside = Beside(begun.origins, self.training_data)
        return self._replace(plan=plan_privacy(self.settings, self.units, self.delta, beside, known=begun.plan))


def prepare_pretraining(settings: Pretraining, out: Path | None = None) -> PreparedPretraining:
    """Open a run's data and build its model.

    Args:
      out: the folder in which the run may have been begun, only read.

    Raises:
      UserError: settings or data do not fit.
    """
    store = TokenStore.open(settings.data)
    settings = _packed(settings, store)
    opening = _opening(settings, store, out)
    capabilities = Capabilities.read(CAPABILITIES, opening)
    units = _units(settings, store, capabilities)
    delta = _delta(settings, units)
    beside = Beside(capabilities.origins(Origins(vocabulary=store.vocabulary_origin)), opening.training_data)
    plan = functools.cache(functools.partial(_plan, settings, units, delta=delta, beside=beside, out=out))
    capabilities = capabilities.planned(lambda: plan().noise_multiplier / settings.batch_size)
    model, trained = _models(settings, store, capabilities)
    clipping, notice = _clipping(settings, model, trained, _drops(settings, capabilities))
    notices = (notice, units.cut, large_delta(delta, units.promised_to) if opening.private else None)
    return PreparedPretraining(
        settings=settings,
        store=store,
        model=model,
        trained=trained,
        precision=resolve_precision(settings.precision, jax.default_backend()),
        units=units,
        **open_splits(store, ("heldout", "test"), settings.length),
        training_data=opening.training_data,
        plan=plan() if opening.private else None,
        delta=delta,
        clipping=clipping,
        notice="; ".join(filter(None, notices)) or None,
        capabilities=capabilities,
    )


def _packed(settings: Pretraining, store: TokenStore) -> Pretraining:
    """Say how texts become sequences, as if it had been given; refuse data that a model's objective cannot learn."""
    apart = store.has_completions or store.item_sequences
    if create_model(settings.model).objective != "causal" and apart:
        what = "sequences of items" if store.item_sequences else "prompts and completions"
        raise ConfigurationError(
            f"the model {settings.model} predicts masked words, but {store.path} has {what}; give a model that "
            "predicts the next token, or data that was imported as texts"
        )
    return dataclasses.replace(settings, packing=settings.packing or ("none" if apart else "packed"))


def _opening(settings: Pretraining, store: TokenStore, out: Path | None) -> Opening:
    private = settings.privacy != "none"
    whole = settings.unit == "user" or store.item_sequences
    return Opening(
        settings=settings,
        private=private,
        secret=settings.noise_seed == "entropy",
        vocabulary=store.fingerprint,
        data=store,
        training_data=store.training_data(check=private),
        clipped=Clipped("client" if whole else "example", settings.length, str(settings.packing)),
        folder=out,
    )


def _units(settings: Pretraining, store: TokenStore, capabilities: Capabilities) -> Units:
    assert settings.packing is not None
    units = open_units(
        store,
        "train",
        length=settings.length,
        unit=settings.unit,
        packing=settings.packing,
        sequences_per_unit=settings.sequences_per_unit,
        seed=settings.seed,
        cache=settings.cache or settings.data / "cache",
        check=settings.privacy != "none",
    )
    units = capabilities.data(sequences_of_users(units) if settings.sampling == "examples" else units)
    if settings.batch_size > units.count:
        raise ConfigurationError(
            f"{setting('batch_size')} is {settings.batch_size}, but there are only {units.count} "
            f"{'sequences' if settings.sampling == 'examples' else 'units'}"
        )
    return units


def _delta(settings: Pretraining, units: Units) -> float:
    delta = default_delta(units.promised_to) if settings.delta is None else settings.delta
    if settings.privacy != "none":
        check_delta(delta)
    return delta


def _plan(settings: Pretraining, units: Units, *, delta: float, beside: Beside, out: Path | None) -> PrivacyPlan:
    # The bands of a run that goes on are not searched for again; what else it has promised is `going_on`'s.
    begun = begun_in(out) if settings.privacy != "none" and out is not None else None
    return plan_privacy(settings, units, delta, beside, known=begun and begun.plan)


def _models(settings: Pretraining, store: TokenStore, capabilities: Capabilities) -> tuple[Model, Model]:
    """Build the whole model, and make that of which the parameters are trained."""
    precision = resolve_precision(settings.precision, jax.default_backend())
    built = create_model(settings.model, store.vocabulary_size, store.special_tokens, **capabilities.constants())
    # Where batches have no keys, as in evaluation, nothing is dropped.
    whole = with_dropout(built, settings.dropout)
    model, trained = with_precision(whole, precision), capabilities.trained(whole)
    return model, model if trained is whole else with_precision(trained, precision)


def _drops(settings: Pretraining, capabilities: Capabilities) -> bool:
    return bool(settings.dropout or capabilities.drops())


def _frozen_shapes(model: Model, trained: Model) -> Params:
    return () if trained is model else jax.eval_shape(model.init, jax.random.key(0))


def default_microbatch_size() -> int:
    """Say how many units a device takes at once where nothing is said."""
    return _MICROBATCH_ON_CPU if jax.default_backend() == "cpu" else ACCELERATOR_MICROBATCH


def trainer_of(prepared: PreparedPretraining, devices: Sequence[jax.Device] | None = None) -> Trainer:
    """Make what takes the steps of a run, on some devices; on all where None."""
    settings = prepared.settings
    constants = Constants(
        momentum=settings.momentum,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
    )
    optimizer = OPTIMIZERS[settings.optimizer](settings.learning_rates(), constants)
    rules = StepRules(
        clipping=prepared.clipping,
        noise_multiplier=prepared.plan.noise_multiplier if prepared.plan else 0.0,
        batch_size=settings.batch_size,
        microbatch_size=settings.microbatch_size or default_microbatch_size(),
        drops=prepared.drops,
    )
    return Trainer(
        prepared.trained, optimizer, rules, settings.sharding, devices=devices, frozen=prepared.frozen_shapes()
    )


def _clipping(settings: Pretraining, model: Model, trained: Model, drops: bool) -> tuple[Clipping | None, str | None]:
    """Choose how gradients are clipped, and refuse a model that cannot read sequences of this length."""
    _, batch = shapes_of_training(settings.model, model, settings.length)
    if settings.privacy == "none":
        return None, None
    microbatch_size = settings.microbatch_size or default_microbatch_size()
    if microbatch_size > MOST_UNITS_AT_ONCE:
        raise ConfigurationError(
            f"{setting('microbatch_size')} is {microbatch_size}, but with privacy at most {MOST_UNITS_AT_ONCE} units "
            "may be summed in 32-bit floating point at once, whose rounding is accounted for; give "
            f"{MOST_UNITS_AT_ONCE} or less"
        )
    params = jax.eval_shape(trained.init, jax.random.key(0))
    if drops:
        batch = batch._replace(dropout=jax.ShapeDtypeStruct((2, 2), np.uint32))
    method, notice = method_for(settings.clipping, trained, params, batch, frozen=_frozen_shapes(model, trained))
    return Clipping(method, settings.clip_norm, settings.clip_function), notice

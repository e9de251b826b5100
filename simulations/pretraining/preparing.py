"""A central training run whose settings and data have been found to fit."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedlm.fl_core.clipping.methods import Clipping, method_for
from fedlm.fl_core.composed_settings import settings_as_json
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.accounting.delta import check_delta, default_delta, large_delta
from fedlm.fl_core.privacy.origins.ancestry import Phase
from fedlm.fl_core.privacy.origins.relevance_origin import Relevance, RelevanceOrigin
from fedlm.fl_core.privacy.origins.vocabulary_origin import VocabularyOrigin
from fedlm.fl_core.privacy.promise.plan import PrivacyPlan
from fedlm.fl_core.reattention import Reattention, reattention_of, relevance_of_run
from fedlm.fl_core.runs.data_budget import budget_of
from fedlm.fl_core.runs.initial_parameters import InitialParameters, read_parameters
from fedlm.fl_core.runs.private_releases import plan_in
from fedlm.models.base import Model, Params
from fedlm.models.layers.dropout import with_dropout
from fedlm.models.layers.lora import LoraConfig, lora_model
from fedlm.models.precision import Precision, resolve_precision, with_precision
from fedlm.models.registry import create_model
from fedlm.models.training_shapes import shapes_of_training
from fedlm.simulations.data.federated_data import StoredData, open_splits
from fedlm.simulations.data.store.token_store import TokenStore
from fedlm.simulations.pretraining.inserted_canaries import canaries_of, with_canaries
from fedlm.simulations.pretraining.optimizers import OPTIMIZERS
from fedlm.simulations.pretraining.privacy_units import Units, open_units
from fedlm.simulations.pretraining.private_steps import plan_privacy
from fedlm.simulations.pretraining.settings import Pretraining
from fedlm.simulations.pretraining.trainer import StepRules, Trainer

_MICROBATCH_ON_CPU, ACCELERATOR_MICROBATCH = 4, 32
MOST_UNITS_AT_ONCE = 1024
"""In a microbatch with privacy. Rounding in float32 grows with the sum, and the room that is left for it does not."""


class Adapters(NamedTuple):
    """Adapters that are trained in place of a whole model."""

    config: LoraConfig
    model: Model  # whose parameters they are, in the policy's precision


class PreparedPretraining(NamedTuple):
    """A run whose settings and data have been found to fit."""

    settings: Pretraining
    model: Model  # the whole one, with the data's vocabulary, in the policy's precision
    adapters: Adapters | None  # what is trained in place of the whole model, where the settings say so
    precision: Precision
    units: Units
    heldout: StoredData
    test: StoredData
    vocabulary: str  # fingerprint of the data's tokenizer
    vocabulary_origin: VocabularyOrigin
    contents: str
    training_data: str | None  # fingerprint of the training clients' text; None where it is not known
    vocabulary_size: int
    initial: InitialParameters | None  # parameters of an earlier run to begin with, where the settings name one
    plan: PrivacyPlan | None  # of its privacy; None without
    delta: float
    clipping: Clipping | None  # of gradients; None without privacy
    notice: str | None  # what a user should know before it begins
    reattention: Reattention | None = None  # the constants of its model; None without re-attention, or without noise

    @property
    def trained(self) -> Model:
        """The model whose parameters are trained, in the policy's precision."""
        return self.model if self.adapters is None else self.adapters.model

    @property
    def drops(self) -> bool:
        """Whether training drops anything, for which batches need keys."""
        return bool(self.settings.dropout or (self.adapters is not None and self.adapters.config.dropout))

    def frozen_shapes(self) -> Params:
        """Give the shapes of the parameters that adapters are trained beside."""
        return jax.eval_shape(self.model.init, jax.random.key(0))

    def going_on(
        self,
        known: PrivacyPlan,
        ancestry: Sequence[Phase],
        vocabulary: VocabularyOrigin,
        relevance: RelevanceOrigin | None,
    ) -> "PreparedPretraining":
        """Plan a private run again that goes on, by what it has written down when it was begun."""
        plan = plan_privacy(
            self.settings, self.units, self.delta, self.training_data, ancestry, known, vocabulary, relevance
        )
        return self._replace(plan=plan)


def prepare_pretraining(settings: Pretraining, out: Path | None = None) -> PreparedPretraining:
    """Open a run's data and build its model.

    Args:
      out: the folder in which the run may have been begun, only read.

    Returns:
      What `run_pretraining` works with.

    Raises:
      UserError: settings or data do not fit.
    """
    create_model(settings.model)
    precision = resolve_precision(settings.precision, jax.default_backend())
    store = TokenStore.open(settings.data)
    whole = create_model(settings.model, store.vocabulary_size, store.special_tokens)
    # Where batches have no keys, as in evaluation, nothing is dropped.
    whole = with_dropout(whole, settings.dropout)
    model, adapters = with_precision(whole, precision), None
    if (lora := settings.lora_config()) is not None:
        adapters = Adapters(lora, with_precision(lora_model(whole, lora), precision))
    apart = store.has_completions or store.item_sequences
    if apart and model.objective != "causal":
        what = "sequences of items" if store.item_sequences else "prompts and completions"
        raise ConfigurationError(
            f"the model {settings.model} predicts masked words, but {store.path} has {what}; give a model that "
            "predicts the next token, or data that was imported as texts"
        )
    # Recorded as if it had been given.
    settings = dataclasses.replace(settings, packing=settings.packing or ("none" if apart else "packed"))
    assert settings.packing is not None
    units = open_units(
        store,
        "train",
        settings.length,
        settings.unit,
        settings.packing,
        settings.sequences_per_unit,
        settings.seed,
        settings.cache or settings.data / "cache",
        check=settings.privacy != "none",
    )
    if canaries := canaries_of(settings_as_json(settings), store.vocabulary_size, store.special_tokens):
        units = with_canaries(units, canaries)
    if settings.batch_size > units.count:
        raise ConfigurationError(
            f"{setting('batch_size')} is {settings.batch_size}, but there are only {units.count} units"
        )
    delta = default_delta(units.count) if settings.delta is None else settings.delta
    private = settings.privacy != "none"
    if private:
        check_delta(delta)
    clipping, notice = _clipping(settings, model, adapters)
    large = large_delta(delta, units.count) if private else None
    notice = "; ".join(one for one in (notice, units.cut, large) if one) or None
    training_data = store.training_data(check=private)
    budget_of(store.path, private and settings.noise_seed == "entropy")
    initial = None
    if settings.init_from is not None:
        initial = read_parameters(
            settings.init_from, store.fingerprint, settings.model, settings.initial_data, training_data, out
        )
    relevance = _relevance(settings, store, private, training_data)
    plan, reattention = None, None
    if private:
        # The bands of a run that goes on are not searched for again; what else it has promised is `going_on`'s.
        known = None if out is None else plan_in(out)
        ancestry, vocabulary = initial.ancestry if initial else (), store.vocabulary_origin
        origin = None if relevance is None else relevance.origin
        plan = plan_privacy(settings, units, delta, training_data, ancestry, known, vocabulary, origin)
        # The noise that attention is corrected for is known from here on.
        ratio = plan.noise_multiplier / settings.batch_size
        reattention = reattention_of(relevance, settings, ratio, settings.seed)
    if reattention is not None:
        corrected = create_model(settings.model, store.vocabulary_size, store.special_tokens, reattention.errors)
        model = with_precision(with_dropout(corrected, settings.dropout), precision)
        clipping, _ = _clipping(settings, model, adapters)
    return PreparedPretraining(
        settings=settings,
        model=model,
        adapters=adapters,
        precision=precision,
        units=units,
        **open_splits(store, ("heldout", "test"), settings.length),
        vocabulary=store.fingerprint,
        vocabulary_origin=store.vocabulary_origin,
        contents=store.contents,
        training_data=training_data,
        vocabulary_size=store.vocabulary_size,
        initial=initial,
        plan=plan,
        delta=delta,
        clipping=clipping,
        notice=notice,
        reattention=reattention,
    )


def _relevance(settings: Pretraining, store: TokenStore, private: bool, training_data: str | None) -> Relevance | None:
    return relevance_of_run(
        settings,
        settings.model,
        private,
        store.path,
        store.fingerprint,
        training_data,
        (
            "client" if settings.unit == "user" or store.item_sequences else "example",
            settings.length,
            str(settings.packing),
        ),
        settings.lora_rank is not None,
    )


def default_microbatch_size() -> int:
    """Say how many units a device takes at once where nothing is said."""
    return _MICROBATCH_ON_CPU if jax.default_backend() == "cpu" else ACCELERATOR_MICROBATCH


def trainer_of(prepared: PreparedPretraining, devices: Sequence[jax.Device] | None = None) -> Trainer:
    """Make what takes the steps of a run, on some devices; on all where None."""
    settings = prepared.settings
    optimizer = OPTIMIZERS[settings.optimizer](
        settings.learning_rates(),
        settings.momentum,
        settings.beta1,
        settings.beta2,
        settings.adam_epsilon,
        settings.weight_decay,
    )
    rules = StepRules(
        clipping=prepared.clipping,
        noise_multiplier=prepared.plan.noise_multiplier if prepared.plan else 0.0,
        batch_size=settings.batch_size,
        microbatch_size=settings.microbatch_size or default_microbatch_size(),
        drops=prepared.drops,
    )
    frozen = () if prepared.adapters is None else prepared.frozen_shapes()
    return Trainer(prepared.trained, optimizer, rules, settings.sharding, devices, frozen)


def _clipping(settings: Pretraining, model: Model, adapters: Adapters | None) -> tuple[Clipping | None, str | None]:
    """Choose how gradients are clipped, and refuse a model that cannot read sequences of this length."""
    params, batch = shapes_of_training(settings.model, model, settings.length)
    if settings.privacy == "none":
        return None, None
    microbatch_size = settings.microbatch_size or default_microbatch_size()
    if microbatch_size > MOST_UNITS_AT_ONCE:
        raise ConfigurationError(
            f"{setting('microbatch_size')} is {microbatch_size}, but with privacy at most {MOST_UNITS_AT_ONCE} units "
            "may be summed in 32-bit floating point at once, whose rounding is accounted for; give "
            f"{MOST_UNITS_AT_ONCE} or less"
        )
    trained, frozen = model, ()
    if adapters is not None:
        trained, frozen, params = adapters.model, params, jax.eval_shape(adapters.model.init, jax.random.key(0))
    if settings.dropout or (adapters is not None and adapters.config.dropout):
        batch = batch._replace(dropout=jax.ShapeDtypeStruct((2, 2), np.uint32))
    method, notice = method_for(settings.clipping, trained, params, batch, frozen)
    return Clipping(method, settings.clip_norm, settings.clip_function), notice

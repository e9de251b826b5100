"""Low-rank adapters: trained beside the parameters of an earlier run, which stay as they are."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax

from fedlm.fl_core.runs.capabilities.frozen_parameters import with_adapters
from fedlm.fl_core.runs.capabilities.interface import Opening
from fedlm.fl_core.runs.capabilities.lora_settings import LoraSettings
from fedlm.fl_core.runs.capabilities.warm_start import InitialParameters, WarmStart, initial_of
from fedlm.models.base import Model, Params
from fedlm.models.layers.lora import LoraConfig, lora_model, merge


class Adapters(WarmStart):
    """A warm start of which adapters alone are trained."""

    def __init__(self, initial: InitialParameters, config: LoraConfig):
        """Train adapters beside parameters that were read."""
        super().__init__(initial)
        self._config = config

    @classmethod
    def of(cls, opening: Opening) -> "Adapters | None":
        config = opening.part(LoraSettings).lora_config()
        if config is None:
            return None
        initial = initial_of(opening)
        assert initial is not None
        return cls(initial, config)

    def opened(self, opening: Opening) -> Opening:
        return dataclasses.replace(opening, trained_by="lora_rank")

    def drops(self) -> bool:
        return self._config.dropout > 0

    def trained(self, model: Model) -> Model:
        return _adapted(model, self._config)

    def first(self, params: Params) -> Params:
        return params

    def frozen(self, like: Params, folder: Path) -> Params:
        return self.initial.frozen(like, folder)

    def whole(self, frozen: Params, trained: Params) -> Params:
        return _merged(self._config, frozen, trained)

    def keep(self, folder: Path) -> None:
        self.initial.keep(folder)

    @staticmethod
    def recorded_parameters(folder: Path, about: dict[str, Any], stored: Params) -> Params:
        return with_adapters(folder, about, stored)


# The same object for the same model lets the next run of a comparison reuse compiled programs.
@functools.lru_cache(maxsize=32)
def _adapted(model: Model, config: LoraConfig) -> Model:
    return lora_model(model, config)


_merged = jax.jit(merge, static_argnums=0)

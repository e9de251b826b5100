"""The settings of low-rank adapters, of any kind of run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fedlm.fl_core.composed_settings import PartSettings, part_of
from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.idle_settings import OnlyWith
from fedlm.fl_core.number_ranges import Count, Decay, Positive
from fedlm.fl_core.runs.capabilities.warm_start_settings import WarmStartSettings
from fedlm.models.layers.lora import LoraConfig


@dataclass(frozen=True, kw_only=True)
class LoraSettings(PartSettings):
    """Low-rank adapters in place of the whole model."""

    lora_rank: Count | None = None
    """Train adapters of this rank (LoRA) instead of the parameters of init-from. Those stay as they are: they have no
    gradient, noise or optimizer state, are neither sent nor in checkpoints, and only adapters are clipped."""
    lora_alpha: Annotated[Positive | None, OnlyWith("lora_rank")] = None
    """The output of adapters is multiplied by this over the rank. If not given, by 1."""
    lora_dropout: Annotated[Decay, OnlyWith("lora_rank")] = 0.0
    """Share of the adapters' input to drop in training."""
    lora_matrices: Annotated[tuple[str, ...], OnlyWith("lora_rank")] = ()
    """Dense layers that have adapters, by name: query, key, value, attention_output, mlp_input, mlp_output, in Gemma
    mlp_gate too; in recurrent models input, recurrent, projection. If not given, all."""

    def lora_config(self) -> LoraConfig | None:
        """Say which adapters are trained; None where the whole model is."""
        if self.lora_rank is None:
            return None
        alpha = float(self.lora_rank) if self.lora_alpha is None else self.lora_alpha
        return LoraConfig(self.lora_rank, alpha, self.lora_dropout, self.lora_matrices)

    def check_run(self, run: Any) -> None:
        if self.lora_rank is None:
            return
        if part_of(run, WarmStartSettings).init_from is None:
            raise ConfigurationError(
                f"{setting('lora_rank')} trains adapters of a model that is there already; give "
                f"{setting('init_from')}, the folder of its run"
            )
        if len(set(self.lora_matrices)) < len(self.lora_matrices):
            raise ConfigurationError(
                f"{setting('lora_matrices')} is {self.lora_matrices}, but must name each only once"
            )


def recorded_lora(settings: Mapping[str, Any]) -> LoraConfig | None:
    """Read from the recorded settings of a run which adapters it trained; None where it trained the whole model."""
    names = ("lora_rank", "lora_alpha", "lora_dropout", "lora_matrices")
    known = {name: settings[name] for name in names if name in settings}
    if isinstance(known.get("lora_matrices"), list):
        known["lora_matrices"] = tuple(known["lora_matrices"])
    return LoraSettings(**known).lora_config()

"""The settings of the capabilities that simulations and central trainings both have: a new one is a line of each."""

from dataclasses import dataclass, field

from fedlm.fl_core.runs.capabilities.lora_settings import LoraSettings
from fedlm.fl_core.runs.capabilities.reattention import ReattentionSettings
from fedlm.fl_core.runs.capabilities.warm_start_settings import WarmStartSettings


@dataclass(frozen=True, kw_only=True)
class OfSimulations:
    """Of simulated runs."""

    start: WarmStartSettings = field(default_factory=WarmStartSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    reattention: ReattentionSettings = field(default_factory=ReattentionSettings)


@dataclass(frozen=True, kw_only=True)
class OfPretraining(LoraSettings, ReattentionSettings):
    """Of central trainings."""

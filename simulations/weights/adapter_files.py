"""Adapters as Hugging Face's PEFT keeps them: adapter_config.json and adapter_model.safetensors."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.errors import ConfigurationError, setting
from fedlm.fl_core.privacy.origins.ancestry import settings_in
from fedlm.fl_core.runs.capabilities.lora_settings import recorded_lora
from fedlm.models.base import Params
from fedlm.models.hugging_face.named_states import own_names
from fedlm.models.layers.lora import LORA_A, LORA_B, LoraConfig
from fedlm.simulations.weights.tensor_files import write_file

ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_WITHIN = "base_model.model"
"""What names begin with: the model that PEFT wraps."""
_KINDS = {LORA_A: "lora_A.weight", LORA_B: "lora_B.weight"}


class StoredAdapters(NamedTuple):
    """The adapters of a run."""

    config: LoraConfig
    params: Params  # NumPy arrays, see `fedlm.models.layers.lora.lora_model`


def stored_adapters(about: dict[str, Any], trained: Params) -> StoredAdapters | None:
    """Find the adapters among what a run trained and says of itself; None where it trained the whole model."""
    config = recorded_lora(settings_in(about))
    return None if config is None else StoredAdapters(config, jax.tree_util.tree_map(np.asarray, trained))


def no_adapters(run: Path) -> ConfigurationError:
    """Make the error that says that a run trained the whole model."""
    return ConfigurationError(
        f"{run}: has no adapters, for it trained the whole model; give another {setting('format')}, or a run with "
        f"{setting('lora_rank')}"
    )


def adapter_tensors(adapters: Params, names: Params) -> dict[str, NDArray[Any]]:
    """Name adapters, `[outputs, inputs]` as PyTorch has matrices: `lora_A` is [rank, inputs].

    Args:
      adapters: those of `fedlm.models.layers.lora.lora_model`, NumPy arrays.
      names: the tensors of the model that they belong to, arranged as its parameters are.
    """
    own, theirs = (jax.tree_util.tree_leaves(tree) for tree in (own_names(names), names))
    modules = {_module(one): _module(other) for one, other in zip(own, theirs, strict=True)}
    tensors: dict[str, NDArray[Any]] = {}
    leaves = zip(jax.tree_util.tree_leaves(own_names(adapters)), jax.tree_util.tree_leaves(adapters), strict=True)
    for name, leaf in leaves:
        module, _, kind = name.rpartition(".")
        tensors[f"{_WITHIN}.{modules[module]}.{_KINDS[kind]}"] = np.asarray(leaf).T
    return tensors


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def write_adapters(
    folder: Path, config: LoraConfig, tensors: dict[str, NDArray[Any]], *, base: str, objective: str
) -> None:
    """Write adapters into a folder.

    Args:
      tensors: of `adapter_tensors`.
      base: where the model is that they belong to, for whoever reads the folder.
      objective: of the model, see `fedlm.models.base.Model`.
    """
    ends = tuple(f".{kind}" for kind in _KINDS.values())
    modules = {
        name.removeprefix(f"{_WITHIN}.").removesuffix(end) for name in tensors for end in ends if name.endswith(end)
    }
    record = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if objective == "causal" else None,
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        # Whole names, since a layer's last word may be that of another which has no adapter.
        "target_modules": sorted(modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
    }
    (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    write_file(folder / ADAPTER_WEIGHTS_FILE, tensors)

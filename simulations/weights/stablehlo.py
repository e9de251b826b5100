"""A model's logits as a StableHLO program, which runs without our code and without jax."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from fedlm.models.base import Model, Params

PROGRAM_FILE, SIGNATURE_FILE = "model.stablehlo", "signature.json"


def write_stablehlo(
    folder: Path, model: Model, names: Params, *, tensors: Mapping[str, Any], batch_size: int, length: int
) -> None:
    """Write the computation of logits for sequences of one shape.

    `model.stablehlo` is a portable artifact of StableHLO (VHLO bytecode) with the function `main`; `signature.json`
    names its arguments in their order: the tensors of model.safetensors that lies beside it, then the tokens.

    Args:
      folder: where they go.
      model: the model.
      names: of tensors, arranged as the parameters are.
      tensors: by name; their types are those of the arguments.
      batch_size: sequences that the program takes.
      length: tokens of each.
    """
    order, structure = jax.tree_util.tree_flatten(names)

    def logits(arrays: list[jax.Array], tokens: jax.Array) -> jax.Array:
        params = jax.tree_util.tree_unflatten(structure, [array.astype(jnp.float32) for array in arrays])
        return model.apply(params, tokens)

    shapes = [jax.ShapeDtypeStruct(tensors[name].shape, tensors[name].dtype) for name in order]
    tokens = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
    # For several platforms at once the program would have one argument more. Nothing here depends on the platform.
    exported = export.export(jax.jit(logits, keep_unused=True), platforms=("cpu",))(shapes, tokens)
    (folder / PROGRAM_FILE).write_bytes(exported.mlir_module_serialized)
    arguments = [
        {"name": name, "shape": list(tensors[name].shape), "dtype": tensors[name].dtype.name} for name in order
    ]
    signature = {
        "arguments": [*arguments, {"name": "tokens", "shape": [batch_size, length], "dtype": "int32"}],
        "result": {"name": "logits", "shape": [batch_size, length, model.vocabulary_size], "dtype": "float32"},
    }
    (folder / SIGNATURE_FILE).write_text(json.dumps(signature, indent=2) + "\n", encoding="utf-8")

"""Logits of sequential recommenders made of PyTorch's layers, for the tests of ours.

GRU4Rec as RecBole makes it, of `torch.nn.GRU`, the same of `torch.nn.LSTM`, and SASRec of `torch.nn.LayerNorm`,
`torch.nn.Linear` and `scaled_dot_product_attention`. Weights are drawn from our parameters' names, so that both sides
draw the same ones. To write the committed file anew:

    PYTHON=benchmarks/simulation/peers/.venv/bin/python
    $PYTHON -m benchmarks.simulation.peers.recommender_logits tests/models/recommender_logits.json
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

ITEMS, WIDTH, HIDDEN, RECURRENT_LAYERS, BLOCKS, HEADS, MLP, LENGTH = 13, 6, 5, 2, 2, 2, 7, 8
"""Sizes of the models; the items include special tokens."""

INPUTS = np.array([[1, 4, 12, 6, 7, 8, 2], [1, 12, 5, 2, 0, 0, 0], [9, 3, 3, 3, 3, 10, 11]])


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a parameter.

    Args:
      name: its path, with points.
      shape: its shape with us.

    Returns:
      float64; a norm's scale is about 1, all else about 0.
    """
    values = 0.4 * np.random.RandomState(zlib.crc32(name.encode())).normal(size=shape)
    return values + name.endswith("norm.scale")


def main() -> None:
    """Compute all in float64 and write them to the file that the command line names."""
    import torch

    torch.set_default_dtype(torch.float64)
    with torch.no_grad():
        found = {"gru4rec": _recurrent("gru"), "lstm4rec": _recurrent("lstm"), "sasrec": _sasrec()}
    rounded = {name: np.round(logits.numpy(), 12).tolist() for name, logits in found.items()}
    Path(sys.argv[1]).write_text(json.dumps(rounded) + "\n", encoding="utf-8")


def _drawn(name: str, *shape: int) -> Any:
    import torch

    return torch.from_numpy(draw(name, shape))


def _recurrent(kind: str) -> Any:
    import torch

    gates = {"gru": 3, "lstm": 4}[kind]
    table = _drawn("embedding.table", ITEMS, WIDTH)
    make = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind]
    layers = make(WIDTH, HIDDEN, RECURRENT_LAYERS, batch_first=True)
    for layer in range(RECURRENT_LAYERS):
        inputs = HIDDEN if layer else WIDTH
        of_inputs = _drawn(f"recurrent.{layer}.input.kernel", inputs, gates * HIDDEN).T
        bias = _drawn(f"recurrent.{layer}.input.bias", gates * HIDDEN)
        second = torch.zeros(gates * HIDDEN)
        if kind == "lstm":
            second[HIDDEN : 2 * HIDDEN] = 1.0
        of_state = _drawn(f"recurrent.{layer}.recurrent.kernel", HIDDEN, gates * HIDDEN).T
        for name, value in (("weight_ih", of_inputs), ("weight_hh", of_state), ("bias_ih", bias), ("bias_hh", second)):
            getattr(layers, f"{name}_l{layer}").copy_(value)
    x, _ = layers(torch.nn.functional.embedding(torch.from_numpy(INPUTS), table) * WIDTH**0.5)
    x = x @ _drawn("projection.kernel", HIDDEN, WIDTH) + _drawn("projection.bias", WIDTH)
    return x @ table.T


def _sasrec() -> Any:
    import torch
    from torch.nn import functional

    table, positions = _drawn("embedding.table", ITEMS, WIDTH), _drawn("positions.table", LENGTH, WIDTH)

    def norm(name: str, x: Any) -> Any:
        scale, shift = (_drawn(f"{name}.{part}", WIDTH) for part in ("scale", "shift"))
        return functional.layer_norm(x, (WIDTH,), scale, shift, eps=1e-6)

    tokens = torch.from_numpy(INPUTS)
    x = (functional.embedding(tokens, table) + positions[: tokens.shape[1]]) * WIDTH**0.5
    for block in range(BLOCKS):
        y = norm(f"blocks.{block}.attention_norm", x)
        heads = (
            (y @ _drawn(f"blocks.{block}.{name}.kernel", WIDTH, WIDTH)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        x = x + functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(-2)
        y = norm(f"blocks.{block}.mlp_norm", x)
        y = y @ _drawn(f"blocks.{block}.mlp_input.kernel", WIDTH, MLP) + _drawn(f"blocks.{block}.mlp_input.bias", MLP)
        y = functional.relu(y) @ _drawn(f"blocks.{block}.mlp_output.kernel", MLP, WIDTH)
        x = x + y + _drawn(f"blocks.{block}.mlp_output.bias", WIDTH)
    return norm("final_norm", x) @ table.T


if __name__ == "__main__":
    main()

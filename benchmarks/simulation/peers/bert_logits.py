"""Logits and parameter counts of Hugging Face's BertForMaskedLM, for the tests of `models/families/bert.py`.

Weights are drawn from each parameter's name, so that both sides draw the same ones. To write the committed file anew:

    PYTHON=benchmarks/simulation/peers/.venv/bin/python
    $PYTHON -m benchmarks.simulation.peers.bert_logits tests/models/bert_logits.json
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, LAYERS, HEADS, WIDTH, POSITIONS = 13, 2, 2, 8, 9
"""Sizes of the model whose logits are compared; the vocabulary includes the mask's id."""

INPUTS = np.array(
    [
        [1, 4, 12, 6, 7, 8, 2],
        [1, 12, 5, 2, 0, 0, 0],
        [9, 0, 0, 0, 0, 0, 0],
        [3, 3, 0, 12, 3, 0, 11],
    ]
)
"""A full row, two that are padded, and one with padding in its middle."""

PUBLISHED = {
    "bert_tiny": (2, 128),
    "bert_mini": (4, 256),
    "bert_small": (4, 512),
    "bert_medium": (8, 512),
    "bert_base": (12, 768),
    "bert_large": (24, 1024),
    "bert_mega": (24, 1536),
}
"""Layers and width of the models whose parameters are counted, with BERT's vocabulary of 30,522."""


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a parameter.

    Args:
      name: what Hugging Face calls it.
      shape: its shape there.

    Returns:
      float32; a layer norm's scale is about 1, all else about 0.
    """
    # The streams of RandomState are frozen for good.
    values = 0.4 * np.random.RandomState(zlib.crc32(name.encode())).normal(size=shape)
    return (values + name.endswith("LayerNorm.weight")).astype(np.float32)


def main() -> None:
    """Compute both in float64 and write them to the file that the command line names."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    def create(vocabulary: int, layers: int, heads: int, width: int, positions: int) -> Any:
        return BertForMaskedLM(
            BertConfig(
                vocab_size=vocabulary,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                hidden_size=width,
                intermediate_size=4 * width,
                max_position_embeddings=positions,
            )
        )

    model = create(VOCABULARY, LAYERS, HEADS, WIDTH, POSITIONS).eval().double()
    with torch.no_grad(), torch.device("cpu"):
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(draw(name, tuple(parameter.shape))))
        inputs = torch.from_numpy(INPUTS)
        logits = model(input_ids=inputs, attention_mask=(inputs != 0).long()).logits
    with torch.device("meta"):
        counts = {
            name: sum(parameter.numel() for parameter in create(30_522, layers, width // 64, width, 512).parameters())
            for name, (layers, width) in PUBLISHED.items()
        }
    found = {"logits": np.round(logits.numpy(), 12).tolist(), "parameters": counts}
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

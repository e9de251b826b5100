"""The benchmark's models in PyTorch that the simulation's benchmark does not have, and untied ones for Opacus."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.simulation.peers.task import Tree
from fedlm.interop.torch import (
    CifgModel,
    LanguageModel,
    SiCifgModel,
    SiTransformerModel,
    TransformerModel,
    layer_norm,
    linear,
)

HEADS = {"transformer_tiny": 4, "transformer_1m": 4, "transformer_11m": 8, "transformer_21m": 8}
BERT_HEAD_SIZE = 64


def create(name: str, params: Tree) -> LanguageModel:
    """Build a model by the name that fedlm has for it.

    Args:
      name: of a CIFG, an SI-CIFG, a Transformer, an SI-Transformer, a BERT or a tied SASRec with one head.
      params: its parameters, as fedlm has them.

    Returns:
      A module that maps int64 [batch, length] to logits.
    """
    if name.startswith("bert"):
        return BertModel(params)
    if name.startswith("sasrec"):
        return SasRecModel(params)
    if "cifg" in name:
        return SiCifgModel(params) if name.startswith("si_") else CifgModel(params)
    heads = HEADS[name.removeprefix("si_")]
    return SiTransformerModel(params, heads) if name.startswith("si_") else TransformerModel(params, heads)


class Untied(nn.Module):
    """A model with an output layer of its own, whose weights start as the embedding's: Opacus refuses shared ones."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        rows, width = model.embedding.weight.shape
        self.output = nn.Linear(width, rows)
        with torch.no_grad():
            self.output.weight.copy_(model.embedding.weight)
            self.output.bias.copy_(model.output_bias)
        del model.output_bias
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute logits."""
        return self.output(self.model.hidden(self.model.embedding(tokens) * self.model.scale))


class SasRecModel(LanguageModel):
    """Pre-layer-norm blocks with learned positions, one head, no attention output and no output bias."""

    def __init__(self, params: Tree):
        super().__init__(params | {"output_bias": np.zeros(len(params["embedding"]["table"]), np.float32)})
        self.output_bias.requires_grad_(False)
        self.positions = nn.Embedding.from_pretrained(torch.tensor(params["positions"]["table"]), freeze=False)
        self.blocks = nn.ModuleList(_SasRecBlock(block) for block in params["blocks"])
        self.final_norm = layer_norm(params["final_norm"])

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        # Opacus takes apart what it is given as if it were contiguous.
        positions = torch.arange(x.shape[1]).expand(x.shape[:2]).contiguous()
        x = x + self.positions(positions) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class _SasRecBlock(nn.Module):
    def __init__(self, params: Tree):
        super().__init__()
        names = ("query", "key", "value", "mlp_input", "mlp_output")
        self.layers = nn.ModuleDict({name: linear(params[name]) for name in names})
        self.attention_norm = layer_norm(params["attention_norm"])
        self.mlp_norm = layer_norm(params["mlp_norm"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalised = self.attention_norm(x)
        q, k, v = (self.layers[name](normalised)[:, None] for name in ("query", "key", "value"))
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        return x + self.layers["mlp_output"](functional.relu(self.layers["mlp_input"](self.mlp_norm(x))))


class BertModel(LanguageModel):
    """Post-layer-norm blocks with biases and learned positions; for rows without PAD, since it masks nothing."""

    def __init__(self, params: Tree):
        super().__init__(params)
        self.scale = 1.0
        self.positions = nn.Embedding.from_pretrained(torch.tensor(params["positions"]["table"]), freeze=False)
        self.token_types = nn.Embedding.from_pretrained(torch.tensor(params["token_types"]["table"]), freeze=False)
        self.embedding_norm = _layer_norm(params["embedding_norm"])
        self.blocks = nn.ModuleList(_BertBlock(block) for block in params["blocks"])
        self.head, self.head_norm = linear(params["head"]), _layer_norm(params["head_norm"])

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        # Opacus takes apart what it is given as if it were contiguous.
        positions = torch.arange(x.shape[1]).expand(x.shape[:2]).contiguous()
        x = self.embedding_norm(x + self.positions(positions) + self.token_types(torch.zeros_like(positions)))
        for block in self.blocks:
            x = block(x)
        return self.head_norm(functional.gelu(self.head(x)))


class _BertBlock(nn.Module):
    def __init__(self, params: Tree):
        super().__init__()
        names = ("query", "key", "value", "attention_output", "mlp_input", "mlp_output")
        self.layers = nn.ModuleDict({name: linear(params[name]) for name in names})
        self.attention_norm, self.mlp_norm = _layer_norm(params["attention_norm"]), _layer_norm(params["mlp_norm"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (
            self.layers[name](x).view(batch, time, -1, BERT_HEAD_SIZE).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        x = self.attention_norm(x + self.layers["attention_output"](y))
        return self.mlp_norm(x + self.layers["mlp_output"](functional.gelu(self.layers["mlp_input"](x))))


def _layer_norm(layer: Tree) -> nn.LayerNorm:
    norm = layer_norm(layer)
    norm.eps = 1e-12
    return norm

"""The models of the comparison in PyTorch: the same shapes and numbers, by PyTorch's own layers where it has them.

Parameters come from the task, so that all contestants start alike.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.simulation.peers.task import Tree

HEADS = {"transformer_1m": 4, "transformer_11m": 8}


def create(name: str, params: Tree) -> nn.Module:
    """Build a model by name.

    Args:
      name: of a model whose kind is in `KINDS`.
      params: its parameters, as fedlm has them.

    Returns:
      A module that maps int64 [batch, length] to logits; its `loss` takes inputs and targets.
    """
    kind = KINDS[name.partition("_")[0]]
    return kind(params, HEADS[name]) if kind is TransformerModel else kind(params)


def evaluation_loss(model: nn.Module, tokens: np.ndarray) -> float:
    """Score a model.

    Args:
      model: of `create`.
      tokens: int32 [examples, length + 1].

    Returns:
      Its mean loss in nats per token.
    """
    inputs, targets = split_tokens(tokens)
    with torch.no_grad():
        return float(model.loss(inputs, targets))


def split_tokens(tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Make inputs and targets of sequences.

    Args:
      tokens: int32 [examples, length + 1].

    Returns:
      int64 [examples, length] each.
    """
    wide = torch.from_numpy(tokens.astype(np.int64))
    return wide[:, :-1].contiguous(), wide[:, 1:].contiguous()


class LanguageModel(nn.Module):
    """What all kinds share: the embedding, the output tied to it, and the loss."""

    def __init__(self, params: Tree):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(_tensor(params["embedding"]["table"]), freeze=False)
        self.output_bias = nn.Parameter(_tensor(params["output_bias"]))
        self.scale = self.embedding.embedding_dim**0.5

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """Map embeddings [batch, length, width] to what the output layer reads, of the same shape."""
        raise NotImplementedError

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Compute logits."""
        y = self.hidden(self.embedding(tokens) * self.scale)
        return functional.linear(y, self.embedding.weight, self.output_bias)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the mean cross-entropy."""
        return functional.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        """Report nothing; pfl-research asks for this method."""
        return {}


class LstmModel(LanguageModel):
    """`nn.LSTM`, batch first. It has two biases where one is enough: the second stays zero."""

    def __init__(self, params: Tree):
        super().__init__(params)
        hidden, width = params["projection"]["kernel"].shape
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        with torch.no_grad():
            self.lstm.weight_ih_l0.copy_(_tensor(params["input"]["kernel"]).T)
            self.lstm.weight_hh_l0.copy_(_tensor(params["recurrent"]["kernel"]).T)
            self.lstm.bias_ih_l0.copy_(_tensor(params["input"]["bias"]))
            self.lstm.bias_hh_l0.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.projection = linear(params["projection"])

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        return self.projection(self.lstm(x)[0])


class CifgModel(LanguageModel):
    """A loop over time with the input's product before it and the gates in one product."""

    gate, cell = staticmethod(torch.sigmoid), staticmethod(torch.tanh)

    def __init__(self, params: Tree):
        super().__init__(params)
        layer = params["recurrent"]
        self.input = linear(layer["input"])
        self.recurrent, self.projection = linear(layer["recurrent"]), linear(layer["projection"])

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        outputs = []
        h, c = x.new_zeros(x.shape[0], x.shape[2]), x.new_zeros(x.shape[0], self.projection.in_features)
        for z in self.input(x).unbind(1):
            i, g, o = (z + self.recurrent(h)).chunk(3, dim=-1)
            c = torch.lerp(c, self.cell(g), self.gate(i))
            h = self.projection(self.gate(o) * self.cell(c))
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class TransformerModel(LanguageModel):
    """Pre-layer-norm blocks on `scaled_dot_product_attention`."""

    attend = staticmethod(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    def __init__(self, params: Tree, heads: int):
        super().__init__(params)
        self.blocks = nn.ModuleList(_Block(block, heads, self.attend) for block in params["blocks"])
        self.final_norm = layer_norm(params["final_norm"])

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        x = x + _positions(x.shape[1], x.shape[2])
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


class _Block(nn.Module):
    def __init__(self, params: Tree, heads: int, attend: Callable[..., torch.Tensor]):
        super().__init__()
        self.heads, self.attend = heads, attend
        names = ("query", "key", "value")
        self.query_key_value = linear({"kernel": np.concatenate([params[name]["kernel"] for name in names], axis=1)})
        self.attention_norm, self.mlp_norm = layer_norm(params["attention_norm"]), layer_norm(params["mlp_norm"])
        self.attention_output = linear(params["attention_output"])
        self.mlp_input, self.mlp_output = linear(params["mlp_input"]), linear(params["mlp_output"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = self.attend(q, k, v)
        x = x + self.attention_output(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp_output(functional.relu(self.mlp_input(self.mlp_norm(x))))


KINDS = {"lstm": LstmModel, "cifg": CifgModel, "transformer": TransformerModel}


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array)


def linear(layer: Tree) -> nn.Linear:
    """Make a dense layer.

    Args:
      layer: its parameters.

    Returns:
      The layer.
    """
    inputs, outputs = layer["kernel"].shape
    linear = nn.Linear(inputs, outputs, bias="bias" in layer)
    with torch.no_grad():
        linear.weight.copy_(_tensor(layer["kernel"]).T)
        if "bias" in layer:
            linear.bias.copy_(_tensor(layer["bias"]))
    return linear


def layer_norm(layer: Tree) -> nn.LayerNorm:
    """Make a layer norm.

    Args:
      layer: its parameters.

    Returns:
      The layer.
    """
    norm = nn.LayerNorm(len(layer["scale"]), eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(_tensor(layer["scale"]))
        norm.bias.copy_(_tensor(layer["shift"]))
    return norm


def _positions(length: int, width: int) -> torch.Tensor:
    frequency = torch.exp(-np.log(10_000.0) * torch.arange(0, width, 2) / width)
    angle = torch.arange(length)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)

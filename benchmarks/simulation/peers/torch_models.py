"""The models of the comparison in PyTorch: the same shapes and numbers, by PyTorch's own layers where it has them.

Parameters come from the task, so that all contestants start alike.
"""

import numpy as np
import torch
from torch import nn

from benchmarks.simulation.peers.task import Tree
from fedlm.interop.torch import CifgModel, LanguageModel, TransformerModel, linear, split_tokens

HEADS = {"transformer_100k": 2, "transformer_tiny": 4, "transformer_1m": 4, "transformer_11m": 8}


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


class LstmModel(LanguageModel):
    """`nn.LSTM`, batch first. It has two biases where one is enough: the second stays zero."""

    def __init__(self, params: Tree):
        super().__init__(params)
        hidden, width = params["projection"]["kernel"].shape
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        with torch.no_grad():
            self.lstm.weight_ih_l0.copy_(torch.tensor(params["input"]["kernel"]).T)
            self.lstm.weight_hh_l0.copy_(torch.tensor(params["recurrent"]["kernel"]).T)
            self.lstm.bias_ih_l0.copy_(torch.tensor(params["input"]["bias"]))
            self.lstm.bias_hh_l0.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.projection = linear(params["projection"])

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        return self.projection(self.lstm(x)[0])


KINDS = {"lstm": LstmModel, "cifg": CifgModel, "transformer": TransformerModel}

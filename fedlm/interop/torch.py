"""PyTorch: our language models as modules with the same numbers, for frameworks that train PyTorch.

CIFG, Transformer and their scale-invariant twins, by PyTorch's own layers where it has them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedlm.interop.parameters import Tree

PAD_ID = 0
TINY = torch.finfo(torch.float32).tiny


def module_from_params(params: Tree, heads: int | None = None, scale_invariant: bool = False) -> "LanguageModel":
    """Make a module of the parameters of a model of ours.

    Args:
      params: of a CIFG with tied output, or of a Transformer.
      heads: attention heads, of a Transformer.
      scale_invariant: whether it is an SI-CIFG, or an SI-Transformer.

    Returns:
      A module that maps int64 [batch, length] to logits; its `loss` takes inputs and targets, its `params` gives the
      parameters back.

    Raises:
      ValueError: they are of another architecture, or heads are missing.
    """
    if "output" in params or ("recurrent" not in params and "blocks" not in params):
        raise ValueError(
            f"found the parameters {', '.join(sorted(params))}; expected those of a CIFG with tied output, or of a "
            "Transformer"
        )
    if "recurrent" in params:
        return (SiCifgModel if scale_invariant else CifgModel)(params)
    if heads is None:
        raise ValueError("heads is None, but a Transformer's parameters do not say how many it has; give the number")
    return (SiTransformerModel if scale_invariant else TransformerModel)(params, heads)


def split_tokens(tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Make inputs and targets, int64 [examples, length] each, of sequences int32 [examples, length + 1]."""
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
        """Compute the mean cross-entropy of targets that are not PAD, as `fedlm.models.base.batch_loss` does."""
        logits, wanted = self(inputs).flatten(0, 1), targets.flatten()
        total = functional.cross_entropy(logits, wanted, ignore_index=PAD_ID, reduction="sum")
        return total / (wanted != PAD_ID).sum().clamp(min=1)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        """Report nothing; pfl-research asks for this method."""
        return {}

    def params(self) -> Tree:
        """Make parameters as fedlm has them, NumPy arrays."""
        named = {"embedding": {"table": _array(self.embedding.weight)}, "output_bias": _array(self.output_bias)}
        return named | self.own_params()

    def own_params(self) -> Tree:
        """Make the parameters that not all kinds have."""
        raise NotImplementedError


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

    def own_params(self) -> Tree:
        """See `LanguageModel`."""
        names = ("input", "recurrent", "projection")
        return {"recurrent": {name: dense_params(getattr(self, name)) for name in names}}


class SiCifgModel(CifgModel):
    """See `fedlm.models.layers.scale_invariant` for the activations, and `output_norms` beside it for the gain."""

    gate = staticmethod(lambda x: _over(x.relu(), x.relu().amax(-1, keepdim=True)))
    cell = staticmethod(lambda x: _over(x, x.abs().amax(-1, keepdim=True)))

    def __init__(self, params: Tree):
        super().__init__(params)
        self.gain = _Gain(params["output_norm"]) if "output_norm" in params else None

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """See `LanguageModel`."""
        h = super().hidden(x)
        h = _over(h, h.square().mean(-1, keepdim=True).sqrt())
        return h if self.gain is None else self.gain(h)

    def own_params(self) -> Tree:
        """See `LanguageModel`."""
        norm = {} if self.gain is None else {"output_norm": {"scale": _array(self.gain.scale)}}
        return super().own_params() | norm


class _Gain(nn.Module):
    """A layer of its own, since Opacus differentiates by examples what layers do."""

    def __init__(self, params: Tree):
        super().__init__()
        self.scale = nn.Parameter(_tensor(params["scale"]))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * (1 + self.scale)


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

    def own_params(self) -> Tree:
        """See `LanguageModel`."""
        return {"blocks": [block.params() for block in self.blocks], "final_norm": norm_params(self.final_norm)}


class SiTransformerModel(TransformerModel):
    """See `fedlm.models.layers.scale_invariant` for the attention."""

    @staticmethod
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Weight values by the positive scores of what came before."""
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).relu().tril()
        return _over(scores, scores.sum(-1, keepdim=True)) @ v


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

    def params(self) -> Tree:
        """Make the block's parameters, as fedlm has them."""
        kernels = _array(self.query_key_value.weight).reshape(3, -1, self.query_key_value.in_features)
        attention = {
            name: {"kernel": np.ascontiguousarray(kernel.T)}
            for name, kernel in zip(("query", "key", "value"), kernels, strict=True)
        }
        norms = {name: norm_params(getattr(self, name)) for name in ("attention_norm", "mlp_norm")}
        names = ("attention_output", "mlp_input", "mlp_output")
        return attention | norms | {name: dense_params(getattr(self, name)) for name in names}


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.asarray(array))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _over(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return x / row.clamp(min=TINY)


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


def dense_params(layer: nn.Linear) -> Tree:
    """Undo `linear`."""
    params = {"kernel": np.ascontiguousarray(_array(layer.weight).T)}
    return params if layer.bias is None else params | {"bias": _array(layer.bias)}


def norm_params(norm: nn.LayerNorm) -> Tree:
    """Undo `layer_norm`."""
    return {"scale": _array(norm.weight), "shift": _array(norm.bias)}

"""What is trained: the models of the paper in its sizes (width 64, two blocks, one head), and controls."""

from dataclasses import dataclass
from typing import Literal

from fedlm.models.reattention import DpFormerConfig, dpformer
from fedlm.models.registry import ModelEntry
from fedlm.models.sasrec import SasRecConfig, sasrec

UNTIED_HALF = ModelEntry(sasrec, SasRecConfig(embedding=32, mlp=32, tied=False))
"""Tables for reading and for scoring items, together with as many numbers as the shared one of width 64."""
DPFORMER_UNTIED = ModelEntry(dpformer, DpFormerConfig(tied=False))

_HERE = "benchmarks.recommendation.models"


@dataclass(frozen=True)
class Variant:
    """A model, and what it knows.

    Attributes:
      model: its name, as `fedlm pretrain` takes it.
      title: in tables and plots.
      relevance: how the relevances that attention is corrected by were counted: without noise, as in the paper, which
        no promise covers, or with noise that is part of epsilon; None for models without re-attention.
      permuted: whether relevances are those of other items.
      rate_of: the variant at whose learning rate it is trained; its own where None.
    """

    model: str
    title: str
    relevance: Literal["counted", "private"] | None = None
    permuted: bool = False
    rate_of: str | None = None


VARIANTS = {
    "gru": Variant("gru4rec", "GRU"),
    "lstm": Variant("lstm4rec", "LSTM"),
    "untied": Variant("sasrec_untied", "Transformer, untied"),
    "tied": Variant("sasrec", "Transformer, tied"),
    "dpformer": Variant("dpformer", "DPFormer", "counted"),
    "untied_half": Variant(f"{_HERE}:UNTIED_HALF", "Transformer, untied, half width", rate_of="untied"),
    "dpformer_untied": Variant(f"{_HERE}:DPFORMER_UNTIED", "DPFormer, untied", "counted"),
    "placebo": Variant("dpformer", "DPFormer, relevances permuted", "counted", permuted=True, rate_of="dpformer"),
    "private_relevance": Variant("dpformer", "DPFormer, relevances private", "private", rate_of="dpformer"),
}
MODELS = ("gru", "lstm", "untied", "tied", "dpformer")
"""Of the paper's tables."""
CONTROLS = ("placebo", "private_relevance", "untied_half", "dpformer_untied")

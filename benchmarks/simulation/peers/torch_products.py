"""Matrix products on PyTorch; see `jax_products`.

Usage: python -m benchmarks.simulation.peers.torch_products
"""

import sys

import torch

from benchmarks.simulation.peers.product_timing import time_product
from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve


class TorchProducts:
    """See `protocol.Contestant`."""

    variants = ()
    packages = ("torch",)
    configuration = "one thread on one core"

    def run_round(self, variant: str) -> RoundAnswer:
        return time_product(variant, torch.from_numpy, _multiply, lambda result: result)


def _multiply(formula: str, lefts: list[torch.Tensor], rights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.einsum(formula, left, right) for left, right in zip(lefts, rights, strict=True)]


if __name__ == "__main__":
    answers = private_standard_output()
    torch.set_num_threads(1)
    with torch.inference_mode():
        serve(TorchProducts(), sys.stdin, answers)

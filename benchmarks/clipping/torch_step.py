"""Contestant: gradient steps of PyTorch, non-private, and clipped by Opacus per example and as a ghost.

The same protocol as in the simulation's benchmark: a variant is a kind and a microbatch, a round is one step over the
task's logical batch. Clients 0 and 1 of the task are inputs and targets; targets of 0 count for nothing.

Usage: python -m benchmarks.clipping.torch_step TASK MICROBATCH ..
"""

import sys
from collections.abc import Callable, Sequence

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional

from benchmarks.clipping.torch_models import Untied, create
from benchmarks.simulation.peers.protocol import RoundAnswer, private_standard_output, serve, timed
from benchmarks.simulation.peers.task import Task, load_task

CLIP_NORM = 1.0
Step = Callable[[int], float]
"""Computes the gradient, so many examples at a time, and gives the mean loss."""


class TorchStep:
    """All kinds on one batch."""

    packages = ("torch", "opacus")

    def __init__(self, task: Task, microbatches: Sequence[int]):
        torch.set_num_threads(task.settings.cores)
        self._inputs, self._targets = (torch.from_numpy(part).long() for part in task.clients)
        self._steps: dict[str, Step] = {"torch_plain": self._plain(task), "opacus_per_sample": self._per_sample(task)}
        # Ghost clipping adds up the squared norms of a layer's uses, and a recurrence uses its layers at every step.
        if "cifg" not in task.settings.model:
            self._steps["opacus_ghost"] = self._ghost(task)
        self.variants = [f"{kind} {microbatch}" for kind in self._steps for microbatch in microbatches]
        self.configuration = f"{task.settings.cores} threads; Opacus has an untied output layer"

    def run_round(self, variant: str) -> RoundAnswer:
        """See `protocol.Contestant`."""
        kind, _, microbatch = variant.partition(" ")
        seconds, loss = timed(lambda: self._steps[kind](int(microbatch)))
        return RoundAnswer(seconds, 1, loss)

    def _plain(self, task: Task) -> Step:
        model = create(task.settings.model, task.params)
        targets = torch.count_nonzero(self._targets)

        def step(microbatch: int) -> float:
            model.zero_grad()
            total = 0.0
            for inputs, part in self._cut(microbatch):
                loss = (_token_losses(model, inputs, part)).sum() / targets
                loss.backward()
                total += loss.item()
            return total

        return step

    def _per_sample(self, task: Task) -> Step:
        model = GradSampleModule(Untied(create(task.settings.model, task.params)), loss_reduction="sum")
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=CLIP_NORM,
            expected_batch_size=len(self._inputs),
            loss_reduction="sum",
        )

        def step(microbatch: int) -> float:
            optimizer.zero_grad()
            total = 0.0
            for inputs, part in self._cut(microbatch):
                losses = _example_losses(model, inputs, part)
                losses.sum().backward()
                optimizer.clip_and_accumulate()
                for parameter in model.parameters():
                    parameter.grad_sample = parameter.grad = None
                total += losses.sum().item()
            return total / len(self._inputs)

        return step

    def _ghost(self, task: Task) -> Step:
        model = GradSampleModuleFastGradientClipping(
            Untied(create(task.settings.model, task.params)), loss_reduction="sum", max_grad_norm=CLIP_NORM
        )

        def step(microbatch: int) -> float:
            sums, total = [torch.zeros_like(parameter) for parameter in model.parameters()], 0.0
            for inputs, part in self._cut(microbatch):
                losses = _example_losses(model, inputs, part)
                # What Opacus' DPTensorFastGradientClipping.backward does, without its optimizer.
                losses.sum().backward(retain_graph=True)
                model.zero_grad()
                factors = model.get_clipping_coef()
                model.disable_hooks()
                (factors * losses).sum().backward()
                model.enable_hooks()
                for one, parameter in zip(sums, model.parameters(), strict=True):
                    one += parameter.grad
                model.zero_grad()
                total += losses.sum().item()
            return total / len(self._inputs)

        return step

    def _cut(self, microbatch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self._inputs.split(microbatch), self._targets.split(microbatch), strict=True))


def _token_losses(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(inputs)
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=0)
    return losses.view(targets.shape)


def _example_losses(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _token_losses(model, inputs, targets).sum(dim=1) / torch.count_nonzero(targets, dim=1)


if __name__ == "__main__":
    out = private_standard_output()
    serve(TorchStep(load_task(sys.argv[1]), [int(word) for word in sys.argv[2:]]), sys.stdin, out)

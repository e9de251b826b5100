"""Greedy generation by transformers on PyTorch, as a contestant: a variant is a batch size and a number of threads.

It reads the folder of a model, as `fedlm model export --format huggingface` writes it, and a JSON file of prompts.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from benchmarks.simulation.peers.protocol import private_standard_output, serve, timed


class GenerationAnswer(NamedTuple):
    """What is said of one run: a `RoundAnswer` whose steps are tokens, and the tokens."""

    seconds: float
    steps: int
    loss_after: None
    tokens: list[list[int]]


class TransformersSide:
    """The model, loaded once."""

    packages = ("torch", "transformers")

    def __init__(self, folder: str, prompts: list[list[int]], batches: list[int], threads: list[int], tokens: int):
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        # As many tokens as are asked for, whatever they are.
        self._model.generation_config.eos_token_id = None
        self._prompts, self._tokens = prompts, tokens
        self.variants = [f"{batch} {count}" for batch in batches for count in threads]
        self.configuration = (
            f"transformers' generate on PyTorch, float32, {self._model.config._attn_implementation} attention, its "
            "dynamic cache, prompts padded on the left"
        )

    def run_round(self, variant: str) -> GenerationAnswer:
        batch, threads = map(int, variant.split())
        torch.set_num_threads(threads)
        prompts = self._prompts[:batch]
        longest = max(map(len, prompts))
        padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])

        def generate() -> torch.Tensor:
            with torch.inference_mode():
                return self._model.generate(
                    padded, attention_mask=seen, do_sample=False, max_new_tokens=self._tokens, pad_token_id=0
                )

        seconds, found = timed(generate)
        return GenerationAnswer(seconds, batch * self._tokens, None, found[:, longest:].tolist())


if __name__ == "__main__":
    out = private_standard_output()
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    serve(TransformersSide(**task), sys.stdin, out)  # type: ignore[arg-type]

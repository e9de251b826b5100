"""A causal model of ours as lm-evaluation-harness knows models. Importing this module needs that library.

Texts become tokens as the harness's own models for `transformers` make them: a context and its continuation are encoded
together, with the spaces at the context's end counted to the continuation; BOS comes first; of too long a context the
end is seen, and BOS is cut off with the rest.
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from fedlm.fl_core.errors import ConfigurationError
from fedlm.fl_core.processes import from_first
from fedlm.models.base import Model, Params
from fedlm.models.special_tokens import OOV_ID
from fedlm.simulations.data.vocabulary.tokenization import Tokenizer
from fedlm.simulations.evaluation.language_tasks.continuations import Continuation, is_cut, score_continuations
from fedlm.simulations.generation.generating import GenerationSettings, Generator
from fedlm.simulations.generation.sampling import Sampling

_MOST_TOKENS = 256
"""Of an answer where its task does not say, as the harness has it."""
_ANSWERS = 16
"""That are written together, where nothing else is said."""

_Request = tuple[tuple[str, str] | None, list[int], list[int]]
_Score = tuple[float, bool]
UNSCORED: _Score = (-math.inf, False)
"""This very object stands for the score of a continuation that has none."""


def leave_out_unscored(task: Any) -> None:
    """Let no metric of a task count a document of which something could not be scored."""
    process_results = task.process_results
    task.process_results = lambda document, results: (
        {} if any(found is UNSCORED for found in results) else process_results(document, results)
    )


class HarnessModel(TemplateLM):
    """Answers the harness's requests with a model.

    Attributes:
      counts: what has been seen: `requests`; `cut`, how often a context was longer than the model takes; `shortened`,
        answers that had to be shorter than their task allows; `tokens` that were scored, and `unknown`, those of them
        that the vocabulary does not have.
      unscored: by the name of a task the numbers of the documents that cannot be scored, from 0, and why.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        batch_size: int | None = None,
        observe: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Make it.

        Args:
          model: a causal model.
          params: its parameters.
          tokenizer: of its vocabulary.
          max_length: tokens of an input, at most.
          batch_size: see `score_continuations`.
          observe: called with how many requests have been answered.
        """
        super().__init__()
        self._model, self._tokenizer = model, tokenizer
        self._params, self._placed = params, from_first(params)
        self._max_length, self._batch_size, self._observe = max_length, batch_size, observe
        self.counts: Counter[str] = Counter()
        self.unscored: dict[str, dict[int, str]] = {}

    @property
    def eot_token_id(self) -> int:
        """The id that text ends with."""
        return self._tokenizer.special_tokens.eos

    @property
    def prefix_token_id(self) -> int:
        """The id that stands before a text with no context."""
        return self._tokenizer.special_tokens.bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode a text, after BOS where it is not said otherwise."""
        ids = self._tokenizer.encode_batch([string])[0].tolist()
        return ids if add_special_tokens is False else [self.prefix_token_id, *ids]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[_Score]:
        """Score the continuation of each request: its log-likelihood, and whether greedy decoding would give it.

        It is `UNSCORED` where the model has no score for it.
        """
        self.counts["requests"] += len(requests)
        pairs = [self._encode_pair(*request.args) for request in requests]
        scored = [self._can_score(request, tokens) for request, (_, tokens) in zip(requests, pairs, strict=True)]
        self._observe(len(scored) - sum(scored))
        some: list[_Request] = [(None, *pair) for pair, can in zip(pairs, scored, strict=True) if can]
        scores = iter(self._loglikelihood_tokens(some))
        return [next(scores) if can else UNSCORED for can in scored]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode a continuation and what is before it; without a context the latter is BOS."""
        if context:
            return super()._encode_pair(context, continuation)
        tokens = self.tok_encode(continuation, add_special_tokens=False)
        begins = tokens[:1] == [self.prefix_token_id]
        return (tokens[:1], tokens[1:]) if begins else ([self.prefix_token_id], tokens)

    def _can_score(self, request: Instance, tokens: list[int]) -> bool:
        """Say whether a request has as many tokens as the model can score, and keep why it cannot."""
        if 0 < len(tokens) <= self._max_length:
            return True
        self._leave_out(
            request,
            f"{request.args[-1]!r} is {len(tokens)} tokens of this run's vocabulary, and its model scores from 1 to "
            f"{self._max_length}",
        )
        return False

    def _leave_out(self, request: Instance, why: str) -> None:
        self.unscored.setdefault(str(request.task_name), {}).setdefault(int(request.doc_id or 0), why)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[Any]:
        """Score the whole text of each request, given BOS, in windows of the model's length.

        It is `UNSCORED` where the text has no token.
        """
        self.counts["requests"] += len(requests)
        pairs, owners, scored = [], [], []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            scored.append(bool(tokens))
            if not tokens:
                self._leave_out(request, f"the text {request.args[0]!r} has no token of this run's vocabulary")
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self._max_length, context_len=1):
                pairs.append(Continuation(*make_disjoint_window(window)))
                owners.append(number)
        scores = [log_likelihood for log_likelihood, _ in self._scores(pairs)]
        self._observe(len(requests))
        sums = np.bincount(np.array(owners, int), np.array(scores, float), len(requests)).tolist()
        return [found if can else UNSCORED for found, can in zip(sums, scored, strict=True)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue the text of each request until one of its stop strings."""
        self.counts["requests"] += len(requests)
        alike: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        generator, answers = Generator(self._model, self._params), [""] * len(requests)
        for arguments, numbers in alike.items():
            contexts = [self.tok_encode(requests[number].args[0]) for number in numbers]
            found = self._answers(generator, contexts, json.loads(arguments), requests[numbers[0]].task_name)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers

    def _answers(
        self, generator: Generator, contexts: list[list[int]], arguments: dict[str, Any], task: str | None
    ) -> list[str]:
        try:
            arguments = dict(normalize_gen_kwargs(arguments, _MOST_TOKENS))
            stops = [stop for stop in handle_stop_sequences(arguments.pop("until"), eos=None) if stop]
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"task {task!r}: its generation_kwargs cannot be read ({error}); mend them"
            ) from error
        asked = arguments.pop("max_gen_toks")
        if asked < 1:
            raise ConfigurationError(f"task {task!r}: max_gen_toks is {asked}, but must be at least 1")
        most = asked if asked < self._max_length else self._max_length // 2
        self.counts["shortened"] += len(contexts) if most < asked else 0
        self.counts["cut"] += sum(len(context) > self._max_length - most for context in contexts)
        settings = GenerationSettings(
            sampling=_sampling(arguments, task), max_tokens=most, batch_size=self._batch_size or _ANSWERS
        )
        done = 0

        def stopped(number: int, tokens: list[int]) -> bool:
            text = self._tokenizer.decode(tokens)
            return any(stop in text for stop in stops)

        def observe(now: int, total: int) -> None:
            nonlocal done
            self._observe(now - done)
            done = now

        cut = [context[most - self._max_length :] for context in contexts]
        found = generator.generate(cut, settings, stopped, observe)
        return [postprocess_generated_text(self._tokenizer.decode(one.tokens), stops, None) for one in found]

    def _loglikelihood_tokens(self, requests: list[_Request], disable_tqdm: bool = True, **kwargs: Any) -> list[_Score]:
        pairs = [Continuation(context, tokens) for _, context, tokens in requests]
        return self._scores(pairs, self._observe)

    def _scores(self, pairs: list[Continuation], observe: Callable[[int], None] = lambda done: None) -> list[_Score]:
        for pair in pairs:
            self.counts["cut"] += is_cut(pair, self._max_length)
            self.counts["tokens"] += len(pair.tokens)
            self.counts["unknown"] += pair.tokens.count(OOV_ID)
        found = score_continuations(
            self._model, self._params, pairs, self._max_length, batch_size=self._batch_size, observe=observe
        )
        return [(score.log_likelihood, score.is_greedy) for score in found]


def _sampling(arguments: dict[str, Any], task: str | None) -> Sampling:
    """Say how tokens are chosen, of what is left of a request's arguments."""
    temperature = float(arguments.pop("temperature", 0.0)) if arguments.pop("do_sample") else 0.0
    arguments.pop("temperature", None)
    chosen = {name: arguments.pop(name, None) for name in ("top_k", "top_p")}
    if arguments:
        raise ConfigurationError(
            f"task {task!r} sets {', '.join(arguments)} in its generation_kwargs, which is not known here; leave it "
            "out, or set only until, max_gen_toks, do_sample, temperature, top_k and top_p"
        )
    return Sampling(temperature=temperature, **(chosen if temperature else {}))

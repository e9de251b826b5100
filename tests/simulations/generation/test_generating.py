import jax
import numpy as np
import pytest

from fedlm.fl_core.errors import ConfigurationError
from fedlm.models.base import language_model
from fedlm.models.families.published_decoder import published_decoder
from fedlm.models.families.published_decoder_config import vault_gemma
from fedlm.models.registry import create_model
from fedlm.models.special_tokens import BOS_ID, EOS_ID, PAD_ID
from fedlm.simulations.generation import generating
from fedlm.simulations.generation.generating import CHUNK, GenerationSettings, Generator
from fedlm.simulations.generation.sampling import Sampling

VOCABULARY = 40
PROMPTS = [[1, 7], [1], [1, 9, 9, 5, 30, 12, 17], [1, 7, 8], [1, 21, 4, 4]]
DRAWN = Sampling(temperature=1.0, top_k=20, seed=3)


def bigrams(model_vocabulary=VOCABULARY):
    """A model without a decoder."""
    return language_model(
        "bigrams", VOCABULARY, lambda key: jax.random.normal(key, (VOCABULARY,) * 2), lambda params, t: params[t]
    )


def vault_tiny():
    return published_decoder(
        "vault", vault_gemma(VOCABULARY, layers=1, heads=2, head_size=8, embedding=16, mlp=24, max_length=24)
    )


MODELS = {
    "cifg": lambda: create_model("si_cifg_tiny", VOCABULARY),
    "gemma": vault_tiny,
    "own": bigrams,
}


@pytest.fixture(scope="module", params=MODELS)
def generator(request):
    model = MODELS[request.param]()
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(3)
    # Fresh parameters would repeat a token.
    params = jax.tree_util.tree_map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32), shapes)
    found = Generator(model, params)
    found.params = params
    return found


def recomputed(generator, prompt, most):
    """Greedy decoding as it is defined: append the most likely token to what the model reads, again and again."""
    apply, tokens = jax.jit(generator.model.apply), list(prompt)
    for _ in range(most):
        padded = np.full((1, 24), PAD_ID, np.int32)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(np.argmax(apply(generator.params, padded)[0, len(tokens) - 1])))
        if tokens[-1] == EOS_ID:
            return tokens[len(prompt) : -1], "eos"
    return tokens[len(prompt) :], "max_tokens"


@pytest.mark.long
def test_greedy_tokens_are_those_of_recomputing_from_scratch(generator):
    settings = GenerationSettings(max_tokens=14, batch_size=3)
    found = generator.generate(PROMPTS, settings)
    assert [tuple(completion) for completion in found] == [recomputed(generator, prompt, 14) for prompt in PROMPTS]
    assert len({tuple(completion.tokens) for completion in found}) > 1


@pytest.mark.long
@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_a_completion_does_not_depend_on_other_prompts(generator, sampling):
    together = generator.generate(PROMPTS, GenerationSettings(max_tokens=10, batch_size=3, sampling=sampling))
    # Each batch of one is of another shape; the prompts keep their numbers.
    alone = generator.generate(PROMPTS, GenerationSettings(max_tokens=10, batch_size=1, sampling=sampling))
    assert alone == together


@pytest.mark.long
def test_the_same_seed_draws_the_same_and_another_others():
    model = bigrams()
    generator = Generator(model, model.init(jax.random.key(0)))
    one, again, other = (
        generator.generate(PROMPTS, GenerationSettings(max_tokens=12, sampling=Sampling(temperature=1, seed=seed)))
        for seed in (1, 1, 2)
    )
    assert one == again
    assert all(a != b for a, b in zip(one, other, strict=True))
    same_prompt = generator.generate([[1]] * 3, GenerationSettings(max_tokens=12, sampling=DRAWN))
    assert len({tuple(completion.tokens) for completion in same_prompt}) == 3


def counting(vocabulary=80, last=EOS_ID):
    """A model that says the number after the last one, and `last` after the highest."""
    follows = np.append(np.arange(1, vocabulary), last)
    table = np.where(np.arange(vocabulary) == follows[:, None], 9.0, 0.0).astype(np.float32)
    return Generator(language_model("counting", vocabulary, lambda key: table, lambda params, t: params[t]), table)


def test_a_completion_ends_with_eos_or_with_enough_tokens():
    settings = GenerationSettings(max_tokens=CHUNK + 30, batch_size=4)
    found = counting().generate([[70], [5], [79], [18]], settings)
    assert [completion.end for completion in found] == ["eos", "max_tokens", "eos", "eos"]
    assert [len(completion.tokens) for completion in found] == [9, CHUNK + 30, 0, 61]
    assert found[1].tokens == list(range(6, CHUNK + 36))
    # EOS comes at once with the most tokens.
    assert counting().generate([[78]], GenerationSettings(max_tokens=2)) == [([79], "eos")]


def test_who_watches_sees_every_token_and_may_stop():
    seen = {0: [], 1: []}

    def watch(number, tokens):
        assert tokens[: len(seen[number])] == seen[number]
        seen[number] = list(tokens)
        return number == 1 and len(tokens) > 9

    found = counting().generate([[4], [4]], GenerationSettings(max_tokens=50), watch)
    assert seen == {0: found[0].tokens, 1: found[1].tokens}
    assert (found[0].end, found[1].end) == ("max_tokens", "stopped")
    assert 9 < len(found[1].tokens) < 50


@pytest.mark.long
def test_a_model_reads_texts_as_long_as_it_may():
    model = vault_tiny()
    generator = Generator(model, model.init(jax.random.key(0)))
    settings = GenerationSettings(max_tokens=30, batch_size=2)
    found = generator.generate([[1] * 20, [1] * 24], settings)
    # The last token of each is not read.
    assert [(len(completion.tokens), completion.end) for completion in found] == [(5, "max_length"), (1, "max_length")]
    with pytest.raises(ConfigurationError, match="prompt 1 has 25 tokens, and model 'vault' reads at most 24; cut it"):
        generator.generate([[1], [1] * 25], settings)


def test_no_prompts_no_tokens_and_masked_models():
    generator = counting()
    assert generator.generate([], GenerationSettings()) == []
    with pytest.raises(ConfigurationError, match="prompt 1 has no token; begin it with BOS"):
        generator.generate([[BOS_ID], []], GenerationSettings())
    for settings in ({"max_tokens": 0}, {"batch_size": 0}):
        with pytest.raises(ConfigurationError, match="but must be at least 1"):
            GenerationSettings(**settings)
    model = create_model("bert_tiny", VOCABULARY)
    with pytest.raises(ConfigurationError, match="'bert_tiny' has the masked objective and does not continue text"):
        Generator(model, None)


def test_prompts_of_many_lengths_compile_few_programs():
    def compiled():
        return generating._read_prompts._cache_size(), generating._take_steps._cache_size()

    generator = counting()
    generator.generate([[1] * 3], GenerationSettings(max_tokens=4))
    before = compiled()
    for length in range(1, 17):
        generator.generate([[1] * length], GenerationSettings(max_tokens=4))
    assert compiled() == before

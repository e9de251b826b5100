"""A tokenizer straight from texts, for tests."""

from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, count_words
from fedlm.simulations.data.vocabulary.tokenizer_settings import TokenizerSettings


def train_tokenizer(texts, vocabulary_size, words_are_separated=False, **settings):
    settings = TokenizerSettings(vocabulary_size=vocabulary_size, **settings)
    return Tokenizer.train(count_words(texts, settings, words_are_separated), settings, words_are_separated)


def encode(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode_batch(texts)]

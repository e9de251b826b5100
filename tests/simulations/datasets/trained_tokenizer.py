"""A tokenizer straight from texts, for tests."""

from simulations.datasets.tokenization import Tokenizer, TokenizerSettings, count_words


def train_tokenizer(texts, vocabulary_size):
    settings = TokenizerSettings(vocabulary_size=vocabulary_size)
    return Tokenizer.train(count_words(texts, settings), settings)

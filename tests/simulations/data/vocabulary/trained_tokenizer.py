"""A tokenizer straight from texts, for tests."""

from fedlm.simulations.data.vocabulary.tokenization import Tokenizer, TokenizerSettings, count_words


def train_tokenizer(texts, vocabulary_size, words_are_separated=False, **settings):
    settings = TokenizerSettings(vocabulary_size=vocabulary_size, **settings)
    return Tokenizer.train(count_words(texts, settings, words_are_separated), settings, words_are_separated)


def encode(tokenizer, texts):
    return [ids.tolist() for ids in tokenizer.encode_batch(texts)]

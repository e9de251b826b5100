"""The made-up text: its entropy, what an ideal predictor comes to, and the store that models read."""

import dataclasses

import numpy as np

from benchmarks.architectures.synthetic_text import Source, known_entropy, write_store
from fedlm.simulations.data.store.token_store import TokenStore

SMALL = Source(topics=3, classes=2, modes=2, class_words=3, opening_words=2, length=4)


def sentences_of(source):
    """Every sentence that there may be, with its probability, by going through all of them."""
    offset = source.topics * source.opening_words
    found = [
        (source.topic_probability[z] * source.opening[w], [z * source.opening_words + w], z, source.first_state[z, w])
        for z in range(source.topics)
        for w in range(source.opening_words)
    ]
    for _ in range(source.length - 1):
        found = [
            (
                p * source.emission[z, s // source.modes, w],
                [*words, offset + s // source.modes * source.class_words + w],
                z,
                source.next_state[s, w],
            )
            for p, words, z, s in found
            for w in range(source.class_words)
        ]
    return np.array([p for p, *_ in found]), np.array([words for _, words, *_ in found])


def test_the_entropy_is_that_of_all_sentences():
    probabilities, words = sentences_of(SMALL)
    assert len(np.unique(words, axis=0)) == len(words)
    np.testing.assert_allclose(probabilities.sum(), 1)
    np.testing.assert_allclose(SMALL.entropy(), -(probabilities * np.log(probabilities)).sum() / SMALL.length)
    np.testing.assert_allclose(SMALL.ideal_losses(words).sum(axis=1), -np.log(probabilities))


def test_an_ideal_predictor_reaches_the_entropy():
    source = Source()
    drawn = source.draw(1500, (5, 40), seed=3)
    losses = source.ideal_losses(drawn.words).mean(axis=1)
    sizes = np.bincount(drawn.clients)
    # Sentences of a client are alike in their topics: errors are those of sums over clients.
    off = np.bincount(drawn.clients, losses - source.entropy())
    error = np.sqrt(np.sum(np.square(off))) / sizes.sum()
    # One in a hundred thousand goes beyond.
    assert abs(losses.mean() - source.entropy()) < 4.42 * error
    assert error < 0.01
    # One who does not keep the mode in mind, or the topic, does worse.
    assert dataclasses.replace(source, seed=1).ideal_losses(drawn.words).mean() == np.inf
    unigrams = np.bincount(drawn.words.ravel()) / drawn.words.size
    unigrams = unigrams[unigrams > 0]
    assert -(unigrams * np.log(unigrams)).sum() > source.entropy() + 1


def test_clients_differ_in_their_topics():
    drawn = Source().draw(200, (50, 60), seed=0)
    shares = np.stack([np.bincount(drawn.topics[drawn.clients == client], minlength=16) for client in range(200)])
    # Of clients that are alike the largest topic would have a fifth.
    assert np.median(shares.max(axis=1) / shares.sum(axis=1)) > 0.35


def test_a_store_has_every_word_as_it_was_drawn(tmp_path):
    store = TokenStore.open(write_store(tmp_path / "text", SMALL, clients=40, sentences=(3, 6)))
    assert store.vocabulary_size == SMALL.num_words + 4
    assert known_entropy(store.path) == SMALL.entropy()
    assert known_entropy(tmp_path) is None
    rows = np.concatenate([store.split("train").sequences(client, SMALL.length) for client in range(20)])
    assert rows.shape[1] == SMALL.length + 1
    # No padding, no unknown word and no end among the targets.
    assert rows[:, 1:].min() > 3

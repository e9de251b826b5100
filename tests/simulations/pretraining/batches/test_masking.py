"""Statistical tests here fail by chance with probability 10^-6 each for a seed drawn at random."""

import numpy as np
import pytest
from scipy import stats

from fedlm.models.special_tokens import PAD_ID
from fedlm.simulations.pretraining.batches.masking import MaskedWords

FALSE_ALARM = 1e-6
VOCABULARY = 54
MASK = MaskedWords(VOCABULARY, seed=2**255 + 7)


@pytest.fixture(scope="module")
def hidden():
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2000, 2, 33), dtype=np.int32)
    return tokens[..., :-1], MASK(5, np.arange(2000), tokens)


def share_is(values, probability):
    return stats.binomtest(int(values.sum()), values.size, probability).pvalue > FALSE_ALARM


def test_words_are_hidden_as_in_bert(hidden):
    words, fields = hidden
    inputs, targets = fields["inputs"], fields["targets"]
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.shape == targets.shape == words.shape
    chosen = targets != PAD_ID
    np.testing.assert_array_equal(targets[chosen], words[chosen])
    np.testing.assert_array_equal(inputs[~chosen], words[~chosen])
    assert not chosen[words < 4].any()
    assert share_is(chosen[words >= 4], 0.15)
    assert share_is(inputs[chosen] == MASK.mask_id, 0.8)
    others = chosen & (inputs != MASK.mask_id)
    assert share_is(inputs[others] == words[others], 0.5 + 0.5 / (VOCABULARY - 4))
    replaced = inputs[others & (inputs != words)]
    assert (replaced.min(), replaced.max()) == (4, VOCABULARY - 1)
    assert stats.chisquare(np.bincount(replaced - 4, minlength=VOCABULARY - 4)).pvalue > FALSE_ALARM


def test_places_and_rows_are_chosen_independently(hidden):
    words, fields = hidden
    chosen = np.where(words < 4, 0.0, (fields["targets"] != PAD_ID) - 0.15).reshape(2000, -1)
    scale = 0.15 * 0.85 * (50 / 54) ** 2
    for one, other in ((chosen[:, 1:], chosen[:, :-1]), (chosen[1:], chosen[:-1])):
        assert abs((one * other).sum()) < stats.norm.isf(FALSE_ALARM / 2) * np.sqrt(one.size) * scale


def test_a_row_depends_on_seed_step_and_unit_only():
    tokens = np.full((6, 1, 65), 9, np.int32)
    indices = np.array([3, 1, 4, 15, 9, 2**40])
    fields = MASK(7, indices, tokens)
    for name, array in MASK(7, indices[[2, 5]], tokens[:2]).items():
        np.testing.assert_array_equal(array, fields[name][[2, 5]])
    assert len({row.tobytes() for row in fields["targets"]}) == 6
    for other in (MASK(8, indices, tokens), MaskedWords(VOCABULARY, seed=8)(7, indices, tokens)):
        assert (other["targets"] != fields["targets"]).any()

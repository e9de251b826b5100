"""Masked language modelling: words are hidden, and the model predicts them (Devlin et al. 2019, "BERT", 3.1)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlm.fl_core.randomness import host_rng, random_bits
from fedlm.models.families.masked_language import mask_id
from fedlm.models.special_tokens import OOV_ID, PAD_ID

CHOSEN_SHARE = 0.15
"""Of the words, how many are predicted."""
MASKED_SHARE = 0.8
"""Of the words predicted, how many are replaced by [MASK]."""
RANDOM_SHARE = 0.1
"""Of the words predicted, how many are replaced by any word; the others are kept."""

_FIRST_WORD = OOV_ID + 1


@dataclass(frozen=True)
class MaskedWords:
    """A `Transform` to the fields `inputs` and `targets` of masked language modelling.

    Each word is predicted with probability `CHOSEN_SHARE`, independently of the others. Special tokens, [UNK] among
    them, are never predicted and never put in a word's place. What a row's words become is a pure function of the seed,
    the step and the unit, whatever else is in the batch."""

    vocabulary_size: int  # of the data. The id of [MASK] is this number, so the model's vocabulary has one more.
    seed: int | bytes  # not negative, of any size; or a secret, see `host_rng`

    @property
    def mask_id(self) -> int:
        """The id of [MASK]."""
        return mask_id(self.vocabulary_size)

    def __call__(
        self, step: int, indices: NDArray[np.int64], tokens: NDArray[np.int32]
    ) -> dict[str, NDArray[np.int32]]:
        """Hide words.

        Args:
          indices: int64 [rows], the units.
          tokens: int32 [rows, K, length + 1]. The last token of a sequence is left out: in packed text it is the
            first of the next.

        Returns:
          `inputs`, int32 [rows, K, length], with words hidden; `targets`, of the same shape, the words to predict,
          PAD everywhere else.
        """
        words = tokens[..., :-1]
        key = host_rng(self.seed, "masked words", step).integers(1 << 64, dtype=np.uint64)
        number = np.prod(words.shape[1:], dtype=int)
        chosen, action, word = (
            draw.reshape(words.shape) for draw in _uniform(key, indices.astype(np.uint64), 3, int(number))
        )
        chosen = (chosen < CHOSEN_SHARE) & (words >= _FIRST_WORD)
        any_word = _FIRST_WORD + (word * (self.vocabulary_size - _FIRST_WORD)).astype(np.int32)
        hidden = np.where(action < MASKED_SHARE, np.int32(self.mask_id), any_word)
        replaced = chosen & (action < MASKED_SHARE + RANDOM_SHARE)
        return {"inputs": np.where(replaced, hidden, words), "targets": np.where(chosen, words, np.int32(PAD_ID))}


def _uniform(key: np.uint64, rows: NDArray[np.uint64], draws: int, number: int) -> NDArray[np.float64]:
    """Draw float64 [draws, rows, number] from [0, 1); see `random_bits`."""
    bits = random_bits(key, rows, draws * number).reshape(-1, draws, number)
    return np.moveaxis((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53, 1, 0)

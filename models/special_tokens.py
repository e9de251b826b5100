"""Token ids that mean something special. Where they stand is a property of a vocabulary.

In every vocabulary the ids 0 to 3 are those of PAD, BOS, EOS and OOV, PAD first and OOV last; vocabularies differ in
which of the two between is which, and in how they are spelled. So id 0 is padding everywhere, and id 4 the first word.
"""

from typing import NamedTuple

PAD_ID = 0
OOV_ID = 3


class SpecialTokens(NamedTuple):
    """The special tokens of a vocabulary.

    Attributes:
      bos: the id that a sequence begins with.
      eos: the id that it ends with.
      names: how the ids 0 to 3 are spelled.

    Example:
      >>> GEMMA.names[GEMMA.bos]
      '<bos>'
    """

    bos: int
    eos: int
    names: tuple[str, str, str, str]


OWN = SpecialTokens(bos=1, eos=2, names=("[PAD]", "[BOS]", "[EOS]", "[UNK]"))
"""Those of the vocabularies that we make."""
GEMMA = SpecialTokens(bos=2, eos=1, names=("<pad>", "<eos>", "<bos>", "<unk>"))
"""Those of Gemma's."""
KNOWN_SPECIAL_TOKENS = (OWN, GEMMA)

BOS_ID, EOS_ID = OWN.bos, OWN.eos
SPECIAL_TOKENS = OWN.names

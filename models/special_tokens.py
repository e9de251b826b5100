"""Token ids that mean the same in every vocabulary of ours."""

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
OOV_ID = 3

SPECIAL_TOKENS = ("[PAD]", "[BOS]", "[EOS]", "[UNK]")

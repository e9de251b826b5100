"""Training by plans, models of LiteRT that a server sends, in a confined process."""

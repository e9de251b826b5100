"""Programs of plans as models of LiteRT, of its built-in operations alone."""

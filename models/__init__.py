"""Language models as pure functions of (parameters, tokens)."""

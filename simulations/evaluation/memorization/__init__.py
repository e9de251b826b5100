"""Empirical privacy: what a trained model can be made to repeat, and how well it knows sequences that were planted."""

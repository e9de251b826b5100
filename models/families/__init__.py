"""Families of models: CIFG, Transformers, recommenders and published decoders."""

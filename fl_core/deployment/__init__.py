"""Training with real clients over the network."""

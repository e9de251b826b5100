"""Federated data sets: where text comes from, how it is tokenized, and the store that training reads."""

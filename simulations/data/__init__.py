"""Federated data sets: import, storage, description, export."""

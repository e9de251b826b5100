"""Differential privacy of federated rounds: noise mechanisms, accounting, participation and the ledger of releases."""

"""Rounds of federated training: cohorts, local training, aggregation, server optimizers and the loop."""

"""The federated algorithms: local SGD, compression, aggregation, server optimizers and the round loop."""

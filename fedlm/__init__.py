"""Language models trained on text that belongs to people: federated, simulated or central."""
